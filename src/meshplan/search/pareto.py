"""The Pareto front of step time and memory on one cluster, exactly.

A plan is on the front when no other is at least as good in both and better in one. Memory counts
in sixteenths of what a device can use, or the front would be full of plans that differ by a buffer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.search.prospects import Values

__all__ = ["front", "memory_steps"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_BATCH = 1 << 13
_FIRST_BATCH = 8
_LARGEST_BATCH = 128
_STEPS = 16


def memory_steps(peak_bytes: FloatArray, *, usable_bytes: float) -> IntArray:
    """Peak memory in steps of a sixteenth of the usable memory, rounded up."""
    return np.ceil(np.asarray(peak_bytes) * _STEPS / usable_bytes).astype(np.int64)


def front(values: Values, *, memory: IntArray, field: IntArray) -> IntArray:
    """Find the plans that no other plan beats in time and memory together.

    Args:
        values: what is known of each plan's time; it learns what is worked out.
        memory: memory of each plan in steps, see :func:`memory_steps`.
        field: order of the plans by their fields, which settles equal points.

    Returns:
        Positions from the least time to the least memory.
    """
    reach = int(memory.max()) + 1 if len(memory) else 0
    # best[m]: least exact time known with at most m steps of memory
    best = np.full(reach, np.inf)
    _explore(values, _lowest(values, memory), memory, best)
    order = np.lexsort((field, memory, values.bound))
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        chosen = chosen[values.bound[chosen] <= best[memory[chosen]]]
        values.tighten(chosen)
        _explore(values, chosen[np.lexsort((field[chosen], values.bound[chosen]))], memory, best)
    value = np.where(np.isnan(values.exact), np.inf, values.exact)
    kept: list[int] = []
    for i in np.lexsort((field, memory, value)).tolist():
        if np.isfinite(value[i]) and (not kept or memory[i] < memory[kept[-1]]):
            kept.append(i)
    return np.array(kept, dtype=np.int64)


def _lowest(values: Values, memory: IntArray) -> IntArray:
    """For each step of memory a plan that may well be the fastest."""
    lowest = []
    for step in np.flatnonzero(np.bincount(memory)).tolist():
        there = np.flatnonzero(memory == step)
        few = min(_FIRST_BATCH, len(there))
        there = there[np.argpartition(values.bound[there], few - 1)[:few]]
        values.tighten(there)
        lowest.append(int(there[np.argmin(values.bound[there])]))
    return np.array(lowest, dtype=np.int64)


def _explore(values: Values, order: IntArray, memory: IntArray, best: FloatArray) -> None:
    """Evaluate plans in an order, those that could still be the fastest for their memory."""
    start, batch = 0, _FIRST_BATCH
    while start < len(order):
        chosen = order[start : start + batch]
        chosen = chosen[values.bound[chosen] <= best[memory[chosen]]]
        if len(chosen):
            np.minimum.at(best, memory[chosen], values.learn(chosen))
            best[:] = np.minimum.accumulate(best)
        start, batch = start + batch, min(2 * batch, _LARGEST_BATCH)
