"""Tables and constants of the time model, each with its source."""

from __future__ import annotations

from meshplan.cost.surfaces.constants import constant, constants, per_framework
from meshplan.cost.surfaces.tables import (
    AttentionSurface,
    GemmSurface,
    attention_surface,
    gemm_surface,
    table_of,
)

__all__ = [
    "AttentionSurface",
    "GemmSurface",
    "attention_surface",
    "constant",
    "constants",
    "gemm_surface",
    "per_framework",
    "table_of",
]
