"""What is known of step times: a quick bound, the closed form, the exact time.

Each level is never above the next one and costs several times less, so that a plan is taken to the
next level only where the one before leaves it a chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshplan.cost.step import StepGrid, StepModel
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import PlanGrid

__all__ = ["ModelTimes", "StepTimes", "Values", "distinct"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_BLOCK = 1 << 14  # plans at a time: what a block needs stays in the cache
_ROUNDING = 1e-9


class StepTimes(Protocol):
    """Pessimistic step times of plans at some positions, on three levels [s]."""

    def quick(self, index: IntArray | slice) -> FloatArray:
        """A lower bound of the closed form."""
        ...

    def closed(self, index: IntArray) -> FloatArray:
        """The closed form, a lower bound of the exact time."""
        ...

    def exact(self, index: IntArray) -> FloatArray:
        """The exact time; infinite where a plan turns out to be impossible."""
        ...


class Values:
    """The value of each plan, as far as it is known, and how much work that was.

    Args:
        times: where values come from.
        num_plans: how many plans there are.

    Attributes:
        bound: never above the exact value, ``(num_plans,)``.
        exact: exact values; NaN where a plan was not taken so far, ``(num_plans,)``.
    """

    def __init__(self, times: StepTimes, num_plans: int) -> None:
        self._times = times
        self.bound = np.empty(num_plans)
        for start in range(0, num_plans, _BLOCK):
            some = slice(start, min(start + _BLOCK, num_plans))
            self.bound[some] = times.quick(some)
        self.exact = np.full(num_plans, np.nan)
        self._is_tight = np.zeros(num_plans, dtype=np.bool_)

    @property
    def num_tight(self) -> int:
        """Plans with a closed form."""
        return int(np.count_nonzero(self._is_tight))

    @property
    def num_exact(self) -> int:
        """Plans with an exact value."""
        return int(np.count_nonzero(~np.isnan(self.exact)))

    def tighten(self, index: IntArray) -> None:
        """Work out the closed form of plans that have none yet."""
        new = index[~self._is_tight[index]]
        for start in range(0, len(new), _BLOCK):
            some = new[start : start + _BLOCK]
            closed = self._times.closed(some)
            _check(self.bound[some], closed)
            self.bound[some] = closed
            self._is_tight[some] = True

    def learn(self, index: IntArray) -> FloatArray:
        """Exact values of plans; those that are not known are worked out."""
        new = index[np.isnan(self.exact[index])]
        if len(new):
            value = self._times.exact(new)
            _check(self.bound[new], value)
            self.exact[new] = value
            self.bound[new] = value
            self._is_tight[new] = True
        return self.exact[index]


def distinct(places: Sequence[IntArray]) -> IntArray:
    """All places, each once, in order."""
    return np.array(sorted({place for some in places for place in some.tolist()}), dtype=np.int64)


def _check(bound: FloatArray, value: FloatArray) -> None:
    assert np.all(bound * (1.0 - _ROUNDING) <= value), "a bound lies above the exact value"


class ModelTimes:
    """Step times of the plans of a grid by the cost model.

    Args:
        scenario: what they are plans for.
        grid: the plans.
    """

    def __init__(self, scenario: Scenario, grid: PlanGrid) -> None:
        self._model = StepModel(scenario, grid)
        self._exact = np.full(len(grid), np.nan)
        self._known: list[tuple[IntArray, StepGrid]] = []

    def quick(self, index: IntArray | slice) -> FloatArray:
        """A lower bound of the closed form."""
        return self._model.least_high(index)

    def closed(self, index: IntArray) -> FloatArray:
        """The closed form."""
        return self._model.high(index) if len(index) else np.empty(0)

    def exact(self, index: IntArray) -> FloatArray:
        """The exact time; worked out once for each plan."""
        new = index[np.isnan(self._exact[index])]
        if len(new):
            found = self._model.times(new, exact=True)
            self._known.append((new, found))
            self._exact[new] = found.high_s
        return self._exact[index]

    def numbers(self, index: IntArray) -> StepGrid:
        """The exact time, part by part, of plans whose exact time was asked for before."""
        places = np.concatenate([known for known, _ in self._known])
        order = np.argsort(places, kind="stable")
        at = order[np.searchsorted(places[order], index)]
        assert np.array_equal(places[at], index), "no exact time of this plan so far"
        found = StepGrid(
            **{
                f.name: np.concatenate([getattr(found, f.name) for _, found in self._known])[at]
                for f in fields(StepGrid)
            }
        )
        return self._model.sends_apart(found, index)
