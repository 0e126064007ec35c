"""Where the time of one rank goes: compute, communication, copies, idle."""

from __future__ import annotations

import numpy as np

from meshplan.diagnose.columns import DeviceEvents, RankTrace, Window
from meshplan.diagnose.intervals import Intervals, clip, intersection, length, union
from meshplan.diagnose.records import Breakdown
from meshplan.record import record

__all__ = ["Sets", "breakdown_in"]


@record(kw_only=False)
class Sets:
    """When one rank computes, communicates and copies, as interval sets.

    Attributes:
        compute: some compute kernel runs.
        communication: some communication kernel runs.
        copies: some copy or fill runs.
        overlap: both compute and communication run.
        busy: anything runs.
    """

    compute: Intervals
    communication: Intervals
    copies: Intervals
    overlap: Intervals
    busy: Intervals

    @classmethod
    def of(cls, trace: RankTrace) -> Sets:
        """Build the sets of a trace."""
        kinds = (trace.compute, trace.communication, trace.copies)
        compute, communication, copies = (union(k.start, k.end) for k in kinds)
        everything = np.concatenate((compute, communication, copies))
        return cls(
            compute=compute,
            communication=communication,
            copies=copies,
            overlap=intersection(compute, communication),
            busy=union(everything[:, 0], everything[:, 1]),
        )


def breakdown_in(trace: RankTrace, sets: Sets, window: Window) -> Breakdown:
    """The breakdown of one window, with the sets of its trace."""

    def inside(intervals: Intervals) -> float:
        return length(clip(intervals, start=window.start, end=window.end))

    communication_us = inside(sets.communication)
    return Breakdown(
        window=window,
        compute_us=inside(sets.compute),
        communication_us=communication_us,
        exposed_us=communication_us - inside(sets.overlap),
        copy_us=inside(sets.copies),
        idle_us=(window.end - window.start) - inside(sets.busy),
        num_compute_kernels=_count(trace.compute, window),
        num_communication_kernels=_count(trace.communication, window),
    )


def _count(events: DeviceEvents, window: Window) -> int:
    return int(((events.end > window.start) & (events.start < window.end)).sum())
