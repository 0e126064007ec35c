"""Recompute that the memory does not ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean

from meshplan.diagnose.findings import pipeline, places
from meshplan.diagnose.findings.cures import best_of, change, from_trace
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.records import Action, Finding, Gain
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.space.names import recompute_text
from meshplan.space.plan import Framework, Plan, Recompute

__all__ = ["find"]


def find(facts: Facts) -> Outcome:
    """Look for work that is done again although what it saves would fit.

    Whether it would fit says the memory model where the plan is known, else the memory that the
    allocator never asked for.
    """
    seconds = {r.rank: us for r in facts.ranks if (us := _again_us(facts, r.rank)) > 0}
    plan = facts.context.plan
    if not seconds:
        if plan is not None and plan.recompute & Recompute.FULL:
            return Open("recompute_not_annotated")
        return ABSENT
    share = facts.share(pipeline.shorter_us(facts, _of_pace(facts, seconds)))
    if share < threshold("least_share"):
        return CLEAR
    lighter = _lighter(facts)
    room = _room(facts)
    if lighter is None and room is None:
        return Open("memory_unknown")
    if lighter is None and (room is None or room > threshold("room_share")):
        return CLEAR
    worst = max(seconds, key=lambda rank: seconds[rank])
    before = "full" if plan is None else _text(plan)
    after = "selective" if lighter is None else _text(lighter[0])
    return Finding(
        code="recompute_not_needed",
        cost_share=share,
        numbers={
            "recompute_fraction": share,
            "reserved_fraction": room if room is not None else -1.0,
            "before": before,
        },
        ranks=tuple(sorted(seconds)),
        places=places.steps(facts, [worst]),
        action=Action(
            code="no_recompute" if after == "none" else "less_recompute",
            numbers={"after": after},
            changes=(change(facts, "recompute", before=before, after=after),),
            plan=None if lighter is None else lighter[0],
        ),
        gain=lighter[1] if lighter is not None else from_trace(share),
        confidence="high" if lighter is not None else "medium",
        reason="memory_estimated" if lighter is not None else "memory_reserved",
    )


def _again_us(facts: Facts, rank: int) -> float:
    """Time of a step that goes into computing again, with the traffic that it repeats [us]."""
    found = facts.run.rank(rank)
    if found is None:
        return 0.0
    per_step = [
        sum(p.compute_us + p.communication_us for p in step.phases if p.name == "recompute")
        for step in found.steady
    ]
    return fmean(per_step) if per_step else 0.0


def _of_pace(facts: Facts, seconds: Mapping[int, float]) -> dict[int, float]:
    """Of each stage the time of the rank that the others wait for: theirs holds the wait."""
    made = {}
    for ranks in facts.stages:
        pace = facts.pace_rank(f for f in facts.flows if f.rank in ranks and f.rank in seconds)
        for rank in ranks if pace is None else (pace,):
            made[rank] = seconds.get(rank, 0.0)
    return made


def _room(facts: Facts) -> float | None:
    """Share of the device's memory that the allocator asked for at most; None when unknown."""
    shares = [
        r.peak_reserved_bytes / r.device_memory_bytes
        for r in facts.ranks
        if r.peak_reserved_bytes and r.device_memory_bytes
    ]
    return max(shares) if shares else None


def _text(plan: Plan) -> str:
    return recompute_text(plan.recompute, layers=plan.recompute_layers)


def _lighter(facts: Facts) -> tuple[Plan, Gain] | None:
    """The plan with the best lighter recompute that fits by the memory model, and what it saves."""
    plan = facts.context.plan
    if plan is None or facts.context.scenario is None:
        return None
    found = best_of(facts.context, _candidates(plan))
    if found is None:
        return None
    return found[0].grid.plan(0), Gain(share=found[1], basis="cost_model")


def _candidates(plan: Plan) -> Iterator[Plan]:
    modes = [Recompute.NONE]
    if plan.framework is Framework.MEGATRON:
        modes += [Recompute.CORE_ATTENTION, Recompute.NORM]
    if plan.framework is Framework.TORCHTITAN:
        modes.append(Recompute.SELECTIVE_OP)
    for mode in modes:
        if mode != plan.recompute:
            yield replace(plan, recompute=mode, recompute_layers=0)
