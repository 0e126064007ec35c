"""Carry a plan over to a scenario that differs a little."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import numpy as np

from meshplan.inputs.scenario import Scenario
from meshplan.space.facts import Facts, facts_of
from meshplan.space.plan import Plan, PlanGrid, Schedule
from meshplan.space.rules import rules_of
from meshplan.space.rules.rule import Fields

__all__ = ["adapt", "legal_only", "with_degree", "without_interleaving"]


def adapt(plan: Plan, scenario: Scenario) -> Plan | None:
    """Keep every degree but data parallelism, which takes what GPUs are left.

    Replica groups keep their size (HSDP keeps ``dp_shard``) where it divides the new degree;
    micro-batches keep their size, so their number follows from the batch.

    Returns:
        The plan for the scenario, or None when the numbers do not divide.
    """
    inner = plan.tp * plan.pp * plan.cp
    dp, rest = divmod(scenario.cluster.num_gpus, inner)
    if rest or dp == 0:
        return None
    num_micro_batches, rest = divmod(scenario.job.global_batch, dp * plan.micro_batch)
    if rest or num_micro_batches == 0:
        return None
    replicate = plan.dp_replicate
    if replicate > 1:
        replicate, rest = divmod(dp, plan.dp_shard)
        if rest or replicate == 0:
            return None
    return replace(
        plan,
        dp=dp,
        dp_shard=dp // replicate,
        dp_replicate=replicate,
        num_micro_batches=num_micro_batches,
    )


def legal_only(scenario: Scenario, plans: Iterable[Plan]) -> list[Plan]:
    """Drop the plans that a rule refuses; one that equals a simpler plan may stay."""
    facts = facts_of(scenario)
    return [plan for plan in plans if _legal(facts, plan)]


def _legal(facts: Facts, plan: Plan) -> bool:
    fields = cast(Fields, PlanGrid.of([plan]))
    rules = (rule for rule in rules_of(plan.framework) if not rule.duplicate)
    return all(bool(np.all(rule.legal(facts, fields))) for rule in rules)


def with_degree(plan: Plan, knob: str, degree: int) -> Plan:
    """Change a degree together with what goes with it."""
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
        case _:
            return replace(plan, micro_batch=degree)


def without_interleaving(plan: Plan) -> Plan:
    """The plan with one chunk per stage, in the plain order of passes."""
    return replace(plan, vpp=1, schedule=Schedule.ONE_F_ONE_B)
