"""Compute that stands still beside traffic that it does not wait for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.channels import Channels
from meshplan.diagnose.columns import RankTrace, Window
from meshplan.diagnose.intervals import Intervals, clip, complement, covered, union
from meshplan.diagnose.measure import Sets
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.series import REDUCTIONS

__all__ = ["Held"]

FloatArray = npt.NDArray[np.float64]


class Held:
    """Gaps in the compute of a rank that something else than traffic ends.

    Compute that waits for a call goes on when that ends. Where it was launched in time and goes on
    long after the last call, something else held it up: from the end of that call on, and perhaps
    before. Calls that reduce gradients are waited for by the optimizer alone, so that compute that
    goes on between their ends waited for none of them.

    Args:
        trace: the trace.
        channels: its calls and what they serve.
        sets: when it computes and communicates.

    Attributes:
        gaps: the gaps [us], ``(n, 2)``.
        since: from when on no call explains each [us], ``(n,)``.
    """

    def __init__(self, trace: RankTrace, channels: Channels, sets: Sets) -> None:
        self._talk = sets.communication
        gaps, since = _gaps(trace, channels)
        self.gaps: Intervals = gaps
        self.since: FloatArray = since

    def us(self, window: Window) -> tuple[float, float]:
        """Time in which traffic runs in these gaps: at least, and at most [us]."""
        inside = (
            clip(gaps, start=window.start, end=window.end)
            for gaps in (np.column_stack((self.since, self.gaps[:, 1])), self.gaps)
        )
        least, most = (
            float((covered(self._talk, own[:, 1]) - covered(self._talk, own[:, 0])).sum())
            for own in inside
        )
        return least, most


def _gaps(trace: RankTrace, channels: Channels) -> tuple[Intervals, FloatArray]:
    """Gaps that compute launched in time outlasts the last call in, and since when it does."""
    own, end = (trace.compute, trace.copies), trace.communication.end
    start = np.concatenate([k.start for k in own])
    if not len(start) or not len(end):
        return np.empty((0, 2)), np.empty(0)
    order = np.argsort(start, kind="stable")
    launch = np.concatenate([k.launch for k in own])[order]
    busy = union(start, np.concatenate([k.end for k in own]))
    if not len(busy):  # copies of no length
        return np.empty((0, 2)), np.empty(0)
    gaps = complement(busy, start=float(busy[0, 0]), end=float(busy[-1, 1]))
    begun, over = gaps[:, 0], gaps[:, 1]
    in_time = launch[np.searchsorted(start[order], over)] <= begun
    late = over - _last(np.sort(end), over) > measure_constant("launch_latency_us")
    waited = np.sort(end[~_of_gradients(channels)])
    since = np.maximum(begun, _last(waited, over))
    return gaps[in_time & late], since[in_time & late]


def _of_gradients(channels: Channels) -> npt.NDArray[np.bool_]:
    """Which calls reduce gradients between replicas."""
    reduces = np.array(
        [
            axis == "dp" and channel.kind in REDUCTIONS and channel.kind != "all_gather"
            for channel, (axis, _) in zip(channels.channels, channels.axes, strict=True)
        ],
        dtype=np.bool_,
    )
    found: npt.NDArray[np.bool_] = reduces[channels.index]
    return found


def _last(ends: FloatArray, times: FloatArray) -> FloatArray:
    """The last of some ends up to each time; minus infinity where there is none."""
    found: FloatArray = np.concatenate(([-np.inf], ends))[np.searchsorted(ends, times, "right")]
    return found
