"""Rank the legal plans of one scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.cost.step import step_time
from meshplan.inputs.scenario import Scenario
from meshplan.search.alternatives import best_with_each_degree
from meshplan.search.bound import select
from meshplan.search.evaluate import Evaluation, Screen, evaluate, pessimistic, screen
from meshplan.search.family import family_ids
from meshplan.search.neighbours import Neighbour
from meshplan.search.objective import complexity, crowding, field_order
from meshplan.search.pareto import front, memory_steps
from meshplan.space.enumerate import Rejection
from meshplan.space.plan import PlanGrid

__all__ = ["Counts", "Ranking", "pareto_plans", "rank_plans"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much was looked at.

    Attributes:
        num_candidates: combinations of axis values, counted without building them.
        num_legal: those that no rule refuses.
        num_fits: legal plans that fit.
        num_tight: legal plans that fit only just.
        num_oom: legal plans that run out of memory.
        num_evaluated: plans whose memory and time were both evaluated.
        num_exact: plans whose pipeline was simulated event by event.
        screen_s: time spent on memory verdicts and bounds [s].
    """

    num_candidates: int
    num_legal: int
    num_fits: int
    num_tight: int
    num_oom: int
    num_evaluated: int
    num_exact: int
    screen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best plans of one scenario, best first, one per family.

    Attributes:
        scenario: what they are plans for.
        best: exact numbers of the plans, in order.
        value: what they are ranked by: pessimistic step time [s].
        num_variants: how many plans of the same family fit, itself included.
        counts: how much was looked at.
        rejected: what was refused, by rule.
        smallest: where nothing fits, the legal plan that needs the least memory, if any is legal.
        alternatives: the best plan with each other degree, where they were asked for.
    """

    scenario: Scenario
    best: Evaluation | None
    value: FloatArray
    num_variants: IntArray
    counts: Counts
    rejected: Mapping[str, Rejection]
    smallest: Evaluation | None
    alternatives: tuple[Neighbour, ...] | None = None

    def __len__(self) -> int:
        return 0 if self.best is None else len(self.best)


def rank_plans(scenario: Scenario, *, top: int, alternatives: bool = False) -> Ranking:
    """Find the best plans for a scenario.

    Enumerates the legal plans, screens them, and evaluates exactly those that can still enter
    the answer. Where several frameworks are asked about, the best plan of each that is not among
    the best families follows them.

    Args:
        scenario: model, cluster, job and what the search may choose from.
        top: how many families to return.
        alternatives: whether to look for the best plan with each other degree as well.
    """

    def pick(screened: Screen, exact: _Exact) -> IntArray:
        grid, usable = screened.grid, scenario.cluster.device.usable_bytes
        contest = _Contest(
            bound=screened.bound_s,
            parts=complexity(grid) + crowding(screened.peak_bytes, usable_bytes=usable),
            field=field_order(grid),
            family=family_ids(grid),
        )
        best = contest.select(np.arange(len(grid)), top=top, exact=exact)
        others = [
            contest.select(np.flatnonzero(grid.framework == code), top=1, exact=exact)
            for code in np.setdiff1d(grid.framework, grid.framework[best]).tolist()
        ]
        others.sort(key=lambda one: float(exact(one)[0]))
        return np.concatenate([best, *others])

    return _search(scenario, pick, alternatives=alternatives)


@dataclass(frozen=True, slots=True)
class _Contest:
    """What the plans of a screen compete with; arrays ``(num_plans,)``."""

    bound: FloatArray
    parts: IntArray
    field: IntArray
    family: IntArray

    def select(self, among: IntArray, *, top: int, exact: _Exact) -> IntArray:
        """The best plan of each of the best families among some of the plans."""
        chosen = select(
            bound=self.bound[among],
            parts=self.parts[among],
            field=self.field[among],
            family=self.family[among],
            top=top,
            evaluate=lambda index: exact(among[index]),
        )
        return among[chosen.index]


def pareto_plans(scenario: Scenario) -> Ranking:
    """Find the plans that no other plan beats in step time and memory together."""

    def pick(screened: Screen, exact: _Exact) -> IntArray:
        usable = scenario.cluster.device.usable_bytes
        return front(
            bound=screened.bound_s,
            memory=memory_steps(screened.peak_bytes, usable_bytes=usable),
            field=field_order(screened.grid),
            evaluate=exact,
        )

    return _search(scenario, pick)


class _Exact:
    """Exact pessimistic step times on demand, counted."""

    def __init__(self, scenario: Scenario, grid: PlanGrid) -> None:
        self._scenario, self._grid = scenario, grid
        self.num_exact = 0

    def __call__(self, index: IntArray) -> FloatArray:
        self.num_exact += len(index)
        return pessimistic(step_time(self._scenario, self._grid.take(index), exact=True))

    def numbers(self, grid: PlanGrid) -> Evaluation:
        """All exact numbers of some plans, counted too."""
        self.num_exact += len(grid)
        return evaluate(self._scenario, grid)


_Pick = Callable[[Screen, _Exact], IntArray]


def _search(scenario: Scenario, pick: _Pick, *, alternatives: bool = False) -> Ranking:
    screened = screen(scenario)
    exact = _Exact(scenario, screened.grid)
    best: Evaluation | None = None
    around: tuple[Neighbour, ...] | None = None
    num_variants = np.empty(0, dtype=np.int64)
    if len(screened.grid):
        picked = pick(screened, exact)
        family = family_ids(screened.grid)
        num_variants = np.bincount(family)[family[picked]]
        best = evaluate(scenario, screened.grid.take(picked)) if len(picked) else None
        if best is not None and alternatives:
            around = best_with_each_degree(
                screened, listed=picked, numbers=best, evaluate=exact.numbers
            )
    smallest = None
    if best is None and len(screened.smallest):
        smallest = evaluate(scenario, screened.smallest)
    return Ranking(
        scenario=scenario,
        best=best,
        value=pessimistic(best.time) if best else np.empty(0),
        num_variants=num_variants,
        counts=_counts(screened, exact.num_exact),
        rejected=screened.rejected,
        smallest=smallest,
        alternatives=around,
    )


def _counts(screened: Screen, num_exact: int) -> Counts:
    fits, tight = screened.num_fits, screened.num_tight
    return Counts(
        num_candidates=screened.num_candidates,
        num_legal=screened.num_legal,
        num_fits=fits,
        num_tight=tight,
        num_oom=screened.num_legal - fits - tight,
        num_evaluated=len(screened.grid),
        num_exact=num_exact,
        screen_s=screened.elapsed_s,
    )
