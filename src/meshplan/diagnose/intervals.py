"""Sets of time intervals as sorted arrays.

An interval set is a float array of shape ``(n, 2)`` with rows ``[start, end)`` that are sorted,
disjoint and not empty. :func:`union` makes one from anything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

__all__ = [
    "Intervals",
    "clip",
    "complement",
    "contains",
    "covered",
    "difference",
    "intersection",
    "length",
    "union",
]

Intervals = npt.NDArray[np.float64]


def union(start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
    """Join overlapping and touching intervals; empty and negative ones vanish.

    Args:
        start: starts, any order, shape ``(n,)``.
        end: ends, shape ``(n,)``.

    Returns:
        The interval set that covers the same points, shape ``(m, 2)``.
    """
    starts = np.asarray(start, dtype=np.float64)
    ends = np.asarray(end, dtype=np.float64)
    real = ends > starts
    order = np.argsort(starts[real], kind="stable")
    starts, ends = starts[real][order], ends[real][order]
    if not len(starts):
        return np.empty((0, 2))
    reach = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [len(starts) - 1]))
    return np.column_stack((starts[first], reach[last]))


def length(intervals: Intervals) -> float:
    """Total time that an interval set covers."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def clip(intervals: Intervals, *, start: float, end: float) -> Intervals:
    """The part of an interval set inside ``[start, end)``."""
    # looked up by halves: a trace is cut into many windows
    first = bisect_right(_Column(intervals, 1), start)
    last = bisect_left(_Column(intervals, 0), end)
    cut = intervals[first : max(first, last)].copy()
    if len(cut):
        cut[0, 0], cut[-1, 1] = max(cut[0, 0], start), min(cut[-1, 1], end)
    return cut


class _Column:
    """A column of an interval set as a sequence, of which no copy is made."""

    def __init__(self, intervals: Intervals, number: int) -> None:
        self._values = intervals[:, number]

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: int) -> float:
        return float(self._values[place])


def complement(intervals: Intervals, *, start: float, end: float) -> Intervals:
    """The part of ``[start, end)`` that an interval set leaves free."""
    inside = clip(intervals, start=start, end=end)
    free = np.column_stack(
        (np.concatenate(([start], inside[:, 1])), np.concatenate((inside[:, 0], [end])))
    )
    return free[free[:, 1] > free[:, 0]]


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """The points that lie in both interval sets.

    A sweep over all ends: a point is in both where two sets are open.
    """
    if not len(a) or not len(b):
        return np.empty((0, 2))
    times = np.concatenate((a[:, 0], b[:, 0], a[:, 1], b[:, 1]))
    change = np.repeat((1, -1), len(a) + len(b))
    # at equal times ends come before starts, so that touching sets do not meet
    order = np.lexsort((change, times))
    times, depth = times[order], np.cumsum(change[order])
    both = np.flatnonzero(depth == 2)
    return np.column_stack((times[both], times[both + 1]))


def difference(a: Intervals, b: Intervals) -> Intervals:
    """The points of ``a`` that do not lie in ``b``."""
    if not len(a) or not len(b):
        return a
    return intersection(a, complement(b, start=float(a[0, 0]), end=float(a[-1, 1])))


def covered(intervals: Intervals, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Time that an interval set covers up to each of the given times, shape of ``times``."""
    if not len(intervals):
        return np.zeros_like(times)
    edges = intervals.ravel()
    lengths = intervals[:, 1] - intervals[:, 0]
    total = np.concatenate(([0.0], np.cumsum(lengths)))
    levels = np.column_stack((total[:-1], total[1:])).ravel()
    return np.asarray(np.interp(times, edges, levels), dtype=np.float64)


def contains(intervals: Intervals, times: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether each time lies in the set; NaN does not."""
    if not len(intervals):
        return np.zeros(len(times), dtype=np.bool_)
    at = np.searchsorted(intervals[:, 0], times, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (times < intervals[np.maximum(at, 0), 1])
    return inside
