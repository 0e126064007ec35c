"""The device-bound step of a rank: how long it is with a host that launches everything at once.

Compute and calls are taken in the order in which the host launched them, each as long as it was
measured to move data or compute, and none waits for its launch. A call waits for its stream and for
the compute before it. Compute waits for the calls inside its passes (tensor, context and expert
parallelism) unless they ran beside it; for parameters that are gathered ahead as far ahead as the
step begins with gathers, and for these where it was seen to wait for them; and, where the optimizer
begins, for all traffic that ran beside compute or serves replicas.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.findings.flows import ChannelKey
from meshplan.diagnose.records import Axis, RankMeasures

__all__ = ["device_bound_step_us"]

FloatArray = npt.NDArray[np.float64]
_GATHER = ("dp", "all_gather")


def device_bound_step_us(rank: RankMeasures, axes: Mapping[ChannelKey, Axis]) -> float | None:
    """Mean time of a steady step without any wait for the host [us].

    Args:
        rank: the rank.
        axes: what each channel serves.

    Returns:
        Compute, and traffic that shows beside it; None where launches are not known or calls were
        left out.
    """
    streams, calls = rank.streams, rank.calls
    if streams is None or calls.num_left_out or np.isnan(streams.launch).any():
        return None
    played = [
        _Replay(rank, axes, number).run()
        for number, step in enumerate(rank.steps)
        if not step.warm_up
    ]
    return float(np.mean(played)) if played else None


class _Replay:
    """The calls of one step in the order of the host."""

    def __init__(self, rank: RankMeasures, axes: Mapping[ChannelKey, Axis], step: int) -> None:
        calls, streams = rank.calls, rank.streams
        assert streams is not None
        own = np.flatnonzero(calls.step == step)
        own = own[np.argsort(streams.launch[own], kind="stable")]
        moves = calls.end - calls.start - np.nan_to_num(calls.wait_us)
        self.takes = np.maximum(moves[own], 0.0).tolist()
        self.stream = streams.stream[own].tolist()
        begun, over = streams.work_us[step].tolist()
        self.work = over - begun
        self.closing = float(np.clip(streams.closing_us[step] - begun, 0.0, self.work))
        self.ahead = np.clip(streams.ahead_us[own] - begun, 0.0, self.work).tolist()
        serves = [(axes.get(key, "unknown"), key[2]) for key in calls.channels]
        self.serves = [serves[channel] for channel in calls.channel[own].tolist()]
        hidden = calls.exposed_us < (calls.end - calls.start) / 2
        self.hidden = hidden[own].tolist()
        self.clock = self.done = self.behind = 0.0
        self.gathered: list[float] = []
        self.needed = [place - begun for place in _needed(rank)[own].tolist()]
        self.due: list[tuple[float, float]] = []

    def run(self) -> float:
        """Play the step."""
        first = [one for one, ahead in zip(self.serves, self.ahead, strict=True) if ahead <= 0]
        early = max(0, sum(one == _GATHER for one in first) - 1)
        free: dict[int, float] = {}
        needed = 0
        for stream, takes, ahead, (axis, kind), hidden, place in zip(
            self.stream,
            self.takes,
            self.ahead,
            self.serves,
            self.hidden,
            self.needed,
            strict=True,
        ):
            if ahead > self.done:
                needed = self._wait(needed, early)
                self._compute(ahead)
            over = max(self.clock, free.get(stream, 0.0)) + takes
            free[stream] = over
            if axis != "dp" and not hidden:
                self.clock = over
                continue
            self.behind = max(self.behind, over)
            if (axis, kind) == _GATHER:
                known = ahead <= 0 <= place
                self.gathered.append(0.0 if known else over)
                self.due += [(place, over)] if known else []
        self._wait(needed, early)
        self._compute(self.work)
        return max(self.clock, self.behind)

    def _wait(self, needed: int, early: int) -> int:
        """Wait for gathers, all but the last few; return how many were waited for by now."""
        wanted = max(needed, len(self.gathered) - early)
        self.clock = max([self.clock, *self.gathered[needed:wanted]])
        return wanted

    def _compute(self, until: float) -> None:
        """Compute up to some place in the work of the step."""
        if self.done <= self.closing < until:
            self.clock = max(self.clock + self.closing - self.done, self.behind)
            self.done = self.closing
        while self.due and self.due[0][0] < until:
            place, over = self.due.pop(0)
            self.clock = max(self.clock + max(0.0, place - self.done), over)
            self.done = max(self.done, place)
        self.clock += until - self.done
        self.done = until


def _needed(rank: RankMeasures) -> FloatArray:
    """Compute before each call's data was waited for [us], minus infinity where none was seen to.

    Of the calls that end in a gap it is the last one.
    """
    calls, streams = rank.calls, rank.streams
    assert streams is not None
    found = np.full(len(calls), -np.inf)
    order = np.argsort(calls.end, kind="stable")
    last = np.searchsorted(calls.end[order], streams.gaps[:, 1], side="right") - 1
    inside = (last >= 0) & (calls.end[order][last] > streams.gaps[:, 0])
    found[order[last[inside]]] = streams.resumes_us[inside]
    return found
