"""In which order plans stand.

Two plans are close when their error bands overlap. Comparing the pessimistic ends of the bands
decides those, and decides all others as their midpoints would, so one number per plan serves:
``value = step time * (1 + band)``. Values within :data:`TIE` of each other, counted in steps from
the best one, are a tie; there the plan with fewer moving parts stands first (a memory that is all
but full counts like one that is hard to set up), then the smaller
value, then the fields of the plan. That is a total order, equal on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.record import record
from meshplan.space.plan import Offload, PlanGrid, Recompute, Schedule

__all__ = [
    "HEADROOM",
    "TIE",
    "Keys",
    "complexity",
    "crowding",
    "field_order",
    "pack",
    "rank_keys",
    "tie_step",
]

TIE = 0.02
"""Relative difference below which two values are a tie. NVIDIA's tables of one layout differ by 4 %
(median) from one container to the next, so that half of it decides nothing."""

HEADROOM = 0.05
"""Share of the usable memory that a plan should leave free beyond its allowance: real peaks wander
with sequence packing, expert routing and the versions of libraries."""

_LARGEST_WORD = 2**62

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_COMMON_SCHEDULES = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
_TIE_BREAK_FIELDS = (
    "framework",
    "zero",
    "pp",
    "tp",
    "cp",
    "etp",
    "ep",
    "vpp",
    "schedule",
    "recompute",
    "recompute_layers",
    "offload",
    "offload_layers",
    "split",
    "sp",
    "cp_comm",
    "dp_replicate",
    "micro_batch",
)


def complexity(grid: PlanGrid) -> IntArray:
    """Count the moving parts of each plan: what someone has to set up, test and debug.

    One for each axis in use beside data parallelism, for interleaving, for a schedule that
    splits the backward pass, for each thing that is recomputed, for a part-recomputed stage, for
    sharding inside replica groups and for an uneven split; two for each thing that is offloaded.
    Sequence parallelism goes with tensor parallelism, so that leaving it out counts.

    Returns:
        Counts, shape ``(num_plans,)``.
    """
    count = np.zeros(len(grid), dtype=np.int64)
    for axis in (grid.tp, grid.pp, grid.cp, grid.ep, grid.vpp):
        count += axis > 1
    count += (grid.etp > 1) & (grid.etp != grid.tp)
    count += ~np.isin(grid.schedule, [int(s) for s in _COMMON_SCHEDULES])
    for part in Recompute:
        count += (grid.recompute & int(part)) != 0
    count += grid.recompute_layers > 0
    count += (grid.dp_replicate > 1) & (grid.zero > 0) & (grid.dp_shard > 1)
    count += grid.split != 0
    count += (grid.tp > 1) & (grid.sp == 0)
    for place in Offload:
        count += 2 * ((grid.offload & int(place)) != 0)
    count += 2 * (grid.offload_layers > 0)
    return count


def crowding(peak_bytes: FloatArray, *, usable_bytes: float) -> IntArray:
    """Count what a full memory costs in a tie: two where less than :data:`HEADROOM` is left.

    Args:
        peak_bytes: predicted peak memory, allowance included [bytes].
        usable_bytes: what the device can use [bytes].

    Returns:
        Counts to add to :func:`complexity`, shape ``(num_plans,)``.
    """
    full = np.asarray(peak_bytes) > (1.0 - HEADROOM) * usable_bytes
    return 2 * full.astype(np.int64)


def field_order(grid: PlanGrid) -> IntArray:
    """Rank each plan by its fields alone, which settles what nothing else settles.

    Returns:
        A permutation of ``0 .. num_plans - 1`` that does not depend on the order of the grid, as
        long as no plan occurs twice.
    """
    words = pack([getattr(grid, name) for name in _TIE_BREAK_FIELDS])
    order = np.lexsort(words[::-1])
    rank = np.empty(len(grid), dtype=np.int64)
    rank[order] = np.arange(len(grid))
    return rank


def pack(columns: Sequence[IntArray]) -> list[IntArray]:
    """Write columns of small integers as few words that compare the same way.

    Returns:
        One word for most grids, more where the ranges multiply to more than 62 bits.
    """
    word = np.zeros(len(columns[0]), dtype=np.int64)
    if not len(word):
        return [word]
    words, size = [], 1
    for column in columns:
        low = int(column.min())
        span = int(column.max()) - low + 1
        if size * span > _LARGEST_WORD:
            words.append(word)
            word, size = np.zeros_like(word), 1
        if span > 1:
            word = word * span + (column - low)
            size *= span
    return [*words, word]


def tie_step(value: FloatArray, *, best: float) -> IntArray:
    """How many ties a value lies behind the best one: 0 is a tie with the best.

    ``floor(log(value / best) / log(1 + TIE))``; infinite values get the largest step.
    """
    ratio = np.maximum(np.asarray(value, dtype=np.float64) / best, 1.0)
    steps = np.floor(np.log(ratio) / np.log1p(TIE))
    return np.where(np.isfinite(steps), steps, 2.0**40).astype(np.int64)


@record
class Keys:
    """Sort keys of plans, compared from left to right; shapes ``(num_plans,)``.

    A key that is made from a lower bound of the value is a lower bound of the key: a larger
    value can only raise ``step``, and where ``step`` stays equal it raises ``value``.
    """

    step: IntArray
    parts: IntArray
    value: FloatArray
    field: IntArray

    def order(self) -> IntArray:
        """Positions from the first to the last."""
        return np.lexsort((self.field, self.value, self.parts, self.step))

    def at(self, index: int) -> tuple[int, int, float, int]:
        """One key as a tuple that compares the same way."""
        return (
            int(self.step[index]),
            int(self.parts[index]),
            float(self.value[index]),
            int(self.field[index]),
        )


def rank_keys(value: FloatArray, *, parts: IntArray, field: IntArray, best: float) -> Keys:
    """Make the sort keys for values (or for their lower bounds).

    Args:
        value: pessimistic value of each plan, smaller is better.
        parts: see :func:`complexity` and :func:`crowding`.
        field: see :func:`field_order`.
        best: the smallest exact value of all plans, where ties are counted from.
    """
    return Keys(step=tie_step(value, best=best), parts=parts, value=value, field=field)
