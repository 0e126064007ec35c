"""What the streams of a rank wait for: as much as a replay with other collectives needs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import RankTrace
from meshplan.diagnose.intervals import Intervals
from meshplan.diagnose.measure import Sets
from meshplan.diagnose.series import Streams

__all__ = ["streams_of"]

FloatArray = npt.NDArray[np.float64]


def streams_of(trace: RankTrace, sets: Sets, kept: npt.NDArray[np.int64]) -> Streams:
    """The streams of a trace.

    A library lets a collective wait for the compute that its caller launched before it (PyTorch's
    ``ProcessGroupNCCL`` records an event on the caller's stream and waits for it on its own), so
    that the order of the launches says since when the data of a call was there.

    Args:
        trace: the trace.
        sets: when it computes.
        kept: its communication kernels that count, in order of their start, ``(n,)``.
    """
    talk = trace.communication
    start, end = talk.start[kept], talk.end[kept]
    return Streams(
        stream=talk.stream[kept],
        ready_us=np.minimum(_ready(trace, talk.launch[kept]), start),
        gaps=_gaps(sets.compute, start, end),
    )


def _ready(trace: RankTrace, launch: FloatArray) -> FloatArray:
    """End of all compute that was launched before each call; NaN where launches are not known."""
    compute = trace.compute
    known = ~np.isnan(compute.launch)
    order = np.argsort(compute.launch[known], kind="stable")
    before = compute.launch[known][order]
    over = np.concatenate(([-np.inf], np.maximum.accumulate(compute.end[known][order])))
    ready: FloatArray = over[np.searchsorted(before, launch, side="left")]
    return np.where(np.isnan(launch) | (not known.any()), np.nan, ready)


def _gaps(compute: Intervals, start: FloatArray, end: FloatArray) -> Intervals:
    """Times without compute in which some call ends."""
    if not len(start):
        return np.empty((0, 2))
    edge = max(float(end.max()), float(compute[-1, 1]) if len(compute) else -np.inf)
    free = np.column_stack(
        (
            np.concatenate(([min(float(start.min()), edge)], compute[:, 1])),
            np.concatenate((compute[:, 0], [edge])),
        )
    )
    free = free[free[:, 1] > free[:, 0]]
    ends = np.sort(end)
    holds = np.searchsorted(ends, free[:, 1], side="right") > np.searchsorted(
        ends, free[:, 0], side="right"
    )
    chosen: Intervals = free[holds]
    return chosen
