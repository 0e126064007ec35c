"""The best plan with each other degree: what a degree is worth once all else follows it.

A plan that differs from the best one in a single knob says little: a larger micro-batch or another
split may be what the other degree lives on. So each knob is set to the next value below and above
that some fitting plan has, and the best of *all* plans with that value is looked for, among the
plans that the search has screened already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.record import record
from meshplan.search.family import FAMILY_FIELDS
from meshplan.search.neighbours import Knob
from meshplan.search.objective import TIE
from meshplan.search.prospects import Values, distinct
from meshplan.space.plan import PlanGrid, Recompute

__all__ = ["Alternative", "best_with_each_degree"]

_DEGREES: tuple[Knob, ...] = ("tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero")
_ROUNDS = (4, 12, 48)  # plans that are evaluated for each value; many cost little more than one
_MOST_LOOKED_AT = sum(_ROUNDS)
_MOST_TIGHTENED = 4 * _MOST_LOOKED_AT

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


@record(kw_only=False)
class Alternative:
    """The best plan with another value of one knob.

    Attributes:
        knob: what differs from the best plan.
        direction: -1 for less of it, 1 for more.
        place: position of the plan in the grid.
    """

    knob: Knob
    direction: int
    place: int


def best_with_each_degree(
    grid: PlanGrid, values: Values, *, listed: IntArray
) -> tuple[Alternative, ...]:
    """Find the best plan with each other value of each knob of the best plan.

    A value that a plan of the answer has is answered by the first such plan, where the knob tells
    families apart. Otherwise the plans with the value are evaluated in the order of their bounds,
    until no other can be better by more than a tie.

    Args:
        grid: all plans that fit.
        values: what is known of their values; it learns what is worked out.
        listed: places in ``grid`` of the plans of the answer, best first.

    Returns:
        One entry for each knob and direction in which a plan fits.
    """
    same = grid.framework == grid.framework[listed[0]]
    found: dict[tuple[Knob, int], int] = {}
    hunts: dict[tuple[Knob, int], IntArray] = {}
    order: list[tuple[Knob, int]] = []
    for knob, direction, having in _values(grid, int(listed[0]), same):
        order.append((knob, direction))
        named = [i for i in listed.tolist() if having[i]]
        if named and knob in FAMILY_FIELDS:
            found[knob, direction] = named[0]
        else:
            hunts[knob, direction] = _lowest(values.bound, np.flatnonzero(having), _MOST_TIGHTENED)
    if hunts:
        values.tighten(distinct(list(hunts.values())))
        winners = _hunt_all([_Hunt.among(queue, values.bound) for queue in hunts.values()], values)
        found |= dict(zip(hunts, winners, strict=True))
    return tuple(Alternative(knob, step, found[knob, step]) for knob, step in order)


def _values(grid: PlanGrid, best: int, same: BoolArray) -> Iterator[tuple[Knob, int, BoolArray]]:
    """Which plans have the next lower and the next higher value of each knob."""
    for knob in _DEGREES:
        column: IntArray = getattr(grid, knob)
        now = int(column[best])
        below, above = same & (column < now), same & (column > now)
        if below.any():
            yield knob, -1, same & (column == int(column[below].max()))
        if above.any():
            yield knob, 1, same & (column == int(column[above].min()))
    full = (grid.recompute == int(Recompute.FULL)) & (grid.recompute_layers == 0)
    for direction, mode in ((-1, grid.recompute == int(Recompute.NONE)), (1, full)):
        having = same & mode
        if having.any() and not having[best]:
            yield "recompute", direction, having


def _lowest(bound: FloatArray, places: IntArray, most: int) -> IntArray:
    """The places with the lowest bounds, in no order."""
    if len(places) <= most:
        return places
    return places[np.argpartition(bound[places], most - 1)[:most]]


@dataclass(slots=True)
class _Hunt:
    """The search for the best plan with one value of one knob."""

    queue: IntArray
    bounds: FloatArray
    done: int = 0
    value: float = np.inf
    best: int = -1

    @classmethod
    def among(cls, places: IntArray, bound: FloatArray) -> _Hunt:
        """Start with the lowest bounds."""
        lowest = _lowest(bound, places, _MOST_LOOKED_AT)
        queue = lowest[np.lexsort((lowest, bound[lowest]))]
        return cls(queue, bound[queue])

    def next(self, count: int) -> IntArray:
        """The plans to evaluate next; none when no other can win by more than a tie."""
        rest = self.bounds[self.done :]
        open_ = int(np.searchsorted(rest * (1.0 + TIE), self.value))
        return self.queue[self.done : self.done + min(count, open_)]

    def learn(self, places: IntArray, values: FloatArray) -> None:
        """Take the exact values of the plans that were next."""
        self.done += len(places)
        if len(places) and values.min() < self.value:
            self.value = float(values.min())
            self.best = int(places[np.argmin(values)])


def _hunt_all(hunts: Sequence[_Hunt], values: Values) -> list[int]:
    """Go on with all hunts together: one evaluation of many plans costs little more than of one."""
    for count in _ROUNDS:
        wanted = [hunt.next(count) for hunt in hunts]
        places = distinct(wanted)
        if not len(places):
            break
        values.learn(places)
        for hunt, own in zip(hunts, wanted, strict=True):
            hunt.learn(own, values.exact[own])
    return [hunt.best for hunt in hunts]
