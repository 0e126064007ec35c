"""Rank the legal plans of one scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import ScreenedMemory
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.alternatives import Alternative, best_with_each_degree
from meshplan.search.bound import select
from meshplan.search.evaluate import Evaluation, Screen, evaluate, pessimistic, screen
from meshplan.search.family import family_ids
from meshplan.search.neighbours import Neighbour
from meshplan.search.neighbours import shown as shown_value
from meshplan.search.objective import complexity, crowding, field_order
from meshplan.search.pareto import front, memory_steps
from meshplan.search.progress import Progress, untold, within
from meshplan.search.prospects import ModelTimes, Values
from meshplan.space.enumerate import Rejection
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["Counts", "Known", "Ranking", "look_around", "pareto_plans", "rank_plans"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@record
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


@record
class Known:
    """What a search knows of the plans that can be ranked.

    Attributes:
        grid: the plans.
        memory: their memory.
        times: where their times come from.
        values: what is known of their times.
        listed: places of the plans of the answer, best first.
    """

    grid: PlanGrid
    memory: ScreenedMemory
    times: ModelTimes
    values: Values
    listed: IntArray

    def numbers(self, places: IntArray) -> Evaluation:
        """Exact numbers of plans whose exact time is known."""
        return Evaluation(
            grid=self.grid.take(places),
            memory=self.memory.take(places),
            time=self.times.numbers(places),
        )


@record
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
        known: where something fits, what the search knows of all plans that can be ranked.
        alternatives: the best plan with each other degree, see :func:`look_around`; None where
            it was not looked for.
    """

    scenario: Scenario
    best: Evaluation | None
    value: FloatArray
    num_variants: IntArray
    counts: Counts
    rejected: Mapping[str, Rejection]
    smallest: Evaluation | None
    known: Known | None
    alternatives: tuple[Neighbour, ...] | None = None

    def __len__(self) -> int:
        return 0 if self.best is None else len(self.best)

    def alone(self) -> Ranking:
        """Without what the search knows of all plans, which can be some hundred MiB."""
        return replace(self, known=None)


def rank_plans(scenario: Scenario, *, top: int, progress: Progress = untold) -> Ranking:
    """Find the best plans for a scenario.

    Enumerates the legal plans, screens them, and evaluates exactly those that can still enter
    the answer. Where several frameworks are asked about, the best plan of each that is not among
    the best families follows them.

    Args:
        scenario: model, cluster, job and what the search may choose from.
        top: how many families to return.
        progress: told how far it is.
    """

    def pick(grid: PlanGrid, memory: ScreenedMemory, family: IntArray, values: Values) -> IntArray:
        def ties(index: IntArray) -> tuple[IntArray, IntArray]:
            some = grid.take(index)
            full = crowding(memory.peak_bytes[index], usable_bytes=memory.usable_bytes)
            return complexity(some) + full, field_order(some)

        def best_among(among: IntArray, num_families: int) -> IntArray:
            return select(values, among=among, ties=ties, family=family, top=num_families).index

        best = best_among(np.arange(len(grid)), top)
        others = [
            best_among(np.flatnonzero(grid.framework == code), 1)
            for code in sorted({*grid.frameworks} - {*grid.take(best).frameworks})
        ]
        others.sort(key=lambda one: float(values.exact[one[0]]))
        return np.concatenate([best, *others])

    return _search(scenario, pick, progress)


def pareto_plans(scenario: Scenario, *, progress: Progress = untold) -> Ranking:
    """Find the plans that no other plan beats in step time and memory together."""

    def pick(grid: PlanGrid, memory: ScreenedMemory, family: IntArray, values: Values) -> IntArray:
        steps = memory_steps(memory.peak_bytes, usable_bytes=memory.usable_bytes)
        return front(values, memory=steps, field=field_order(grid))

    return _search(scenario, pick, progress)


_Pick = Callable[[PlanGrid, ScreenedMemory, IntArray, Values], IntArray]
"""Plans, their memory, families and times to the places of those that are the answer."""


_SCREENED, _BOUNDED, _PICKED = 0.6, 0.75, 0.9
"""Shares of a search that are done after its steps, as they are on a large space."""


def _search(scenario: Scenario, pick: _Pick, progress: Progress) -> Ranking:
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
    known = Known(grid=grid, memory=memory, times=times, values=values, listed=picked)
    best = known.numbers(picked)
    return Ranking(
        scenario=scenario,
        best=best,
        value=pessimistic(best.time),
        num_variants=np.bincount(family)[family[picked]],
        counts=_counts(screened, screen_s, values),
        rejected=screened.rejected,
        smallest=None,
        known=known,
    )


def look_around(ranking: Ranking) -> Ranking:
    """Look for the best plan with each other degree, too, among all that the search knows.

    The counts say what that took beside the search.
    """
    known = ranking.known
    if known is None:
        return ranking
    values, best = known.values, known.grid.plan(int(known.listed[0]))
    around = best_with_each_degree(known.grid, values, listed=known.listed)
    numbers = known.numbers(np.array([other.place for other in around], dtype=np.int64))
    return replace(
        ranking,
        counts=replace(ranking.counts, num_evaluated=values.num_tight, num_exact=values.num_exact),
        alternatives=tuple(
            _neighbour(other, numbers.one(place), best) for place, other in enumerate(around)
        ),
    )


def _neighbour(other: Alternative, result: Evaluation, best: Plan) -> Neighbour:
    return Neighbour(
        knob=other.knob,
        direction=other.direction,
        before=shown_value(best, other.knob),
        after=shown_value(result.grid.plan(0), other.knob),
        result=result,
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
        known=None,
    )


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
