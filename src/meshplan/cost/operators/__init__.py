"""Operators: what one device computes for one micro-batch, with FLOP and bytes."""

from __future__ import annotations

from meshplan.cost.operators.attention import causal_pairs
from meshplan.cost.operators.ends import embedding_operators, head_operators
from meshplan.cost.operators.feed_forward import expert_rows, merged_share
from meshplan.cost.operators.layer import layer_operators
from meshplan.cost.operators.records import (
    Elementwise,
    Gemm,
    Operator,
    Scan,
    ScoreProduct,
    Shapes,
    shapes_of,
)

__all__ = [
    "Elementwise",
    "Gemm",
    "Operator",
    "Scan",
    "ScoreProduct",
    "Shapes",
    "causal_pairs",
    "embedding_operators",
    "expert_rows",
    "head_operators",
    "layer_operators",
    "merged_share",
    "shapes_of",
]
