"""What the streams of a rank wait for: as much as a replay with other collectives needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import RankTrace, Window
from meshplan.diagnose.held import Held
from meshplan.diagnose.intervals import Intervals, covered
from meshplan.diagnose.measure import Sets
from meshplan.diagnose.names import is_optimizer, measure_constant
from meshplan.diagnose.series import Streams

__all__ = ["streams_of"]

FloatArray = npt.NDArray[np.float64]


def streams_of(
    trace: RankTrace,
    sets: Sets,
    held: Held,
    windows: Sequence[Window],
    kept: npt.NDArray[np.int64],
) -> Streams:
    """The streams of a trace.

    A library lets a collective wait for the compute that its caller launched before it (PyTorch's
    ``ProcessGroupNCCL`` records an event on the caller's stream and waits for it on its own), so
    that the order of the launches says since when the data of a call was there.

    Args:
        trace: the trace.
        sets: when it computes.
        held: gaps in its compute that no call ends.
        windows: its steps.
        kept: its communication kernels that count, in order of their start, ``(n,)``.
    """
    talk = trace.communication
    start, end, launch = talk.start[kept], talk.end[kept], talk.launch[kept]
    ready = _ready(trace, launch)
    edges = np.array([(w.start, w.end) for w in windows]).reshape(-1, 2)
    closing = _first_of_optimizer(trace, edges)
    gaps = _gaps(sets.compute, held, start, end)
    return Streams(
        stream=talk.stream[kept],
        ready_us=np.minimum(ready, start),
        gaps=gaps,
        resumes_us=np.where(_answers(trace, gaps, end), covered(sets.compute, gaps[:, 1]), np.nan),
        launch=launch,
        ahead_us=covered(sets.compute, ready),
        work_us=covered(sets.compute, edges),
        closing_us=covered(sets.compute, closing),
    )


def _first_of_optimizer(trace: RankTrace, edges: Intervals) -> FloatArray:
    """Start of the first kernel of the optimizer in each step; its end where there is none [us]."""
    of_optimizer = np.array([is_optimizer(name) for name in trace.names], dtype=np.bool_)
    if not of_optimizer.any():
        return edges[:, 1]
    starts = np.sort(trace.compute.start[of_optimizer[trace.compute.name]])
    after = np.concatenate((starts, [np.inf]))[np.searchsorted(starts, edges[:, 0])]
    return np.minimum(after, edges[:, 1])


def _ready(trace: RankTrace, launch: FloatArray) -> FloatArray:
    """End of all compute that was launched before each call; NaN where launches are not known."""
    compute = trace.compute
    known = ~np.isnan(compute.launch)
    order = np.argsort(compute.launch[known], kind="stable")
    before = compute.launch[known][order]
    over = np.concatenate(([-np.inf], np.maximum.accumulate(compute.end[known][order])))
    ready: FloatArray = over[np.searchsorted(before, launch, side="left")]
    return np.where(np.isnan(launch) | (not known.any()), np.nan, ready)


def _answers(trace: RankTrace, gaps: Intervals, end: FloatArray) -> npt.NDArray[np.bool_]:
    """In which gaps compute goes on as soon as the last call ends, and was launched before."""
    if not len(gaps):
        return np.zeros(0, dtype=np.bool_)
    over, ends = gaps[:, 1], np.sort(end)
    last = ends[np.searchsorted(ends, over, side="right") - 1]
    order = np.argsort(trace.compute.start, kind="stable")
    place = np.searchsorted(trace.compute.start[order], over)
    launch = np.concatenate((trace.compute.launch[order], [np.inf]))[place]
    found: npt.NDArray[np.bool_] = launch <= last
    return found & (over - last <= measure_constant("launch_latency_us"))


def _gaps(compute: Intervals, held: Held, start: FloatArray, end: FloatArray) -> Intervals:
    """Times without compute in which some call ends, unless something else holds compute up."""
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
    chosen: Intervals = free[holds & ~np.isin(free[:, 1], held.gaps[:, 1])]
    return chosen
