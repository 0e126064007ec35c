"""The forms that kernel times are fitted with: sums of terms with non-negative weights.

Each term grows with every size, so a larger kernel is never faster. The tool that fits the weights
and the code that uses them share these functions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["ATTENTION_TERMS", "GEMM_TERMS", "attention_terms", "gemm_terms"]

FloatArray = npt.NDArray[np.float64]
Number = FloatArray | float

GEMM_TERMS = ("launch", "flop", "output", "input", "weight", "depth", "fill", "tail")
ATTENTION_TERMS = ("launch", "flop", "queries", "keys", "depth", "rows", "heads")


def gemm_terms(*, m: Number, n: Number, k: Number, groups: Number = 1.0) -> tuple[Number, ...]:
    """Terms of the time of ``groups`` products ``y[m, n] = x[m, k] w[k, n]`` in one kernel.

    Equation: ``t = w_0 + w_1 G m n k + w_2 G m n + w_3 G m k + w_4 G n k + w_5 k
    + w_6 k sqrt(G m n) + w_7 sqrt(G m n)``: launch, multiply-adds, the traffic of the three
    matrices, the time of one tile through the depth, and the part-filled last wave of tiles.
    """
    tiles = np.sqrt(groups * m * n)
    return (
        1.0,
        groups * m * n * k,
        groups * m * n,
        groups * m * k,
        groups * n * k,
        k,
        k * tiles,
        tiles,
    )


def attention_terms(
    *,
    batch: Number,
    heads: Number,
    kv_heads: Number,
    query_len: Number,
    key_len: Number,
    pairs: Number,
    width: Number,
    rounds: Number = 1.0,
) -> tuple[Number, ...]:
    """Terms of the time of a fused attention kernel, ``width`` being ``(d_qk + d_v) / 2``.

    Equation: ``t = w_0 r + w_1 b a p d + w_2 b a q d + w_3 b g k d r + w_4 k d r + w_5 b a q
    + w_6 b a r``: launch, pairs inside the mask, traffic of queries and of keys, the time of one
    tile along the keys, the softmax statistics of each row, and the set-up of each head.
    """
    return (
        rounds,
        batch * heads * pairs * width,
        batch * heads * query_len * width,
        batch * kv_heads * key_len * width * rounds,
        key_len * width * rounds,
        batch * heads * query_len,
        batch * heads * rounds,
    )
