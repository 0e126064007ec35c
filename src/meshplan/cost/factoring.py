"""Evaluate what depends on a few plan fields once per distinct combination of them.

A grid of a million plans holds only some hundreds of distinct ``(tp, cp, micro_batch, ...)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.space.plan import PlanGrid

__all__ = ["Factored", "factor"]

FloatArray = npt.NDArray[np.float64]
_TABLE_LIMIT = 1 << 22
_CODES_PER_PLAN = 4  # tables of codes stay as small as the columns
_FEW_PLANS = 64  # finding what so few have in common costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Factored:
    """The distinct combinations of some fields, and where each plan finds its own.

    Attributes:
        grid: one representative plan per combination; only the fields named are meaningful.
        inverse: index into ``grid`` for each plan; None when every plan stands for itself.
    """

    grid: PlanGrid
    inverse: npt.NDArray[np.intp] | None

    def expand(self, values: FloatArray) -> FloatArray:
        """Spread values of shape ``(num_combinations,)`` to ``(num_plans,)``."""
        return values if self.inverse is None else values[self.inverse]


def factor(grid: PlanGrid, fields: Sequence[str], *, few: int = _FEW_PLANS) -> Factored:
    """Find the distinct combinations of the named fields.

    The order of the combinations does not matter to the result, since all that is computed on
    them is element-wise.

    Args:
        grid: plans.
        fields: names of plan fields.
        few: so many plans or fewer stand for themselves, alike or not.
    """
    if len(grid) <= few:
        return Factored(grid=grid, inverse=None)
    codes: npt.NDArray[np.int64] | None = None
    num_codes, most_codes = 1, _CODES_PER_PLAN * len(grid)
    for name in fields:
        column: npt.NDArray[np.int64] = getattr(grid, name)
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        span = high - low + 1
        # values are small numbers as they are; only where these leave gaps ranks pay
        if num_codes * span > most_codes:
            column, span = _ranks(column)
        elif low:
            column = column - low
        if codes is not None and num_codes * span > most_codes:
            codes, num_codes = _ranks(codes)
        codes = column if codes is None else codes * span + column
        num_codes *= span
    codes, num_codes = _ranks(np.zeros(len(grid), dtype=np.int64) if codes is None else codes)
    first = np.empty(num_codes, dtype=np.intp)
    first[codes[::-1]] = np.arange(len(grid) - 1, -1, -1)
    return Factored(grid=grid.take(first), inverse=codes.astype(np.intp, copy=False))


def _ranks(column: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Replace values by their rank among the distinct ones, without a sort where possible."""
    low, high = int(column.min()), int(column.max())
    if low == high:
        return np.zeros_like(column), 1
    if high - low >= _TABLE_LIMIT:
        distinct, inverse = np.unique(column, return_inverse=True)
        return inverse.astype(np.int64, copy=False), len(distinct)
    shifted = column - low
    table = np.zeros(high - low + 1, dtype=np.int64)
    table[shifted] = 1
    ranks = np.cumsum(table) - 1
    return ranks[shifted], int(ranks[-1]) + 1
