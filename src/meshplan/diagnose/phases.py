"""Which phase of the step launched each kernel: forward, recompute, backward, optimizer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import DeviceEvents, RankTrace, Window
from meshplan.diagnose.intervals import (
    Intervals,
    clip,
    contains,
    difference,
    length,
    union,
)
from meshplan.diagnose.records import Phase

__all__ = ["PhaseSets", "phases_of"]


class PhaseSets:
    """When kernels of each phase run, over the whole trace, by phase and kind."""

    def __init__(self, trace: RankTrace) -> None:
        host = trace.host
        backward = union(*host.of("backward"))
        again = difference(union(*host.of("checkpoint")), backward)
        again = _join(again, union(*host.of("recompute")))
        windows = (
            ("optimizer", union(*host.of("optimizer"))),
            ("recompute", again),
            ("backward", backward),
            ("forward", union(*host.of("forward"))),
        )
        known = any(len(w) for _, w in windows[:3])
        self.names: tuple[str, ...] = ()
        self._sets: dict[tuple[str, str], Intervals] = {}
        if not known:
            return
        # what is neither backward nor optimizer is forward only where backward is known
        rest = "forward" if len(backward) and not len(windows[3][1]) else "other"
        self.names = tuple(dict.fromkeys(("forward", "recompute", "backward", "optimizer", rest)))
        for kind, events in (("compute", trace.compute), ("communication", trace.communication)):
            # what runs on the host runs where it was called
            called = events.start if trace.on_host else events.launch
            self._sort(kind, events, called, windows, rest)

    def _sort(
        self,
        kind: str,
        events: DeviceEvents,
        called: npt.NDArray[np.float64],
        windows: tuple[tuple[str, Intervals], ...],
        rest: str,
    ) -> None:
        left = ~np.isnan(called)
        for name, window in windows:
            chosen = left & contains(window, called)
            left &= ~chosen
            self._sets[name, kind] = union(events.start[chosen], events.end[chosen])
        more = union(events.start[left], events.end[left])
        self._sets[rest, kind] = _join(self._sets.get((rest, kind), np.empty((0, 2))), more)

    def of(self, name: str, kind: str) -> Intervals:
        """When kernels of a phase and kind run."""
        return self._sets.get((name, kind), np.empty((0, 2)))


def _join(a: Intervals, b: Intervals) -> Intervals:
    both = np.concatenate((a, b))
    return union(both[:, 0], both[:, 1])


def phases_of(sets: PhaseSets, window: Window) -> tuple[Phase, ...]:
    """Device time of each phase in one window; empty when no phase is known."""

    def inside(name: str, kind: str) -> float:
        return length(clip(sets.of(name, kind), start=window.start, end=window.end))

    found = (
        Phase(
            name=name,
            compute_us=inside(name, "compute"),
            communication_us=inside(name, "communication"),
        )
        for name in sets.names
    )
    return tuple(p for p in found if p.compute_us > 0 or p.communication_us > 0)
