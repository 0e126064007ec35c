"""Totals of the events of a step, at rows of the two tables of memory.

All lines are whole bytes, so that they may be added in any order: what all ways to recompute share
is added up, and its largest found, before it meets what they do not share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.lines import IMBALANCE, Lines, Space
from meshplan.cost.memory.records import Event
from meshplan.cost.memory.shapes import FloatArray, rounded
from meshplan.cost.memory.stage import LOSS_EVENTS
from meshplan.record import record

__all__ = ["Sums"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_EVEN_EVENTS = (Event.BACKWARD_END, Event.REDUCTION, Event.OPTIMIZER, Event.LOADING)
"""When no expert works."""


@record(kw_only=False)
class _Part:
    """What an event holds whatever is recomputed.

    Attributes:
        states: ``(num_state_rows,)``.
        activations: ``(num_activation_rows,)``; None where there are none.
    """

    states: FloatArray
    activations: FloatArray | None

    def at(self, states: IntArray, moving: IntArray) -> FloatArray:
        """Bytes at rows of the two tables."""
        total = self.states[states]
        if self.activations is not None:
            total += self.activations[moving]
        return total


@record(kw_only=False)
class _Total:
    """The largest of some events that hold the same of what depends on what is recomputed.

    Attributes:
        by_mode: that, ``(num_activation_rows, num_modes)``; None where there is nothing.
        parts: the rest of each event.
    """

    by_mode: FloatArray | None
    parts: tuple[_Part, ...]

    def shared(self, states: IntArray, moving: IntArray) -> FloatArray:
        """What no way to recompute changes, at rows of the two tables, ``(n,)``."""
        return reduce(np.maximum, [part.at(states, moving) for part in self.parts])

    def whole(self, shared: FloatArray, moving: IntArray) -> FloatArray:
        """All of it, ``(n, num_modes)`` or ``(n, 1)``."""
        if self.by_mode is None:
            return shared[:, None]
        total = self.by_mode.take(moving, axis=0)
        total += shared[:, None]
        return total


class _Largest:
    """The largest of some totals."""

    def __init__(self, totals: Sequence[_Total]) -> None:
        self._totals = totals
        self._covers: dict[tuple[int, int], bool] = {}

    def at(self, states: IntArray, moving: IntArray) -> FloatArray:
        """Bytes at rows of the two tables, ``(n, num_modes)`` or ``(n, 1)``.

        A total that another one is never below on these rows is left out, which most are: only
        the last device of a pipeline has a loss, only the first an embedding.
        """
        shared = [total.shared(states, moving) for total in self._totals]
        left = list(range(len(shared)))
        for place in range(len(shared)):
            others = [other for other in left if other != place]
            if any(
                (shared[place] <= shared[other]).all() and self._is_covered(place, other)
                for other in others
            ):
                left = others
        return reduce(
            np.maximum, [self._totals[place].whole(shared[place], moving) for place in left]
        )

    def _is_covered(self, place: int, other: int) -> bool:
        """Whether what depends on what is recomputed is nowhere more than that of another total."""
        found = self._covers.get((place, other))
        if found is None:
            ours, theirs = self._totals[place].by_mode, self._totals[other].by_mode
            # bytes are never below zero
            found = ours is None or (theirs is not None and bool((ours <= theirs).all()))
            self._covers[place, other] = found
        return found


class Sums:
    """Totals of the events of devices.

    Args:
        lines: of each event, see :func:`~meshplan.cost.memory.stage.event_lines`.
        head: which rows of the activations belong to devices with the head.
    """

    def __init__(self, lines: Mapping[Event, Lines], head: BoolArray) -> None:
        uneven = (Event.FORWARD, Event.BACKWARD)
        imbalance = lines[Event.FORWARD].get(IMBALANCE)
        working = [
            *_totals(lines[event] for event in uneven),
            *_totals((lines[event] for event in LOSS_EVENTS), only=head),
        ]
        even = _totals(lines[event] for event in _EVEN_EVENTS)
        self._imbalance = None if imbalance is None else imbalance.table
        self._even = _Largest(even if imbalance else [*even, *working])
        self._uneven = _Largest(working)

    def of(
        self, states: IntArray, moving: IntArray, share: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What devices need for certain at their fullest, and with their allowances.

        Fragmentation grows with the total, so that of the events with the same allowance for
        imbalance the largest is the worst.

        Args:
            states: row of each device among the states, ``(n,)``.
            moving: its row among the activations, ``(n,)``.
            share: fragmentation as a fraction, ``(n, 1)``.

        Returns:
            Bytes, ``(n, num_modes)`` or ``(n, 1)`` each.
        """
        even = self._even.at(states, moving)
        if self._imbalance is None:
            return even, even + rounded(share * even)
        most = self._uneven.at(states, moving)
        uneven = most + rounded(share * most) + self._imbalance.take(moving, axis=0)
        return np.maximum(even, most), np.maximum(even + rounded(share * even), uneven)


def _totals(events: Iterable[Lines], *, only: BoolArray | None = None) -> list[_Total]:
    """Add events up, without the allowance for imbalance.

    Args:
        events: lines of each.
        only: rows of the activations to which the events happen.
    """
    alike: dict[tuple[int, ...], tuple[list[FloatArray], dict[object, _Part]]] = {}
    for lines in events:
        states = [line.table for line in lines.values() if line.space is Space.STATES]
        moving = [
            line.table
            for code, line in lines.items()
            if line.space is Space.ACTIVATIONS and code != IMBALANCE
        ]
        by_mode = [table for table in moving if table.shape[1] > 1]
        shared = [table[:, 0] for table in moving if table.shape[1] == 1]
        if only is not None:
            shared = [np.where(only, 0.0, -np.inf), *shared]
        activations = reduce(np.add, shared) if shared else None
        key = None if activations is None else tuple(map(id, states))
        _, parts = alike.setdefault(tuple(map(id, by_mode)), (by_mode, {}))
        seen = parts.get(key)
        parts[key] = (
            _Part(reduce(np.add, states), activations)
            if seen is None
            else _larger(seen, states, activations)
        )
    return [
        _Total(reduce(np.add, by_mode) if by_mode else None, tuple(parts.values()))
        for by_mode, parts in alike.values()
    ]


def _larger(part: _Part, states: Sequence[FloatArray], activations: FloatArray | None) -> _Part:
    """The larger of two parts: of the same states, or without activations."""
    if part.activations is None or activations is None:
        return _Part(np.maximum(part.states, reduce(np.add, states)), None)
    return _Part(part.states, np.maximum(part.activations, activations))
