"""Many pipelines played at once.

All actions of one level, of all pipelines together, start when the later of two others is over.
A step of NumPy does a level, so that a hundred pipelines cost little more than one; the sums are
those of a play action by action, in the same order, so that the times are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.graph import ActionGraph

__all__ = ["Cast", "play"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
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


class _Stage:
    """Where the actions of all plans stand: level by level, those of one cast side by side.

    A node is an action of a graph, a cell that of one plan.
    """

    def __init__(self, casts: Sequence[Cast]) -> None:
        self._sizes = np.array([len(cast.graph) for cast in casts])
        self._widths = np.array([len(cast) for cast in casts])
        self._first_node = np.cumsum(self._sizes) - self._sizes
        level = np.concatenate([cast.graph.level for cast in casts])
        order = np.argsort(level, kind="stable")
        width = np.repeat(self._widths, self._sizes)[order]
        borders = np.append(0, np.cumsum(width))
        self.num_cells = int(borders[-1])
        self.levels: list[int] = borders[np.cumsum(np.bincount(level))].tolist()
        self._cell = np.empty(len(level), dtype=np.int64)
        self._cell[order] = borders[:-1]
        self._node = np.repeat(order, width)
        self._column = np.arange(self.num_cells) - self._cell[self._node]
        first_plan = np.cumsum(self._widths) - self._widths
        self.plan = self._columns_from(np.repeat(first_plan, self._sizes))

    def spread(self, nodes: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """Give each cell what its node has."""
        return nodes[self._node]

    def _columns_from(self, first: IntArray) -> IntArray:
        """Count on from the first column of each node."""
        cells: IntArray = self.spread(first) + self._column
        return cells

    def cells(self, nodes: Sequence[npt.NDArray[np.int32]]) -> IntArray:
        """For each cell the one of its own plan at a node of its graph."""
        pairs = zip(nodes, self._first_node.tolist(), strict=True)
        return self._columns_from(self._cell[np.concatenate([own + first for own, first in pairs])])

    def durations(self, casts: Sequence[Cast]) -> FloatArray:
        """Duration of each cell [s]."""
        flat, first, start = [], [], 0
        for cast in casts:
            flat.append(cast.durations.ravel())
            first.append(start + cast.graph.duration.astype(np.int64) * len(cast))
            start += cast.durations.size
        values: FloatArray = np.concatenate(flat)[self._columns_from(np.concatenate(first))]
        return values

    def by_cast(self, cells: FloatArray) -> list[FloatArray]:
        """The values of each cast in the order of its graph, plan beside plan."""
        parts = []
        for first, size, width in zip(self._first_node, self._sizes, self._widths, strict=True):
            rows = self._cell[first : first + size, None]
            parts.append(cells[rows + np.arange(width)])
        return parts


def play(casts: Sequence[Cast]) -> list[FloatArray]:
    """Run all programs to their end.

    Returns:
        For each cast the end times of its actions, in the order of its graph,
        ``(num_actions, num_plans)`` [s].
    """
    stage = _Stage(casts)
    links = np.stack(
        [
            stage.cells([cast.graph.before for cast in casts]),
            stage.cells([cast.graph.needs for cast in casts]),
        ]
    )
    lags = np.zeros(links.shape)
    held = np.concatenate([cast.held_s for cast in casts])
    if held.any():
        told = np.concatenate([cast.graph.held for cast in casts])
        lags[0] = stage.spread(told) * held[stage.plan]
    hop = np.concatenate([cast.graph.hop for cast in casts])
    lags[1] = stage.spread(hop) * np.concatenate([cast.send_s for cast in casts])[stage.plan]
    durations = stage.durations(casts)
    ends = np.zeros(stage.num_cells)
    for first, last in pairwise(stage.levels):
        ready = ends.take(links[:, first:last])
        ready += lags[:, first:last]
        np.maximum(ready[0], ready[1], out=ready[0])
        np.add(ready[0], durations[first:last], out=ends[first:last])
    return stage.by_cast(ends)
