"""Carry plans over to a scenario that differs a little, and keep those that are legal there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from meshplan.inputs.scenario import Scenario
from meshplan.space.facts import facts_of
from meshplan.space.plan import Plan, PlanGrid, Schedule
from meshplan.space.rules import rules_of
from meshplan.space.rules.rule import Fields

__all__ = ["carry", "carry_grid", "legal_grid", "legal_only", "with_degree", "without_interleaving"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def carry(plan: Plan, scenario: Scenario) -> Plan | None:
    """Keep every degree but data parallelism, which takes what GPUs are left.

    Replica groups keep their size (HSDP keeps ``dp_shard``) where it divides the new degree;
    micro-batches keep their size, so their number follows from the batch.

    Returns:
        The plan for the scenario, or None when the numbers do not divide.
    """
    kept, carried = carry_grid(PlanGrid.of([plan]), scenario)
    return carried.plan(0) if len(kept) else None


def carry_grid(grid: PlanGrid, scenario: Scenario) -> tuple[IntArray, PlanGrid]:
    """Carry many plans over at once, see :func:`carry`.

    Returns:
        Places in ``grid`` of the plans whose numbers divide, and these plans for the scenario.
    """
    inner = grid.tp * grid.pp * grid.cp
    dp = scenario.cluster.num_gpus // inner
    divides = (dp > 0) & (scenario.cluster.num_gpus % inner == 0)
    sequences = np.maximum(dp, 1) * grid.micro_batch
    number = scenario.job.global_batch // sequences
    divides &= (number > 0) & (scenario.job.global_batch % sequences == 0)
    grouped = grid.dp_replicate > 1
    replicate = np.where(grouped, dp // np.maximum(grid.dp_shard, 1), 1)
    divides &= ~grouped | ((replicate > 0) & (dp % np.maximum(grid.dp_shard, 1) == 0))
    kept = np.flatnonzero(divides)
    dp, replicate = dp[kept], replicate[kept]
    return kept, replace(
        grid.take(kept),
        dp=dp,
        dp_shard=dp // replicate,
        dp_replicate=replicate,
        num_micro_batches=number[kept],
    )


def legal_grid(scenario: Scenario, grid: PlanGrid) -> BoolArray:
    """Which plans no rule refuses; one that equals a simpler plan is no matter of law.

    Returns:
        Mask of shape ``(num_plans,)``.
    """
    facts = facts_of(scenario)
    legal = np.ones(len(grid), dtype=np.bool_)
    for code in grid.frameworks:
        own = np.flatnonzero(grid.framework == code)
        fields = cast(Fields, grid.take(own))
        for rule in rules_of(code):
            if not rule.duplicate:
                legal[own] &= rule.legal(facts, fields)
    return legal


def legal_only(scenario: Scenario, plans: Iterable[Plan]) -> list[Plan]:
    """Drop the plans that a rule refuses; all have one layout of stages in common."""
    listed = list(plans)
    if not listed:
        return []
    legal = legal_grid(scenario, PlanGrid.of(listed))
    return [plan for plan, keep in zip(listed, legal.tolist(), strict=True) if keep]


def with_degree(plan: Plan, knob: str, degree: int) -> Plan:
    """Change a degree together with what goes with it.

    Args:
        plan: the plan to change.
        knob: ``tp``, ``pp``, ``cp``, ``ep``, ``micro_batch`` or ``zero``.
        degree: its new value.

    Raises:
        ValueError: for another knob.
    """
    match knob:
        case "tp":
            etp = degree if plan.etp == plan.tp and plan.ep == 1 else plan.etp
            sp = degree > 1 and (plan.sp or plan.tp == 1)
            return replace(plan, tp=degree, sp=sp, etp=etp)
        case "pp":
            plan = plan if degree > 1 else without_interleaving(plan)
            return replace(plan, pp=degree)
        case "cp":
            return replace(plan, cp=degree)
        case "ep":
            return replace(plan, ep=degree)
        case "micro_batch":
            return replace(plan, micro_batch=degree)
        case "zero":
            return replace(plan, zero=degree)
        case _:
            raise ValueError(f"{knob} is no degree")


def without_interleaving(plan: Plan) -> Plan:
    """The plan with one chunk per stage, in the plain order of passes."""
    return replace(plan, vpp=1, schedule=Schedule.ONE_F_ONE_B)
