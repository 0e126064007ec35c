"""The best plan with each other degree: what a degree is worth once all else follows it.

A plan that differs from the best one in a single knob says little: a larger micro-batch or another
split may be what the other degree lives on. So each knob is set to the next value below and above
that some fitting plan has, and the best of *all* plans with that value is looked for, among the
plans that the search has screened already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshplan.search.evaluate import Evaluation, Screen, pessimistic
from meshplan.search.family import FAMILY_FIELDS
from meshplan.search.neighbours import Knob, Neighbour, shown
from meshplan.search.objective import TIE
from meshplan.space.plan import PlanGrid, Recompute

__all__ = ["best_with_each_degree"]

_DEGREES: tuple[Knob, ...] = ("tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero")
_MOST_ROUNDS = 6
_MOST_LOOKED_AT = 2**_MOST_ROUNDS

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


def best_with_each_degree(
    screened: Screen,
    *,
    listed: IntArray,
    numbers: Evaluation,
    evaluate: Callable[[PlanGrid], Evaluation],
) -> tuple[Neighbour, ...]:
    """Find the best plan with each other value of each knob of the best plan.

    A value that a plan of the answer has is answered by the first such plan, where the knob tells
    families apart. Otherwise the plans with the value are evaluated in the order of their bounds,
    until no other can be better by more than a tie.

    Args:
        screened: all plans that fit, with the lower bounds of their values.
        listed: places in ``screened.grid`` of the plans of the answer, best first.
        numbers: their exact numbers.
        evaluate: gives exact numbers.

    Returns:
        One entry for each knob and direction in which a plan fits.
    """
    grid, best = screened.grid, numbers.grid.plan(0)
    same = grid.framework == int(best.framework)
    hunts: list[_Hunt] = []
    found: dict[tuple[Knob, int], Evaluation] = {}
    order: list[tuple[Knob, int]] = []
    for knob, direction, having in _values(grid, int(listed[0]), same):
        order.append((knob, direction))
        named = [place for place, i in enumerate(listed.tolist()) if having[i]]
        if named and knob in FAMILY_FIELDS:
            found[knob, direction] = numbers.one(named[0])
        else:
            hunts.append(_Hunt.after(knob, direction, screened.bound_s, having))
    _hunt_all(hunts, grid, evaluate)
    found |= {(hunt.knob, hunt.direction): hunt.best for hunt in hunts if hunt.best is not None}
    return tuple(
        Neighbour(
            knob=knob,
            direction=direction,
            before=shown(best, knob),
            after=shown(found[knob, direction].grid.plan(0), knob),
            result=found[knob, direction],
        )
        for knob, direction in order
    )


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


@dataclass(slots=True)
class _Hunt:
    """The search for the best plan with one value of one knob."""

    knob: Knob
    direction: int
    queue: IntArray
    bounds: FloatArray
    done: int = 0
    value: float = np.inf
    best: Evaluation | None = field(default=None)

    @classmethod
    def after(cls, knob: Knob, direction: int, bound: FloatArray, having: BoolArray) -> _Hunt:
        """Start with the plans that have the value, the lowest bounds first."""
        places = np.flatnonzero(having)
        most = min(_MOST_LOOKED_AT, len(places))
        lowest = places[np.argpartition(bound[places], most - 1)[:most]]
        queue = lowest[np.argsort(bound[lowest], kind="stable")]
        return cls(knob, direction, queue, bound[queue])

    def next(self, count: int) -> IntArray:
        """The plans to evaluate next; none when no other can win by more than a tie."""
        rest = self.bounds[self.done :]
        open_ = int(np.searchsorted(rest * (1.0 + TIE), self.value))
        return self.queue[self.done : self.done + min(count, open_)]

    def learn(self, results: Sequence[Evaluation]) -> None:
        """Take the exact numbers of the plans that were next."""
        self.done += len(results)
        for result in results:
            value = float(pessimistic(result.time)[0])
            if value < self.value or self.best is None:
                self.value, self.best = value, result


def _hunt_all(
    hunts: Sequence[_Hunt], grid: PlanGrid, evaluate: Callable[[PlanGrid], Evaluation]
) -> None:
    """Go on with all hunts together: one evaluation of many plans costs little more than of one."""
    for number in range(_MOST_ROUNDS):
        wanted = [hunt.next(2**number) for hunt in hunts]
        places = np.concatenate([np.empty(0, dtype=np.int64), *wanted])
        if not len(places):
            return
        unique, where = np.unique(places, return_inverse=True)
        results = evaluate(grid.take(unique))
        ones = [results.one(i) for i in range(len(unique))]
        start = 0
        for hunt, own in zip(hunts, wanted, strict=True):
            hunt.learn([ones[i] for i in where[start : start + len(own)].tolist()])
            start += len(own)
