"""Rank the legal plans of one scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import Verdict
from meshplan.cost.step import step_time
from meshplan.inputs.scenario import Scenario
from meshplan.search.bound import select
from meshplan.search.evaluate import Evaluation, Screen, evaluate, pessimistic, screen
from meshplan.search.family import family_ids
from meshplan.search.objective import complexity, field_order
from meshplan.search.pareto import front, memory_steps
from meshplan.space.enumerate import Enumeration, Rejection, enumerate_plans
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
    """

    scenario: Scenario
    best: Evaluation | None
    value: FloatArray
    num_variants: IntArray
    counts: Counts
    rejected: Mapping[str, Rejection]
    smallest: Evaluation | None

    def __len__(self) -> int:
        return 0 if self.best is None else len(self.best)


def rank_plans(scenario: Scenario, *, top: int) -> Ranking:
    """Find the best plans for a scenario.

    Enumerates the legal plans, screens them, and evaluates exactly those that can still enter
    the answer.

    Args:
        scenario: model, cluster, job and what the search may choose from.
        top: how many families to return.
    """

    def pick(grid: PlanGrid, screened: Screen, ranked: IntArray, exact: _Exact) -> IntArray:
        return select(
            bound=screened.bound_s[ranked],
            parts=complexity(grid),
            field=field_order(grid),
            family=family_ids(grid),
            top=top,
            evaluate=exact,
        ).index

    return _search(scenario, pick)


def pareto_plans(scenario: Scenario) -> Ranking:
    """Find the plans that no other plan beats in step time and memory together."""

    def pick(grid: PlanGrid, screened: Screen, ranked: IntArray, exact: _Exact) -> IntArray:
        usable = scenario.cluster.device.usable_bytes
        return front(
            bound=screened.bound_s[ranked],
            memory=memory_steps(screened.peak_bytes[ranked], usable_bytes=usable),
            field=field_order(grid),
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


_Pick = Callable[[PlanGrid, Screen, IntArray, _Exact], IntArray]


def _search(scenario: Scenario, pick: _Pick) -> Ranking:
    space = enumerate_plans(scenario)
    screened = screen(scenario, space.grid)
    ranked = np.flatnonzero(np.isfinite(screened.bound_s))
    grid = space.grid.take(ranked)
    exact = _Exact(scenario, grid)
    best: Evaluation | None = None
    num_variants = np.empty(0, dtype=np.int64)
    if len(grid):
        picked = pick(grid, screened, ranked, exact)
        family = family_ids(grid)
        num_variants = np.bincount(family)[family[picked]]
        best = evaluate(scenario, grid.take(picked)) if len(picked) else None
    return Ranking(
        scenario=scenario,
        best=best,
        value=pessimistic(best.time) if best else np.empty(0),
        num_variants=num_variants,
        counts=_counts(space, screened, exact.num_exact),
        rejected=space.rejected,
        smallest=None if best else _smallest(scenario, screened),
    )


def _counts(space: Enumeration, screened: Screen, num_exact: int) -> Counts:
    return Counts(
        num_candidates=space.num_candidates,
        num_legal=space.num_legal,
        num_fits=int((screened.verdict == Verdict.FITS).sum()),
        num_tight=int((screened.verdict == Verdict.TIGHT).sum()),
        num_oom=int((screened.verdict == Verdict.OOM).sum()),
        num_evaluated=screened.num_evaluated,
        num_exact=num_exact,
        screen_s=screened.elapsed_s,
    )


def _smallest(scenario: Scenario, screened: Screen) -> Evaluation | None:
    """The plan that comes closest to fitting."""
    if not len(screened.grid):
        return None
    least = np.flatnonzero(screened.peak_bytes == screened.peak_bytes.min())
    grid = screened.grid.take(least)
    one = grid.take(np.array([int(np.argmin(field_order(grid)))]))
    return evaluate(scenario, one)
