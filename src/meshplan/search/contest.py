"""Which of a few hundred plans wins where the scenario has changed a little.

All of them get a memory verdict and a lower bound of their time; exact times are worked out only
for those that could beat what is known, as in the search itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import Verdict, peak_memory
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.carry import carry_grid, legal_grid
from meshplan.search.objective import TIE, field_order
from meshplan.search.prospects import ModelTimes
from meshplan.space.axes import axes_of
from meshplan.space.facts import facts_of
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["Contenders", "Contest", "Outcome", "contenders", "contests"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_FIRST_BATCH = 2


@record(kw_only=False)
class Outcome:
    """Which plan wins, how it looks, and by how much it beats the one chosen so far.

    Attributes:
        rank: its place in the answer, from 0; None when it is not in the answer.
        plan: the plan; None when none fits.
        gain: how much faster it is than the plan chosen so far, as a fraction; None when that
            one does not fit or is not legal.
    """

    rank: int | None
    plan: Plan | None
    gain: float | None

    @property
    def stands(self) -> bool:
        """Whether the plan chosen so far is still the best."""
        return self.rank == 0


@record
class Contenders:
    """Plans that compete.

    Attributes:
        grid: the plans, the one chosen so far first.
        num_listed: how many of the first ones are the answer.
        num_plans: how many of the first ones were named; the rest are variants of them.
    """

    grid: PlanGrid
    num_listed: int
    num_plans: int


def contenders(scenario: Scenario, listed: Sequence[Plan], others: Sequence[Plan]) -> Contenders:
    """Gather plans, and each of them with every micro-batch and recompute mode.

    Args:
        scenario: says which values an axis may take.
        listed: the answer, best first; these keep their places.
        others: more plans of the same kind.
    """
    base = PlanGrid.of([*listed, *(plan for plan in others if plan not in listed)])
    axes = [
        axes_of(facts_of(scenario), framework=plan.framework, pinned=scenario.axes) for plan in base
    ]
    rows: list[tuple[int, int, int, int]] = [
        (place, plan.micro_batch, int(plan.recompute), plan.recompute_layers)
        for place, plan in enumerate(base)
    ]
    seen = set(rows)
    for place, axis in enumerate(axes):
        modes = zip(*axis["recompute"].values, strict=True)
        whole = [(mode, layers) for mode, layers in modes if not layers]
        for micro_batch in axis["micro_batch"].values[0]:
            variants = [(place, micro_batch, mode, layers) for mode, layers in whole]
            rows += [row for row in variants if row not in seen]
    places, micro_batch, recompute, layers = np.array(rows, dtype=np.int64).T
    grid = replace(
        base.take(places), micro_batch=micro_batch, recompute=recompute, recompute_layers=layers
    )
    return Contenders(grid=grid, num_listed=len(listed), num_plans=len(base))


def contests(scenarios: Sequence[Scenario], plans: Contenders) -> list[Contest | None]:
    """Carry plans over to scenarios that differ in the batch alone, and judge them there.

    Time and memory see the batch as the number of micro-batches of a plan and nothing else, so
    that all are judged together.

    Args:
        scenarios: the scenarios.
        plans: who competes.

    Returns:
        One contest for each scenario; None where no plan is legal.
    """
    places: list[IntArray] = []
    grids: list[PlanGrid] = []
    for scenario in scenarios:
        kept, carried = carry_grid(plans.grid, scenario)
        legal = legal_grid(scenario, carried)
        places.append(kept[legal])
        grids.append(carried.take(legal))
    if not scenarios or not any(len(kept) for kept in places):
        return [None] * len(scenarios)
    together = PlanGrid.concatenate(grids)
    memory = peak_memory(scenarios[0], together)
    out = np.asarray(memory.verdict) == Verdict.OOM
    times, bound = ModelTimes(scenarios[0], together), np.full(len(together), np.inf)
    bound[~out] = times.closed(np.flatnonzero(~out))
    chosen = np.concatenate([np.equal(kept, 0) for kept in places]) & ~out
    times.exact(np.flatnonzero(chosen))  # asked for in every contest, so here for all at once
    found: list[Contest | None] = []
    start = 0
    for scenario, kept, own in zip(scenarios, places, grids, strict=True):
        part = np.arange(start, start + len(kept))
        start += len(kept)
        contest = Contest(
            scenario=scenario,
            place=kept,
            num_listed=plans.num_listed,
            num_plans=plans.num_plans,
            grid=own,
            bound=bound[part],
            peak_bytes=np.asarray(memory.peak_bytes)[part],
            out=out[part],
            times=times,
            timed=part,
        )
        found.append(contest if len(kept) else None)
    return found


@record(kw_only=False)
class Contest:
    """The plans that are legal in a scenario, judged.

    Attributes:
        scenario: where they compete.
        place: place of each among the contenders; 0 is the plan chosen so far.
        num_listed: see :class:`Contenders`.
        num_plans: see :class:`Contenders`.
        grid: the plans, carried over.
        bound: lower bound of the pessimistic step time of each [s].
        peak_bytes: peak memory of each [bytes].
        out: which run out of memory.
        times: where exact times come from.
        timed: what each plan is called there.
    """

    scenario: Scenario
    place: IntArray
    num_listed: int
    num_plans: int
    grid: PlanGrid
    bound: FloatArray
    peak_bytes: FloatArray
    out: BoolArray
    times: ModelTimes
    timed: IntArray

    @property
    def peak_of_choice(self) -> float | None:
        """Peak of the plan chosen so far [bytes]; None where it is not legal."""
        mine = np.flatnonzero(self.place == 0)
        return float(self.peak_bytes[mine[0]]) if len(mine) else None

    def timed_in(self, scenario: Scenario) -> Contest:
        """The same contest where rules and memory stay as they are and only times change.

        Another micro-batch or recompute mode would not fit better than before, so that the plans
        compete as they are, without their variants.
        """
        kept = np.flatnonzero(~self.out & (self.place < self.num_plans))
        grid = self.grid.take(kept)
        times = ModelTimes(scenario, grid)
        return replace(
            self,
            scenario=scenario,
            place=self.place[kept],
            grid=grid,
            times=times,
            timed=np.arange(len(kept)),
            bound=times.closed(np.arange(len(kept))),
            peak_bytes=self.peak_bytes[kept],
            out=self.out[kept],
        )

    def winner(self, *, usable_bytes: float) -> Outcome:
        """Which plan wins where a device can use so much memory.

        The plan chosen so far is given up only for one that beats it by more than a tie.
        """
        fits = (self.peak_bytes <= usable_bytes) & ~self.out
        if not fits.any():
            return Outcome(None, None, None)
        mine = np.flatnonzero(fits & (self.place == 0))
        value = float(self._exact(mine)[0]) if len(mine) else np.inf
        rest = np.flatnonzero(fits & (self.place != 0))
        order = rest[np.lexsort((field_order(self.grid)[rest], self.bound[rest]))]
        best, best_value = None, value / (1.0 + TIE)
        start, batch = 0, _FIRST_BATCH
        while start < len(order) and self.bound[order[start]] < best_value:
            some = order[start : start + batch]
            found, best_value = _least(some, self._exact(some), below=best_value)
            best = best if found is None else found
            start, batch = start + batch, 2 * batch
        if best is None:
            return Outcome(0, self.grid.plan(int(mine[0])), 0.0) if len(mine) else _NOTHING
        place = int(self.place[best])
        rank = place if place < self.num_listed else None
        gain = value / best_value - 1.0 if len(mine) else None
        return Outcome(rank, self.grid.plan(best), gain)

    def _exact(self, index: IntArray) -> FloatArray:
        return self.times.exact(self.timed[index])


def _least(index: IntArray, values: FloatArray, *, below: float) -> tuple[int | None, float]:
    """The plan with the smallest value, if that lies below a limit."""
    if not len(index) or values.min() >= below:
        return None, below
    first = int(np.argmin(values))
    return int(index[first]), float(values[first])


_NOTHING = Outcome(None, None, None)
