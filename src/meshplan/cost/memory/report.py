"""Memory of a single plan, stage by stage and line by line."""

from __future__ import annotations

from collections.abc import Mapping

from meshplan.cost.memory.grid import Evaluator, StagePart
from meshplan.cost.memory.lines import IMBALANCE
from meshplan.cost.memory.records import StageMemory, Term
from meshplan.cost.memory.shapes import rounded
from meshplan.cost.memory.stage import event_lines
from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, Plan, PlanGrid

__all__ = ["stage_memory"]


def stage_memory(
    scenario: Scenario,
    plan: Plan,
    *,
    behaviours: Mapping[Framework, FrameworkMemory] | None = None,
) -> tuple[StageMemory, ...]:
    """Break the memory of a plan down by pipeline device, event and line.

    The highest total of the devices equals :func:`peak_memory` of the same plan bit for bit.

    Args:
        scenario: model, cluster and job.
        plan: a legal plan.
        behaviours: framework behaviours other than the presets.

    Returns:
        One entry per pipeline device, in order.
    """
    evaluator = Evaluator(scenario, PlanGrid.of([plan]), behaviours=behaviours)
    return tuple(_stage(evaluator, part) for part in evaluator.parts(representatives=False))


def _stage(evaluator: Evaluator, part: StagePart) -> StageMemory:
    fraction, beside = evaluator.overhead()
    events = []
    for event, lines in event_lines(part.inputs, together=None).items():
        sizes = {
            code: sum(float(line.num_bytes()[0]) for line in parts) for code, parts in lines.items()
        }
        terms = [
            Term(
                code=code,
                num_bytes=num_bytes,
                numbers=_numbers(part, code),
                allowance=code == IMBALANCE,
            )
            for code, num_bytes in sizes.items()
            if num_bytes
        ]
        certain = sum(num_bytes for code, num_bytes in sizes.items() if code != IMBALANCE)
        fragmentation = float(rounded(fraction * certain)[0])
        terms.append(Term(code="fragmentation", num_bytes=fragmentation, allowance=True))
        terms.append(Term(code="communicators", num_bytes=float(beside[0])))
        events.append((event, tuple(terms)))
    totals = {event: sum(term.num_bytes for term in terms) for event, terms in events}
    per_device = float(part.offloaded[0] * evaluator.behaviours["host_factor"][0])
    return StageMemory(
        stage=part.stage,
        num_layers=sum(chunk.num_layers for chunk in part.chunks),
        peak_event=max(totals, key=lambda event: (totals[event], -event)),
        terms=tuple(events),
        host_bytes=per_device,
    )


def _numbers(part: StagePart, code: str) -> tuple[tuple[str, float], ...]:
    """What the formula of a line was filled with: parameters, or micro-batches in flight."""
    i = part.inputs
    if code in ("weights", "gradients", "optimizer"):
        p = i.states.parameters
        if code == "weights":
            held = p.dense + p.expert + p.ends
        else:
            held = p.trainable_dense + p.trainable_expert
        return (("parameters", float(i.state_values(held)[0])),)
    if any(code in chunk.saved for chunk in i.chunks):
        return (("in_flight", float(sum(count[0] for count in i.in_flight))),)
    return ()
