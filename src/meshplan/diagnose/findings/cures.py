"""The next action: settings in the framework's own words, and what the cost model expects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshplan.cost.memory import Verdict
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.records import Change, Context, Gain, Value
from meshplan.diagnose.findings.thresholds import preset, threshold
from meshplan.search.carry import carry, legal_only
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.space.plan import Framework, Plan, PlanGrid, Recompute

__all__ = [
    "NO_TIME",
    "best_of",
    "change",
    "framework_of",
    "from_trace",
    "kept_batch",
    "roomier",
    "spelled",
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


def change(facts: Facts, field: str, *, before: Value, after: Value) -> Change:
    """One setting to change, spelled as the framework does.

    Of the values those are taken that the framework has; one that it does not have, or that
    follows from more than is known, becomes ``?``, or ``+`` where it is to grow.
    """
    framework = framework_of(facts)
    return spelled(framework, field, before=before, after=after)


def spelled(framework: Framework | None, field: str, *, before: Value, after: Value) -> Change:
    """One setting to change in a framework; without an option where that is not known."""
    name = "" if framework is None else framework.name.lower()
    found = preset("options.yaml").get(name, {}).get(field, "")
    if not isinstance(found, dict):
        return Change(field=field, option=str(found), before=before, after=after)
    values = found["values"]
    return Change(
        field=field,
        option=str(found["option"]),
        before=values.get(before, ""),
        after=values.get(after, values.get("other", "?")),
    )


def from_trace(share: float) -> Gain:
    """What a finding costs is the most that its cure can bring."""
    return Gain(share=share, basis="trace")


def kept_batch(plan: Plan, context: Context) -> Plan | None:
    """A changed plan with the batch and the GPUs of the run; None where they do not divide."""
    assert context.scenario is not None
    return carry(plan, context.scenario)


def roomier(context: Context) -> Plan | None:
    """The fastest plan that recomputes more, or takes less at a time, and has room to spare.

    Returns:
        A legal plan that fits and whose peak is lower by a share worth the change; None without
        one, or when the plan of the run is not known.
    """
    scenario, plan = context.scenario, context.plan
    if scenario is None or plan is None:
        return None
    modes = [m for m in Recompute if m and not (plan.recompute & (m | Recompute.FULL))]
    tried = [replace(plan, recompute=plan.recompute | m, recompute_layers=0) for m in modes]
    tried += [replace(plan, recompute=Recompute.FULL, recompute_layers=0)]
    if plan.micro_batch > 1:
        halved = kept_batch(replace(plan, micro_batch=plan.micro_batch // 2), context)
        tried += [] if halved is None else [halved]
    found = evaluate(scenario, PlanGrid.of([plan, *legal_only(scenario, tried)]))
    peak, seconds = found.memory.peak_bytes, found.time.step_time_s
    most = (1.0 - threshold("room_made")) * peak[0]
    roomy = [
        i for i in range(1, len(peak)) if peak[i] <= most and found.memory.verdict[i] != Verdict.OOM
    ]
    return found.grid.plan(min(roomy, key=lambda i: seconds[i])) if roomy else None


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
