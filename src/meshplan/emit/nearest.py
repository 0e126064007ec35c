"""The plan nearest to one that a target cannot express."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import Verdict
from meshplan.emit.records import Order, Target
from meshplan.emit.targets import obstacles_of
from meshplan.inputs.scenario import Scenario
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.space.enumerate import enumerate_parts
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["distance", "nearest_legal", "nearest_plan"]

# A degree that doubles costs as much as a setting that changes, twice as much where it moves
# ranks to other places.
_DEGREES = {"tp": 2.0, "pp": 2.0, "cp": 2.0, "ep": 2.0, "etp": 1.0, "vpp": 1.0}
_SIZES = {"micro_batch": 1.0, "dp_replicate": 1.0}
_SETTINGS = ("zero", "recompute", "offload", "schedule", "split", "cp_comm", "sp")
_MOST_TRIED = 512


def distance(grid: PlanGrid, plan: Plan) -> npt.NDArray[np.float64]:
    """How many edits lie between each plan of a grid and one plan, shape ``(num_plans,)``."""
    total = np.zeros(len(grid))
    for name, weight in {**_DEGREES, **_SIZES}.items():
        ratio = getattr(grid, name) / getattr(plan, name)
        total += weight * np.abs(np.log2(ratio))
    for name in _SETTINGS:
        total += getattr(grid, name) != int(getattr(plan, name))
    layers = grid.recompute_layers != plan.recompute_layers
    return np.asarray(total + 0.5 * layers, dtype=np.float64)


def nearest_plan(order: Order, target: Target) -> Evaluation | None:
    """Find the legal plan with the fewest edits that a target can express.

    Plans that fit come first; among equally near ones the faster is taken.

    Returns:
        Its exact numbers, of length one; None where no plan can be expressed at all.
    """
    scenario = _for_target(order.scenario, target)

    def able(plan: Plan) -> bool:
        return not obstacles_of(replace(order, scenario=scenario, plan=plan), target)

    return _nearest(scenario, order.plan, able)


def nearest_legal(scenario: Scenario, plan: Plan) -> Evaluation | None:
    """Find the legal plan of the same framework with the fewest edits; None where there is none."""
    free = replace(scenario, frameworks=(plan.framework.name.lower(),), axes={})
    return _nearest(free, plan, lambda _: True)


def _nearest(scenario: Scenario, plan: Plan, able: Callable[[Plan], bool]) -> Evaluation | None:
    best: list[tuple[float, Plan]] = []
    for part in enumerate_parts(scenario):
        if not len(part.grid):
            continue
        far = distance(part.grid, plan)
        index = np.argsort(far, kind="stable")[:_MOST_TRIED]
        best += [(float(far[i]), part.grid.plan(int(i))) for i in index]
        best = sorted(best, key=lambda item: item[0])[:_MOST_TRIED]
    kept = [(away, other) for away, other in best if able(other)]
    if not kept:
        return None
    results = evaluate(scenario, PlanGrid.of([other for _, other in kept]))
    oom = np.asarray(results.memory.verdict) == Verdict.OOM
    edits = np.array([away for away, _ in kept])
    rank = np.lexsort((np.asarray(results.time.step_time_s), edits, oom))
    return results.one(int(rank[0]))


def _for_target(scenario: Scenario, target: Target) -> Scenario:
    return replace(scenario, frameworks=(target.framework.name.lower(),), axes={})
