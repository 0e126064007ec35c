"""What a device without work waits for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import RankTrace, Window
from meshplan.diagnose.intervals import Intervals, complement, covered, union
from meshplan.diagnose.measure import Sets
from meshplan.diagnose.records import Gap, Idle

__all__ = ["Launched", "exposed_part", "idle_of"]

FloatArray = npt.NDArray[np.float64]
_LONGEST = 4
"""Gaps of each cause that are kept to be shown."""
_CAUSES = ("host", "data", "allocate", "device", "unknown")


class Launched:
    """All device events of a rank in order of start, with the launch of each.

    Attributes:
        start: starts [us], ``(n,)``.
        launch: launches [us], NaN where unknown, ``(n,)``.
        late: the event was launched after its stream had run dry, ``(n,)``.
        of_graph: its launch started other events too, as that of a CUDA graph does, ``(n,)``.
        data: when the host loads data.
        allocator: when the host is in a call of the device's allocator.
        synced: when the host is in a long call that waits for the device.
    """

    def __init__(self, trace: RankTrace) -> None:
        kinds = (trace.compute, trace.communication, trace.copies)
        start = np.concatenate([k.start for k in kinds])
        order = np.argsort(start, kind="stable")
        self.start: FloatArray = start[order]
        self.launch: FloatArray = np.concatenate([k.launch for k in kinds])[order]
        end = np.concatenate([k.end for k in kinds])[order]
        stream = np.concatenate([k.stream for k in kinds])[order]
        self.late = np.zeros(len(start), dtype=np.bool_)
        for number in np.unique(stream):
            own = np.flatnonzero(stream == number)
            before = np.concatenate(([-np.inf], np.maximum.accumulate(end[own])[:-1]))
            self.late[own] = self.launch[own] > before  # NaN is never late
        self.of_graph = np.zeros(len(start), dtype=np.bool_)
        known = np.flatnonzero(~np.isnan(self.launch))
        _, one, num = np.unique(self.launch[known], return_inverse=True, return_counts=True)
        self.of_graph[known] = num[one.ravel()] > 1
        self.data: Intervals = union(*trace.host.of("data"))
        self.allocator: Intervals = union(*trace.host.of("allocate"))
        self.synced: Intervals = union(*trace.host.of("sync"))


def idle_of(launched: Launched, sets: Sets, window: Window) -> Idle:
    """Split the idle time of one window.

    A gap ends with an event. Launched after the gap began, the host was late, and the whole gap
    is the host's, or the data loader's where that ran; launched before, the device had its work
    and something on the device held it back.
    """
    gaps = complement(sets.busy, start=window.start, end=window.end)
    first = np.searchsorted(launched.start, gaps[:, 1], side="left")
    follows = first < len(launched.start)
    launch = np.full(len(gaps), np.nan)
    launch[follows] = launched.launch[first[follows]]
    width = gaps[:, 1] - gaps[:, 0]
    loading = covered(launched.data, gaps[:, 1]) - covered(launched.data, gaps[:, 0])
    calls = covered(launched.allocator, gaps[:, 1]) - covered(launched.allocator, gaps[:, 0])
    calls = np.minimum(calls, width - loading)
    of_graph = np.zeros(len(gaps), dtype=np.bool_)
    of_graph[follows] = launched.of_graph[first[follows]]
    queued = launch <= gaps[:, 0]
    late = launch > gaps[:, 0]
    unknown = ~queued & ~late
    synced = covered(launched.synced, gaps[:, 1]) - covered(launched.synced, gaps[:, 0])
    data_us = float(loading[~queued].sum())
    inside = (launched.start >= window.start) & (launched.start < window.end)
    return Idle(
        host_us=float((width - loading)[late].sum()),
        data_us=data_us,
        device_us=float(width[queued].sum()),
        unknown_us=float((width - loading)[unknown].sum()),
        num_late=int((inside & launched.late).sum()),
        num_launched=int((inside & ~np.isnan(launched.launch)).sum()),
        allocate_us=float(calls[late].sum()),
        graph_us=float(width[queued & of_graph].sum()),
        synced_us=float(synced[queued | unknown].sum()),
        longest=_longest(gaps, loading=loading, calls=calls, queued=queued, late=late),
    )


def _longest(
    gaps: Intervals,
    *,
    loading: FloatArray,
    calls: FloatArray,
    queued: npt.NDArray[np.bool_],
    late: npt.NDArray[np.bool_],
) -> tuple[Gap, ...]:
    """The longest gaps of each cause, in order of time."""
    width = gaps[:, 1] - gaps[:, 0]
    cause = np.where(queued, _CAUSES.index("device"), _CAUSES.index("unknown"))
    cause[late] = _CAUSES.index("host")
    cause[~queued & (calls > width / 2)] = _CAUSES.index("allocate")
    cause[~queued & (loading > width / 2)] = _CAUSES.index("data")
    kept: list[int] = []
    for number in range(len(_CAUSES)):
        own = np.flatnonzero(cause == number)
        kept += own[np.argsort(-width[own], kind="stable")][:_LONGEST].tolist()
    return tuple(
        Gap(cause=_CAUSES[cause[i]], start_us=float(gaps[i, 0]), end_us=float(gaps[i, 1]))
        for i in sorted(kept)
    )


def exposed_part(compute: Intervals, start: FloatArray, end: FloatArray) -> FloatArray:
    """Part of each event in which no compute kernel runs [us], shape of ``start``."""
    return np.maximum(end - start - (covered(compute, end) - covered(compute, start)), 0.0)
