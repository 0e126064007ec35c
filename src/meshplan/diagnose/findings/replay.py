"""One rank again with collectives that take another time: how much shorter its steps are.

Its streams are played as they were measured. A call starts when the one before it on its stream is
over and when the compute that was launched before it is; compute that stood still until a call was
over goes on when that is over now. So traffic that nothing hides shrinks with its time, traffic
behind compute shows less or not at all, and a queue of calls moves up as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.findings.flows import ChannelKey
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.records import RankMeasures

__all__ = ["saved_us"]

FloatArray = npt.NDArray[np.float64]
_NEVER = (-np.inf, -np.inf)


def saved_us(
    rank: RankMeasures,
    factors: Mapping[ChannelKey, float],
    *,
    beside: Collection[ChannelKey] = (),
) -> float:
    """What a steady step is shorter when the calls of some channels take another time [us].

    Args:
        rank: the rank.
        factors: by channel, the factor on the time in which its calls move data; what waits for
            other ranks stays.
        beside: channels whose calls other ranks end, such as the sends of a pipeline: they move
            with the compute around them.
    """
    calls, streams = rank.calls, rank.streams
    wanted = [factors.get(key, 1.0) for key in calls.channels]
    if streams is None or not len(calls) or all(factor == 1.0 for factor in wanted):
        return 0.0
    steps = [step.time.window for step in rank.steady]
    if calls.num_left_out:  # what comes after the calls that were kept cannot be played
        steps = [step for step in steps if step.end <= calls.end[-1]] or steps[:1]
    aside = [i for i, key in enumerate(calls.channels) if key in beside]
    kept = np.flatnonzero(~np.isin(calls.channel, aside))
    played = _Replay(rank, np.array(wanted)[calls.channel], kept)
    played.run()
    saved = [played.saved_at(step.end) - played.saved_at(step.start) for step in steps]
    return max(0.0, sum(saved) / len(saved)) if saved else 0.0


class _Replay:
    """The calls of a rank in order of time, and the gaps in its compute that they end."""

    def __init__(self, rank: RankMeasures, factor: FloatArray, kept: npt.NDArray[np.int64]) -> None:
        calls, streams = rank.calls, rank.streams
        assert streams is not None
        start, end, ready = calls.start[kept], calls.end[kept], streams.ready_us[kept]
        wait, factor = np.nan_to_num(calls.wait_us[kept]), factor[kept]
        duration = end - start
        self.start, self.end = start.tolist(), end.tolist()
        self.takes = (
            np.minimum(wait, duration) + np.maximum(duration - wait, 0.0) * factor
        ).tolist()
        self.stream = streams.stream[kept].tolist()
        self.ready = np.where(np.isnan(ready), start, ready).tolist()
        self.gaps = streams.gaps.tolist()
        self.slack = measure_constant("launch_latency_us")
        self.closed: list[float] = []  # ends of gaps, and what is saved from there on
        self.saved: list[float] = []
        self.last: dict[int, tuple[float, float]] = {}  # by stream, the end of a call: then, now
        self.open: list[tuple[float, float]] = []  # the same of calls since the last gap

    def saved_at(self, time: float) -> float:
        """What compute at some time of the measured step is earlier [us]."""
        place = bisect_right(self.closed, time)
        return self.saved[place - 1] if place else 0.0

    def run(self) -> None:
        """Play all calls and gaps in order of time."""
        number, last = 0, len(self.start)
        for begun, over in self.gaps:
            while number < last and self.start[number] < over:
                self._play(number, begun)
                number += 1
            self._close(begun, over)

    def _play(self, i: int, gap: float) -> None:
        """Play one call; ``gap`` is where the next gap begins."""
        start, end = self.start[i], self.end[i]
        before, now = self.last.get(self.stream[i], _NEVER)
        if before > start + self.slack:  # what overlaps is not in one queue, whatever it states
            before, now = _NEVER
        ready = self.ready[i]
        begins = max(now, ready - self.saved_at(ready))
        held = start - max(before, ready)
        if held > self.slack:
            # neither its stream nor its data: a call on another stream that ended just before,
            # or something that is not seen
            ended = [pair for pair in self.open if gap < pair[0] <= start]
            other = max(ended, default=None)
            behind = self.saved_at(start) if other is None else other[0] - other[1]
            begins = max(begins, start - behind)
        else:
            begins += max(held, 0.0)
        over = begins + self.takes[i]
        self.last[self.stream[i]] = (end, over)
        self.open.append((end, over))

    def _close(self, begun: float, over: float) -> None:
        """End a gap: with the call that ended last in it, which compute stood still for."""
        ended = [pair for pair in self.open if begun < pair[0] <= over]
        self.open = [pair for pair in self.open if pair[0] > over]
        saved = self.saved_at(begun)
        if ended:
            end, now = max(ended)
            saved = over - max(begun - saved, now + (over - end))
        self.closed.append(over)
        self.saved.append(saved)
