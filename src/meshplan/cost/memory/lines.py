"""Lines of memory as tables, and their sums.

A line stays in the table of what it depends on: states of a device, or its activations. Lines are
whole bytes, and whole numbers below ``2^53`` add up exactly in any order: lines of one table are
added up in it, and only the sums of the two tables are spread to plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce

import numpy as np

from meshplan.cost.memory.shapes import FloatArray

__all__ = ["IMBALANCE", "Line", "Lines", "Space", "Total", "totals", "undominated"]

IMBALANCE = "imbalance"
"""The one line that is an allowance: it need not be used."""


class Space(Enum):
    """The two tables of a grid."""

    STATES = "states"
    ACTIVATIONS = "activations"


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes of one line.

    Attributes:
        table: whole bytes, one entry for each row of its space.
        space: what its rows are.
    """

    table: FloatArray
    space: Space


Lines = dict[str, Line]


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of an event, one part in each space; None where nothing of a space is alive."""

    states: FloatArray
    activations: FloatArray | None


def totals(events: Iterable[Lines]) -> list[Total]:
    """Add events up, without the allowance for imbalance.

    Events with the same states differ in activations alone: only the largest of these is kept.
    Events without activations are compared in the table of states.
    """
    without: list[FloatArray] = []
    alike: dict[tuple[int, ...], tuple[FloatArray, list[FloatArray]]] = {}
    for lines in events:
        states = [line.table for line in lines.values() if line.space is Space.STATES]
        moving = [
            line.table
            for code, line in lines.items()
            if line.space is Space.ACTIVATIONS and code != IMBALANCE
        ]
        if not moving:
            without.append(reduce(np.add, states))
            continue
        key = tuple(map(id, states))
        if key not in alike:
            alike[key] = reduce(np.add, states), []
        alike[key][1].append(reduce(np.add, moving))
    found = [Total(states, reduce(np.maximum, moving)) for states, moving in alike.values()]
    if without:
        found.append(Total(reduce(np.maximum, without), None))
    return found


def undominated(found: Sequence[Total]) -> list[Total]:
    """Leave out totals that another one is never below, on whichever rows the two parts meet."""
    kept: list[Total] = []
    for place, one in enumerate(found):
        others = [*kept, *found[place + 1 :]]
        if not any(_covers(other, one) for other in others):
            kept.append(one)
    return kept


def _covers(other: Total, one: Total) -> bool:
    if not (one.states <= other.states).all():
        return False
    ours = 0.0 if one.activations is None else one.activations
    theirs = 0.0 if other.activations is None else other.activations
    return bool(np.all(np.asarray(ours) <= theirs))
