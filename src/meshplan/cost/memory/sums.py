"""Totals of the events of a step, at rows of the two tables of memory.

All lines are whole bytes, so that they may be added in any order: what all ways to recompute share
is added up, and its largest found, before it meets what they do not share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.lines import IMBALANCE, Lines, Space
from meshplan.cost.memory.records import Event
from meshplan.cost.memory.shapes import FloatArray, rounded
from meshplan.cost.memory.stage import LOSS_EVENTS

__all__ = ["Sums"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_EVEN_EVENTS = (Event.BACKWARD_END, Event.REDUCTION, Event.OPTIMIZER, Event.LOADING)
"""When no expert works."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class _Total:
    """The largest of some events that hold the same of what depends on what is recomputed.

    Attributes:
        by_mode: that, ``(num_activation_rows, num_modes)``; None where there is nothing.
        parts: the rest of each event.
    """

    by_mode: FloatArray | None
    parts: tuple[_Part, ...]

    def at(self, states: IntArray, moving: IntArray) -> FloatArray:
        """Bytes at rows of the two tables, ``(n, num_modes)`` or ``(n, 1)``."""
        shared = reduce(np.maximum, [part.at(states, moving) for part in self.parts])[:, None]
        if self.by_mode is None:
            return shared
        total = self.by_mode.take(moving, axis=0)
        total += shared
        return total


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
        self._even = even if imbalance else _undominated([*even, *working])
        self._uneven = _undominated(working) if imbalance else []

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
        even = _largest(self._even, states, moving)
        if self._imbalance is None:
            return even, even + rounded(share * even)
        most = _largest(self._uneven, states, moving)
        uneven = most + rounded(share * most) + self._imbalance.take(moving, axis=0)
        return np.maximum(even, most), np.maximum(even + rounded(share * even), uneven)


def _largest(totals: Sequence[_Total], states: IntArray, moving: IntArray) -> FloatArray:
    return reduce(np.maximum, [total.at(states, moving) for total in totals])


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


def _undominated(totals: Sequence[_Total]) -> list[_Total]:
    """Leave out totals that another one is never below, on whichever rows the tables meet."""
    kept: list[_Total] = []
    for place, one in enumerate(totals):
        others = [*kept, *totals[place + 1 :]]
        if not any(_covers(other, one) for other in others):
            kept.append(one)
    return kept


def _covers(other: _Total, one: _Total) -> bool:
    parts = all(
        any((mine.states <= theirs.states).all() and _below(mine, theirs) for theirs in other.parts)
        for mine in one.parts
    )
    return parts and _no_more(one.by_mode, other.by_mode)


def _below(one: _Part, other: _Part) -> bool:
    return _no_more(one.activations, other.activations)


def _no_more(one: FloatArray | None, other: FloatArray | None) -> bool:
    ours = np.zeros(1) if one is None else one
    return bool((ours <= (0.0 if other is None else other)).all())
