"""Judge one plan: which rules it breaks, and which values would be legal instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.axes import DERIVED, axes_of
from meshplan.space.facts import Facts, facts_of
from meshplan.space.names import recompute_text, to_text
from meshplan.space.plan import Framework, Plan, PlanGrid, Recompute, Schedule, Split
from meshplan.space.rules.registry import rules_of
from meshplan.space.rules.rule import Fields, Rule
from meshplan.space.stages import deal_layers

__all__ = ["Violation", "check_plan", "idle_fields"]

# Degrees that must be at least 1 before any rule can be asked.
_COUNTS = (
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "dp_shard",
    "dp_replicate",
    "micro_batch",
    "num_micro_batches",
)


@record
class Violation:
    """One rule that a plan breaks.

    Attributes:
        code: the rule; ``error.rule_<code>`` and ``hint.rule_<code>`` are its sentences.
        field: plan field that a person would change.
        value: what stands there.
        legal: values of that field that make the plan legal with the other degrees as given
            (data parallelism and the number of micro-batches follow); where no value does,
            those that obey this rule.
        numbers: values that the sentences mention.
        source: place that enforces the rule.
        version: version of the framework that was read; empty for arithmetic.
    """

    code: str
    field: str
    value: object
    legal: tuple[object, ...]
    numbers: Mapping[str, object] = dataclasses.field(hash=False)
    source: str
    version: str


def check_plan(scenario: Scenario, plan: Plan) -> tuple[Violation, ...]:
    """Find all rules that a plan breaks.

    A plan that is legal but not in canonical form (an axis without effect has an unusual value)
    is not at fault.

    Args:
        scenario: model, cluster and job.
        plan: the plan, complete.

    Returns:
        Violations, empty when the plan is legal.
    """
    facts = facts_of(scenario)
    unset = [name for name in _COUNTS if getattr(plan, name) < 1]
    if unset:
        return tuple(_not_positive(plan, name) for name in unset)
    broken = [rule for rule in _real_rules(plan.framework) if not _holds(rule, facts, plan)]
    if any(rule.code == "degrees_multiply_to_gpus" for rule in broken):
        # what depends on a wrong dp is no news
        broken = [rule for rule in broken if rule.axis == "dp" or not _reads_dp(rule)]
    return tuple(_violation(rule, facts, plan) for rule in broken)


def idle_fields(scenario: Scenario, plan: Plan) -> tuple[str, ...]:
    """Fields of a legal plan whose value has no effect, such as a schedule without a pipeline."""
    facts = facts_of(scenario)
    return tuple(
        rule.axis
        for rule in rules_of(plan.framework)
        if rule.duplicate and not _holds(rule, facts, plan)
    )


def _real_rules(framework: Framework) -> list[Rule]:
    return [rule for rule in rules_of(framework) if not rule.duplicate]


def _holds(rule: Rule, facts: Facts, plan: Plan) -> bool:
    return bool(np.all(rule.legal(facts, cast(Fields, PlanGrid.of([plan])))))


def _reads_dp(rule: Rule) -> bool:
    return not {"dp", "dp_shard", "num_micro_batches"}.isdisjoint(rule.reads)


def _not_positive(plan: Plan, name: str) -> Violation:
    return Violation(
        code="degree_is_positive",
        field=name,
        value=getattr(plan, name),
        legal=(),
        numbers={},
        source="arithmetic",
        version="",
    )


def _violation(rule: Rule, facts: Facts, plan: Plan) -> Violation:
    name, legal = _way_out(rule, facts, plan)
    crowded = rule.code == "layers_are_dealt" and plan.pp * plan.vpp > facts.num_layers
    return Violation(
        code="more_stages_than_layers" if crowded else rule.code,
        field=name,
        value=_shown(plan, name),
        legal=legal,
        numbers=_numbers(rule, facts, plan),
        source=rule.source,
        version=rule.version,
    )


def _way_out(rule: Rule, facts: Facts, plan: Plan) -> tuple[str, tuple[object, ...]]:
    """The field to change and its legal values: fully legal ones, else those for this rule."""
    if not rule.reads:
        return rule.axis, tuple(
            to_text(f) for f in Framework if all(_holds(r, facts, plan) for r in _facts_rules(f))
        )
    names = [rule.axis, *[name for name in rule.reads if name != rule.axis]]
    choices = {name: _alternatives(name, facts, plan) for name in names}
    for rules in (_real_rules(plan.framework), [rule]):
        for name, plans in choices.items():
            legal = [p for p, ok in zip(plans, _all_hold(rules, facts, plans), strict=True) if ok]
            if legal:
                return name, tuple(_shown(p, name) for p in legal)
    return rule.axis, ()


def _all_hold(rules: Sequence[Rule], facts: Facts, plans: Sequence[Plan]) -> npt.NDArray[np.bool_]:
    """Whether all rules hold, by plan."""
    legal = np.ones(len(plans), dtype=np.bool_)
    if len(plans):
        grid = cast(Fields, PlanGrid.of(plans))
        for rule in rules:
            legal &= rule.legal(facts, grid)
    return legal


def _facts_rules(framework: Framework) -> list[Rule]:
    return [rule for rule in _real_rules(framework) if not rule.reads]


def _alternatives(name: str, facts: Facts, plan: Plan) -> list[Plan]:
    """Plans that differ in one field and in what follows from it."""
    if name == "stage_layers":
        return []
    now = getattr(plan, name)
    if name in DERIVED:
        values = _derived_values(name, facts, plan)
        return [_follow(facts, plan, name, value) for value in values if value != now]
    if name in ("recompute", "recompute_layers"):
        axis = axes_of(facts, framework=plan.framework, pinned={})["recompute"]
        pairs = zip(*axis.values, strict=True)
        return [
            replace(plan, recompute=Recompute(mode), recompute_layers=layers)
            for mode, layers in pairs
            if (mode, layers) != (plan.recompute, plan.recompute_layers)
        ]
    axis = axes_of(facts, framework=plan.framework, pinned={})[name]
    return [_follow(facts, plan, name, value) for value in axis.values[0] if value != now]


def _derived_values(name: str, facts: Facts, plan: Plan) -> Sequence[int]:
    if name == "dp":
        dp, rest = divmod(facts.num_gpus, plan.tp * plan.pp * plan.cp)
        return () if rest else (dp,)
    if name == "dp_shard":
        shard, rest = divmod(plan.dp, plan.dp_replicate)
        return () if rest else (shard,)
    number, rest = divmod(facts.global_batch, plan.dp * plan.micro_batch)
    return () if rest else (number,)


def _follow(facts: Facts, plan: Plan, name: str, value: int) -> Plan:
    """Change one field, and let those follow that are computed from it."""
    kind = type(getattr(plan, name))
    changed = replace(plan, **{name: kind(value)})
    if name in ("tp", "pp", "cp"):
        dp = max(1, facts.num_gpus // (changed.tp * changed.pp * changed.cp))
        changed = replace(changed, dp=dp)
    if name in ("tp", "pp", "cp", "dp", "dp_replicate"):
        shard = max(1, changed.dp // changed.dp_replicate)
        changed = replace(changed, dp_shard=shard)
    if name == "tp":
        etp = value if plan.etp == plan.tp else plan.etp
        changed = replace(changed, etp=etp, sp=plan.sp and value > 1)
    if name in ("tp", "pp", "cp", "dp", "micro_batch"):
        number = max(1, facts.global_batch // (changed.dp * changed.micro_batch))
        changed = replace(changed, num_micro_batches=number)
    if name == "vpp":
        changed = replace(changed, schedule=_schedule_for(plan.schedule, value))
    if name == "pp" and value == 1:
        changed = replace(changed, vpp=1, schedule=Schedule.ONE_F_ONE_B)
    return changed


def _schedule_for(schedule: Schedule, vpp: int) -> Schedule:
    """The schedule of the same kind for a number of chunks."""
    looped = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB)
    if vpp == 1:
        return Schedule.ONE_F_ONE_B if schedule in looped else schedule
    return schedule if schedule in looped else Schedule.INTERLEAVED


def _shown(plan: Plan, name: str) -> object:
    value = getattr(plan, name)
    if name in ("recompute", "recompute_layers"):
        return recompute_text(plan.recompute, layers=plan.recompute_layers)
    return value if isinstance(value, bool) or type(value) in (int, tuple) else to_text(value)


def _numbers(rule: Rule, facts: Facts, plan: Plan) -> dict[str, object]:
    """Fields that the rule reads, facts that it names, and what its hint needs."""
    numbers = {name: _shown(plan, name) for name in rule.reads}
    numbers |= {name: getattr(facts, name) for name in rule.numbers}
    numbers["framework"] = to_text(plan.framework)
    if rule.code == "batch_divides":
        unit = plan.dp * plan.micro_batch
        below = facts.global_batch // unit * unit
        nearest = [b for b in (below, below + unit) if b and b != facts.global_batch]
        numbers["nearest_global_batch"] = ", ".join(map(str, nearest))
    if rule.code == "layers_are_dealt":
        dealt = deal_layers(
            num_layers=facts.num_layers,
            num_stages=plan.pp * plan.vpp,
            split=Split.BALANCED,
            num_mtp_layers=facts.num_mtp_layers,
        )
        numbers["balanced"] = "+".join(map(str, dealt)) if dealt else "-"
    if rule.code in ("ring_splits_sequence", "sp_splits_sequence", "ulysses_splits_sequence"):
        unit = _sequence_unit(rule, plan)
        below = facts.seq_len // unit * unit
        numbers["nearest_seq_len"] = ", ".join(str(s) for s in (below, below + unit) if s)
    return numbers


def _sequence_unit(rule: Rule, plan: Plan) -> int:
    ring = 2 * plan.cp if plan.cp > 1 else 1
    if rule.code == "ring_splits_sequence":
        return ring
    if rule.code == "ulysses_splits_sequence":
        return plan.cp
    return ring * plan.tp
