"""Evaluate what depends on a few plan fields once per distinct combination of them.

A grid of a million plans holds only some hundreds of distinct ``(tp, cp, micro_batch, ...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from meshplan.record import record
from meshplan.space.plan import PlanGrid

__all__ = ["Factored", "factor", "ranks"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_TABLE_LIMIT = 1 << 22
_CODES_PER_PLAN = 4  # tables of codes stay as small as the columns
_FEW_PLANS = 64  # finding what so few have in common costs more than it saves
_PLANS_PER_RUN = 4  # a field that changes less often is looked at once per run of equal values


@record
class Factored:
    """The distinct combinations of some fields, and where each plan finds its own.

    Attributes:
        grid: one representative plan per combination; only the fields named are meaningful.
        inverse: index into ``grid`` for each plan; None when every plan stands for itself.
        first: position of each representative among the plans; None as above.
    """

    grid: PlanGrid
    inverse: npt.NDArray[np.intp] | None
    first: npt.NDArray[np.intp] | None = None

    def expand(self, values: FloatArray) -> FloatArray:
        """Spread values of shape ``(num_combinations,)`` to ``(num_plans,)``."""
        return values if self.inverse is None else values[self.inverse]

    @property
    def places(self) -> npt.NDArray[np.intp]:
        """Index into ``grid`` for each plan."""
        return np.arange(len(self.grid)) if self.inverse is None else self.inverse


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
    codes, num_codes = ranks(_codes_of(grid, fields))
    first = np.empty(num_codes, dtype=np.intp)
    first[codes[::-1]] = np.arange(len(grid) - 1, -1, -1)
    inverse = codes.astype(np.intp, copy=False)
    return Factored(grid=grid.take(first), inverse=inverse, first=first)


def _codes_of(grid: PlanGrid, fields: Sequence[str]) -> IntArray:
    """Write the values of each plan as one number, those of its row as the number of that."""
    if grid.shared is None:
        return _codes([getattr(grid, name) for name in fields], len(grid))
    rows, apart = grid.shared.rows, grid.shared.apart
    of_rows, _ = ranks(_codes([getattr(rows, f) for f in fields if f not in apart], len(rows)))
    own = [getattr(grid, name) for name in fields if name in apart]
    return _joined([of_rows[grid.shared.row], *own], len(grid))


def _codes(columns: Sequence[IntArray], num_plans: int) -> IntArray:
    """Write the values of each plan as one number.

    A space is walked axis by axis, so that most fields change only from one run of plans to the
    next: those are coded run by run.
    """
    begins = np.zeros(num_plans, dtype=np.bool_)
    begins[0] = True
    quick, slow = [], []
    for column in columns:
        changes = column[1:] != column[:-1]
        num_changes = np.count_nonzero(changes)
        if num_changes * _PLANS_PER_RUN > num_plans:
            quick.append(column)
        elif num_changes:
            slow.append(column)
            begins[1:] |= changes
    if len(slow) < 2:
        return _joined([*slow, *quick], num_plans)
    starts = np.flatnonzero(begins)
    if len(starts) * _PLANS_PER_RUN > num_plans:
        return _joined([*slow, *quick], num_plans)
    codes, _ = ranks(_joined([column[starts] for column in slow], len(starts)))
    runs = np.repeat(codes, np.diff(starts, append=num_plans))
    return _joined([runs, *quick], num_plans)


def _joined(columns: Iterable[IntArray], num_plans: int) -> IntArray:
    """Join columns to one number per plan that is small enough to look up in a table."""
    codes: IntArray | None = None
    num_codes, most_codes = 1, _CODES_PER_PLAN * num_plans
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        span = high - low + 1
        # values are small numbers as they are; only where these leave gaps ranks pay
        if num_codes * span > most_codes:
            column, span = ranks(column)
        elif low:
            column = column - low
        if codes is not None and num_codes * span > most_codes:
            codes, num_codes = ranks(codes)
        codes = column if codes is None else codes * span + column
        num_codes *= span
    return np.zeros(num_plans, dtype=np.int64) if codes is None else codes


def ranks(column: IntArray) -> tuple[IntArray, int]:
    """Replace values by their rank among the distinct ones, without a sort where possible.

    Returns:
        Ranks from 0, and how many there are.
    """
    low, high = int(column.min()), int(column.max())
    if low == high:
        return np.zeros_like(column), 1
    if high - low >= _TABLE_LIMIT:
        distinct, inverse = np.unique(column, return_inverse=True)
        return inverse.astype(np.int64, copy=False), len(distinct)
    shifted = column - low if low else column
    table = np.zeros(high - low + 1, dtype=np.bool_)
    table[shifted] = True
    numbers = np.cumsum(table) - 1
    return numbers[shifted], int(numbers[-1]) + 1
