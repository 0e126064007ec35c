"""Single changes of a plan that make it faster, or fit, each estimated again in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshplan.cost.memory import Verdict
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.carry import carry, legal_only
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.search.neighbours import neighbours, shown
from meshplan.space.plan import Framework, Plan, PlanGrid, Recompute, Schedule, Split

__all__ = ["Change", "best_changes"]

_NOTABLE = 0.01
_MOST = 5
_CHUNKS = (2, 3, 4, 5, 8, 10)


@record
class Change:
    """One change.

    Attributes:
        knob: plan field that changes.
        before: its value now.
        after: its value then.
        gain_fraction: share of the step that it saves; negative where it costs time to fit.
        result: the numbers of the changed plan, of length one.
    """

    knob: str
    before: object
    after: object
    gain_fraction: float
    result: Evaluation


def best_changes(scenario: Scenario, result: Evaluation) -> tuple[Change, ...]:
    """The single changes that help most, best first.

    Where the plan fits they make it faster; where it does not they make it fit.
    """
    plan = result.grid.plan(0)
    fits = result.memory.verdict[0] != Verdict.OOM
    step = float(result.time.step_time_s[0])
    found = [
        Change(
            knob=knob,
            before=before,
            after=after,
            gain_fraction=1.0 - float(tried.time.step_time_s[0]) / step,
            result=tried,
        )
        for knob, before, after, tried in _tried(scenario, plan)
        if tried.memory.verdict[0] != Verdict.OOM
    ]
    if fits:
        found = [change for change in found if change.gain_fraction > _NOTABLE]
    found.sort(key=lambda change: -change.gain_fraction)
    best: dict[str, Change] = {}
    for change in found:
        best.setdefault(change.knob, change)
    return tuple(list(best.values())[:_MOST])


def _tried(scenario: Scenario, plan: Plan) -> Iterator[tuple[str, object, object, Evaluation]]:
    for near in neighbours(scenario, plan):
        yield near.knob, near.before, near.after, near.result
    more = [
        (knob, variant)
        for knob, changed in _more(plan)
        if (variant := carry(changed, scenario)) is not None
    ]
    legal = {id(p) for p in legal_only(scenario, [variant for _, variant in more])}
    more = [item for item in more if id(item[1]) in legal]
    if not more:
        return
    results = evaluate(scenario, PlanGrid.of([variant for _, variant in more]))
    for place, (knob, variant) in enumerate(more):
        yield knob, shown(plan, knob), shown(variant, knob), results.one(place)


def _more(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Changes that no degree halves or doubles."""
    if plan.stage_layers:
        return
    if plan.pp > 1:
        for vpp in _CHUNKS:
            if vpp != plan.vpp and plan.framework in (Framework.MEGATRON, Framework.TORCHTITAN):
                changed = replace(plan, vpp=vpp, schedule=Schedule.INTERLEAVED)
                yield "vpp", changed
                yield "vpp", replace(changed, split=Split.BALANCED)
        if plan.split is Split.EVEN:
            yield "split", replace(plan, split=Split.BALANCED)
    if plan.tp > 1 and not plan.sp:
        yield "sp", replace(plan, sp=True)
    for mode in (Recompute.CORE_ATTENTION, Recompute.SELECTIVE_OP, Recompute.NORM):
        if plan.recompute != mode:
            yield "recompute", replace(plan, recompute=mode, recompute_layers=0)
    if plan.zero == 0:
        yield "zero", replace(plan, zero=3)
