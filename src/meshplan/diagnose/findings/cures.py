"""The next action: settings in the framework's own words, and what the cost model expects."""

from __future__ import annotations

from collections.abc import Iterable

from meshplan.cost.memory import Verdict
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.records import Change, Context, Gain, Value
from meshplan.diagnose.findings.thresholds import preset
from meshplan.search.carry import carry, legal_only
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.space.plan import Framework, Plan, PlanGrid

__all__ = [
    "NO_TIME",
    "best_of",
    "change",
    "framework_of",
    "from_trace",
    "kept_batch",
    "option_of",
]

NO_TIME = Gain(share=0.0, basis="figure")
"""What it brings to mend a figure."""
_MARKS = ((Framework.MEGATRON, "_GROUP"), (Framework.TORCHTITAN, "mesh_"))
"""How frameworks describe their process groups."""


def framework_of(facts: Facts) -> Framework | None:
    """The framework of a run: of the plan, or the one that names process groups that way."""
    context = facts.context
    if context.plan is not None:
        return context.plan.framework
    if context.framework is not None:
        return context.framework
    for flow in facts.flows:
        for framework, mark in _MARKS:
            if mark in flow.traffic.purpose:
                return framework
    return None


def option_of(facts: Facts, field: str) -> str:
    """How the framework spells a setting; empty where it is not known or has none."""
    framework = framework_of(facts)
    if framework is None:
        return ""
    return str(preset("options.yaml").get(framework.name.lower(), {}).get(field, ""))


def change(facts: Facts, field: str, *, before: Value, after: Value) -> Change:
    """One setting to change, spelled as the framework does."""
    return Change(field=field, option=option_of(facts, field), before=before, after=after)


def from_trace(share: float) -> Gain:
    """What a finding costs is the most that its cure can bring."""
    return Gain(share=share, basis="trace")


def kept_batch(plan: Plan, context: Context) -> Plan | None:
    """A changed plan with the batch and the GPUs of the run; None where they do not divide."""
    assert context.scenario is not None
    return carry(plan, context.scenario)


def best_of(context: Context, plans: Iterable[Plan | None]) -> tuple[Evaluation, float] | None:
    """The fastest of some changed plans that are legal and fit.

    Returns:
        Its numbers and the share of the step that it saves by the cost model; None when nothing
        is known of the run, or none of the plans is faster.
    """
    scenario, plan = context.scenario, context.plan
    if scenario is None or plan is None:
        return None
    now = float(evaluate(scenario, PlanGrid.of([plan])).time.step_time_s[0])
    best: tuple[Evaluation, float] | None = None
    for candidate in plans:
        if candidate is None or not legal_only(scenario, [candidate]):
            continue
        tried = evaluate(scenario, PlanGrid.of([candidate]))
        gain = 1.0 - float(tried.time.step_time_s[0]) / now
        fits = tried.memory.verdict[0] != Verdict.OOM
        if fits and gain > 0 and (best is None or gain > best[1]):
            best = (tried, gain)
    return best
