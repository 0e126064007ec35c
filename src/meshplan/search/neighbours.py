"""Plans that differ from one in a single knob, exactly evaluated: what each knob buys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.carry import carry, legal_only, with_degree, without_interleaving
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.space.names import recompute_text, to_text
from meshplan.space.plan import Offload, Plan, PlanGrid, Recompute

__all__ = ["Knob", "Neighbour", "neighbours", "shown"]

Knob = Literal["tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero", "recompute", "offload"]
_DEGREES: tuple[Knob, ...] = ("tp", "pp", "cp", "ep", "micro_batch")


@record
class Neighbour:
    """A legal plan one step away.

    Attributes:
        knob: what differs.
        direction: -1 for less of it, 1 for more.
        before: value in the plan it is a neighbour of.
        after: value in this plan.
        result: its exact numbers, of length one.
    """

    knob: Knob
    direction: int
    before: object
    after: object
    result: Evaluation


def neighbours(scenario: Scenario, plan: Plan) -> tuple[Neighbour, ...]:
    """Evaluate the legal plans one step away from a plan.

    Degrees are halved and doubled with data parallelism taking what is left; interleaving,
    recompute, offload and ZeRO go one stage down or up.
    """
    steps = [
        (knob, direction, variant)
        for knob, direction, changed in _steps(plan)
        if (variant := carry(changed, scenario)) is not None
    ]
    legal = {id(p) for p in legal_only(scenario, [variant for _, _, variant in steps])}
    steps = [step for step in steps if id(step[2]) in legal]
    if not steps:
        return ()
    results = evaluate(scenario, PlanGrid.of([variant for _, _, variant in steps]))
    return tuple(
        Neighbour(
            knob=knob,
            direction=direction,
            before=shown(plan, knob),
            after=shown(variant, knob),
            result=results.one(place),
        )
        for place, (knob, direction, variant) in enumerate(steps)
    )


def shown(plan: Plan, knob: str) -> object:
    """The value of a knob as people write it."""
    if knob == "recompute":
        return recompute_text(plan.recompute, layers=plan.recompute_layers)
    value = getattr(plan, knob)
    return to_text(value) if isinstance(value, Offload) else value


def _steps(plan: Plan) -> Iterator[tuple[Knob, int, Plan]]:
    for knob in _DEGREES:
        degree: int = getattr(plan, knob)
        if degree % 2 == 0:
            yield knob, -1, with_degree(plan, knob, degree // 2)
        yield knob, 1, with_degree(plan, knob, degree * 2)
    if plan.vpp > 1:
        yield "vpp", -1, without_interleaving(plan)
    if plan.zero > 0:
        yield "zero", -1, replace(plan, zero=plan.zero - 1)
    if plan.zero < 3:
        yield "zero", 1, replace(plan, zero=plan.zero + 1)
    if plan.recompute != Recompute.NONE:
        yield "recompute", -1, replace(plan, recompute=Recompute.NONE, recompute_layers=0)
    if plan.recompute != Recompute.FULL or plan.recompute_layers:
        yield "recompute", 1, replace(plan, recompute=Recompute.FULL, recompute_layers=0)
    if plan.offload != Offload.NONE:
        yield "offload", -1, replace(plan, offload=Offload.NONE)
