"""Rank the legal plans of one scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import MemoryGrid
from meshplan.inputs.scenario import Scenario
from meshplan.search.alternatives import Alternative, best_with_each_degree
from meshplan.search.bound import select
from meshplan.search.evaluate import Evaluation, Screen, evaluate, pessimistic, screen, take
from meshplan.search.family import family_ids
from meshplan.search.neighbours import Neighbour
from meshplan.search.neighbours import shown as shown_value
from meshplan.search.objective import complexity, crowding, field_order
from meshplan.search.pareto import front, memory_steps
from meshplan.search.progress import Progress, untold, within
from meshplan.search.prospects import ModelTimes, Values
from meshplan.space.enumerate import Rejection
from meshplan.space.plan import Plan, PlanGrid

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
        num_evaluated: plans whose memory and closed form of the time were both evaluated; a
            quick bound ruled the others out.
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


def rank_plans(
    scenario: Scenario, *, top: int, alternatives: bool = False, progress: Progress = untold
) -> Ranking:
    """Find the best plans for a scenario.

    Enumerates the legal plans, screens them, and evaluates exactly those that can still enter
    the answer. Where several frameworks are asked about, the best plan of each that is not among
    the best families follows them.

    Args:
        scenario: model, cluster, job and what the search may choose from.
        top: how many families to return.
        alternatives: whether to look for the best plan with each other degree as well.
        progress: told how far it is.
    """

    def pick(grid: PlanGrid, memory: MemoryGrid, family: IntArray, values: Values) -> IntArray:
        crowded = crowding(memory.peak_bytes, usable_bytes=memory.usable_bytes)
        parts, field = complexity(grid) + crowded, field_order(grid)

        def best_among(among: IntArray, num_families: int) -> IntArray:
            return select(
                values, among=among, parts=parts, field=field, family=family, top=num_families
            ).index

        best = best_among(np.arange(len(grid)), top)
        others = [
            best_among(np.flatnonzero(grid.framework == code), 1)
            for code in sorted({*grid.frameworks} - {*grid.take(best).frameworks})
        ]
        others.sort(key=lambda one: float(values.exact[one[0]]))
        return np.concatenate([best, *others])

    return _search(scenario, pick, progress, alternatives=alternatives)


def pareto_plans(scenario: Scenario, *, progress: Progress = untold) -> Ranking:
    """Find the plans that no other plan beats in step time and memory together."""

    def pick(grid: PlanGrid, memory: MemoryGrid, family: IntArray, values: Values) -> IntArray:
        steps = memory_steps(memory.peak_bytes, usable_bytes=memory.usable_bytes)
        return front(values, memory=steps, field=field_order(grid))

    return _search(scenario, pick, progress)


_Pick = Callable[[PlanGrid, MemoryGrid, IntArray, Values], IntArray]
"""Plans, their memory, families and times to the places of those that are the answer."""


_SCREENED, _BOUNDED, _PICKED = 0.6, 0.75, 0.9
"""Shares of a search that are done after its steps, as they are on a large space."""


def _search(
    scenario: Scenario, pick: _Pick, progress: Progress, *, alternatives: bool = False
) -> Ranking:
    screened = screen(scenario, progress=within(progress, 0.0, _SCREENED))
    grid, memory = screened.grid, screened.memory
    if memory is None:
        return _nothing_fits(scenario, screened)
    began = perf_counter()
    times = ModelTimes(scenario, grid)
    values = Values(times, len(grid))
    screen_s = screened.elapsed_s + perf_counter() - began
    progress(_BOUNDED)
    family = family_ids(grid)
    picked = pick(grid, memory, family, values)
    progress(_PICKED)
    around = best_with_each_degree(grid, values, listed=picked) if alternatives else ()
    shown = np.array(sorted({*picked.tolist(), *(other.place for other in around)}))
    numbers = Evaluation(
        grid=grid.take(shown), memory=take(memory, shown), time=times.numbers(shown)
    )
    best = numbers.take(np.searchsorted(shown, picked))
    return Ranking(
        scenario=scenario,
        best=best,
        value=pessimistic(best.time),
        num_variants=np.bincount(family)[family[picked]],
        counts=_counts(screened, screen_s, values),
        rejected=screened.rejected,
        smallest=None,
        alternatives=_neighbours(around, numbers, shown, best.grid.plan(0))
        if alternatives
        else None,
    )


def _nothing_fits(scenario: Scenario, screened: Screen) -> Ranking:
    return Ranking(
        scenario=scenario,
        best=None,
        value=np.empty(0),
        num_variants=np.empty(0, dtype=np.int64),
        counts=_counts(screened, screened.elapsed_s),
        rejected=screened.rejected,
        smallest=evaluate(scenario, screened.smallest) if len(screened.smallest) else None,
    )


def _neighbours(
    around: Sequence[Alternative], numbers: Evaluation, shown: IntArray, best: Plan
) -> tuple[Neighbour, ...]:
    """The best plans with other degrees, with their exact numbers."""
    found = []
    for other in around:
        result = numbers.one(int(np.searchsorted(shown, other.place)))
        after = shown_value(result.grid.plan(0), other.knob)
        found.append(
            Neighbour(
                knob=other.knob,
                direction=other.direction,
                before=shown_value(best, other.knob),
                after=after,
                result=result,
            )
        )
    return tuple(found)


def _counts(screened: Screen, screen_s: float, values: Values | None = None) -> Counts:
    fits, tight = screened.num_fits, screened.num_tight
    return Counts(
        num_candidates=screened.num_candidates,
        num_legal=screened.num_legal,
        num_fits=fits,
        num_tight=tight,
        num_oom=screened.num_legal - fits - tight,
        num_evaluated=values.num_tight if values else 0,
        num_exact=values.num_exact if values else 0,
        screen_s=screen_s,
    )
