"""The Pareto front of step time and memory on one cluster, exactly.

A plan is on the front when no other is at least as good in both and better in one. Memory counts
in sixteenths of what a device can use, or the front would be full of plans that differ by a buffer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["front", "memory_steps"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_BATCH = 128
_STEPS = 16


def memory_steps(peak_bytes: FloatArray, *, usable_bytes: float) -> IntArray:
    """Peak memory in steps of a sixteenth of the usable memory, rounded up."""
    return np.ceil(np.asarray(peak_bytes) * _STEPS / usable_bytes).astype(np.int64)


def front(
    *,
    bound: FloatArray,
    memory: IntArray,
    field: IntArray,
    evaluate: Callable[[IntArray], FloatArray],
) -> IntArray:
    """Find the plans that no other plan beats in time and memory together.

    Args:
        bound: lower bound of each plan's time.
        memory: memory of each plan in steps, see :func:`memory_steps`.
        field: order of the plans by their fields, which settles equal points.
        evaluate: gives the exact times of the plans at some positions.

    Returns:
        Positions from the least time to the least memory.
    """
    value = np.full(len(bound), np.inf)
    order = np.lexsort((field, memory, bound))
    reach = int(memory.max()) + 1 if len(memory) else 0
    # best[m]: least exact time known with at most m steps of memory
    best = np.full(reach, np.inf)
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        chosen = chosen[bound[chosen] <= best[memory[chosen]]]
        if not len(chosen):
            continue
        value[chosen] = evaluate(chosen)
        np.minimum.at(best, memory[chosen], value[chosen])
        best = np.minimum.accumulate(best)
    kept: list[int] = []
    for i in np.lexsort((field, memory, value)).tolist():
        if np.isfinite(value[i]) and (not kept or memory[i] < memory[kept[-1]]):
            kept.append(i)
    return np.array(kept, dtype=np.int64)
