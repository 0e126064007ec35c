"""Many pipelines played at once.

All actions of one level, of all pipelines together, start when the later of two others is over.
A step of NumPy does a level, so that a hundred pipelines cost little more than one; the sums are
those of a play action by action, in the same order, so that the times are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.graph import ActionGraph
from meshplan.record import record

__all__ = ["Cast", "Played", "play"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_WIDTH = 4  # plans of one graph that are played side by side


@record
class Cast:
    """Plans whose pipelines have the same graph.

    Attributes:
        graph: who waits for whom.
        durations: by kind and virtual stage, ``(4 * pp * vpp, num_plans)`` [s].
        send_s: moving one activation or its gradient to the neighbouring device [s],
            ``(num_plans,)``.
        held_s: how long the sending device waits for that [s], ``(num_plans,)``.
    """

    graph: ActionGraph
    durations: FloatArray
    send_s: FloatArray
    held_s: FloatArray

    def __len__(self) -> int:
        return len(self.send_s)

    def rows(self) -> Iterator[Cast]:
        """The plans, :data:`_WIDTH` at a time; the last one is repeated to fill the last row."""
        for start in range(0, len(self), _WIDTH):
            index = np.minimum(np.arange(start, start + _WIDTH), len(self) - 1)
            yield Cast(
                graph=self.graph,
                durations=self.durations[:, index],
                send_s=self.send_s[index],
                held_s=self.held_s[index],
            )


@record(kw_only=False)
class Played:
    """When the actions of a cast end."""

    _ends: FloatArray
    _places: list[IntArray]
    _num_plans: int

    def ends(self, actions: npt.NDArray[np.integer]) -> FloatArray:
        """End times of some actions of the graph [s], ``(len(actions), num_plans)``."""
        rows = [self._ends.take(places[actions], axis=0) for places in self._places]
        return np.concatenate(rows, axis=1)[:, : self._num_plans]


def play(casts: Sequence[Cast]) -> list[Played]:
    """Run all programs to their end."""
    rows = [list(cast.rows()) for cast in casts]
    ends, places = _play([row for own in rows for row in own])
    left = iter(places)
    return [
        Played(ends, [next(left) for _ in own], len(cast))
        for cast, own in zip(casts, rows, strict=True)
    ]


def _play(rows: Sequence[Cast]) -> tuple[FloatArray, list[IntArray]]:
    """Play rows of :data:`_WIDTH` plans each, all their actions sorted by level.

    Returns:
        End times of all actions, ``(num_actions, _WIDTH)`` [s], and where those of each row are.
    """
    graphs = [row.graph for row in rows]
    sizes = np.array([len(graph) for graph in graphs])
    first = (np.cumsum(sizes) - sizes).tolist()
    level = np.concatenate([graph.level for graph in graphs])
    order = np.argsort(level, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    own = 2 * np.repeat(np.arange(len(rows)), sizes)[order]

    def linked(name: str) -> IntArray:
        """Where an action finds the end of another one of its graph."""
        numbers = [getattr(g, name) + start for g, start in zip(graphs, first, strict=True)]
        places: IntArray = place[np.concatenate(numbers)[order]]
        return places

    def lags(flag: str, seconds: FloatArray) -> FloatArray:
        """What an action waits after the end of another one [s]."""
        flags = np.concatenate([getattr(graph, flag) for graph in graphs])
        either = np.stack([np.zeros_like(seconds), seconds], axis=1).reshape(-1, _WIDTH)
        waits: FloatArray = either.take(own + flags[order], axis=0)
        return waits

    before, needs = linked("before"), linked("needs")
    hops = lags("hop", np.stack([row.send_s for row in rows]))
    held = np.stack([row.held_s for row in rows])
    holds = lags("held", held) if held.any() else None
    durations = _durations(rows, order)
    ends = np.zeros(durations.shape)
    for start, stop in pairwise(np.cumsum(np.bincount(level)).tolist()):
        now = slice(start, stop)
        free, there = ends.take(before[now], axis=0), ends.take(needs[now], axis=0)
        there += hops[now]
        if holds is not None:
            free += holds[now]
        np.maximum(free, there, out=there)
        np.add(there, durations[now], out=ends[now])
    return ends, [place[start : start + size] for start, size in zip(first, sizes, strict=True)]


def _durations(rows: Sequence[Cast], order: IntArray) -> FloatArray:
    """Durations of all actions in an order [s], ``(num_actions, _WIDTH)``."""
    start, which = 0, []
    for row in rows:
        which.append(row.graph.duration + start)
        start += len(row.durations)
    values = np.concatenate([row.durations for row in rows])
    return values.take(np.concatenate(which)[order], axis=0)
