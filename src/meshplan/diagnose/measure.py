"""Where the time of one rank goes: compute, communication, copies, idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshplan.diagnose.intervals import Intervals, clip, intersection, length, union
from meshplan.diagnose.trace import DeviceEvents, RankTrace, Window

__all__ = ["Breakdown", "breakdown", "breakdowns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Time of one rank in one window [us].

    Attributes:
        window: the window.
        compute_us: some compute kernel runs.
        communication_us: some communication kernel runs.
        exposed_us: communication runs and compute does not.
        copy_us: some copy or fill runs.
        idle_us: nothing runs.
        num_compute_kernels: compute kernels that touch the window.
        num_communication_kernels: communication kernels that touch the window.
    """

    window: Window
    compute_us: float
    communication_us: float
    exposed_us: float
    copy_us: float
    idle_us: float
    num_compute_kernels: int
    num_communication_kernels: int

    @property
    def wall_us(self) -> float:
        """Length of the window."""
        return self.window.end - self.window.start

    @property
    def efficiency(self) -> float | None:
        """Share of compute in compute plus communication; None when neither runs."""
        total = self.compute_us + self.communication_us
        return self.compute_us / total if total > 0 else None


def breakdowns(trace: RankTrace) -> tuple[Breakdown, ...]:
    """One breakdown for each marked step, in order."""
    sets = _Sets.of(trace)
    return tuple(_breakdown(trace, sets, step) for step in trace.steps)


def breakdown(trace: RankTrace, window: Window | None = None) -> Breakdown | None:
    """The breakdown of one window, by default of the whole trace; None without device events."""
    window = window or trace.span
    return None if window is None else _breakdown(trace, _Sets.of(trace), window)


@dataclass(frozen=True, slots=True)
class _Sets:
    compute: Intervals
    communication: Intervals
    copies: Intervals
    overlap: Intervals
    busy: Intervals

    @classmethod
    def of(cls, trace: RankTrace) -> _Sets:
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


def _breakdown(trace: RankTrace, sets: _Sets, window: Window) -> Breakdown:
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
