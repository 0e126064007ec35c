"""The timetable of a pipeline: the plan's own, or one that a person plays with."""

from __future__ import annotations

from dataclasses import replace

from meshplan.cost.schedule.actions import Kind, PipelineTimes, Slot
from meshplan.cost.schedule.simulate import simulate, timeline
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.phases import phases
from meshplan.explanation.scenes.records import Label, Mark, Paper, Scene, WhatIf, box, text
from meshplan.space.plan import Schedule
from meshplan.units import format_duration

__all__ = ["timetable"]

_CHUNKED = {
    Schedule.INTERLEAVED: 2,
    Schedule.INTERLEAVED_ZB: 2,
    Schedule.ZBV: 2,
    Schedule.DUALPIPE_V: 2,
}
_TONE = {
    Kind.FORWARD: "t0",
    Kind.BACKWARD: "t1",
    Kind.BACKWARD_INPUT: "t1",
    Kind.BACKWARD_WEIGHT: "t2",
}
_PLAY_S = 10.0
MOST_SLOTS = 3000


def _uniform(facts: PlanFacts, *, layers: int, pp: int, vpp: int) -> PipelineTimes:
    """Times of equal stages of the model's most frequent block."""
    kinds = list(facts.scenario.model.layer_kinds)
    unit = facts.units[kinds.index(facts.layer)]
    each = layers / (pp * vpp)
    again = float(unit.again_s[0]) if facts.plan.recompute else 0.0

    def all_of(seconds: float) -> tuple[float, ...]:
        return (each * seconds,) * (pp * vpp)

    return replace(
        facts.times,
        forward_s=all_of(float(unit.ahead_s[0])),
        backward_input_s=all_of(float(unit.back_s[0]) + again),
        backward_weight_s=all_of(float(unit.weight_s[0])),
        blocking=facts.times.blocking and vpp == 1,
    )


def timetable(facts: PlanFacts, what_if: WhatIf, paper: Paper) -> Scene:
    """Every forward and backward of every stage in time; what is white is the bubble."""
    p = facts.plan
    played = what_if != WhatIf()
    schedule = p.schedule if what_if.schedule is None else what_if.schedule
    pp = what_if.pp or p.pp
    layers = what_if.num_layers or facts.scenario.model.num_layers
    chunks = _CHUNKED.get(schedule, 1) if pp > 1 else 1
    vpp = chunks if played else p.vpp
    schedule = schedule if pp > 1 else Schedule.ONE_F_ONE_B
    times = _uniform(facts, layers=layers, pp=pp, vpp=vpp) if played else facts.times
    micro = what_if.num_micro_batches or p.num_micro_batches
    if schedule in _CHUNKED:
        # chunks send whole rounds of the pipeline
        micro = max(pp, micro // pp * pp)
        micro = max(micro, 2 * pp) if schedule in (Schedule.ZBV, Schedule.DUALPIPE_V) else micro
    full = simulate(schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=micro, times=times)
    most = max(MOST_SLOTS // (2 * pp * vpp), 2 * pp)
    shown = micro if micro <= most else max(most // pp * pp, pp)
    slots = timeline(schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=shown, times=times)
    makespan = max(slot.end_s for slot in slots)
    marks = _slots(slots, paper, makespan=makespan, pp=pp)
    work = _ideal(times, micro=micro, pp=pp)
    share = max(1 - work / full, 0.0)
    known: dict[str, float | str] = {
        "makespan_s": makespan,
        "full_s": full,
        "ideal_s": work,
        "bubble_share": share,
        "pp": pp,
        "vpp": vpp,
        "num_micro_batches": micro,
        "shown_micro_batches": shown,
        "schedule": schedule.name.lower(),
        "num_layers": layers,
    }
    y = 44 if paper.narrow else 20
    marks.append(text(paper.width, y, "bubble", anchor="end", tone="strong", share=share))
    return Scene(
        mechanism="pipeline",
        mode="output",
        duration_s=_PLAY_S,
        stops=tuple(_PLAY_S * i / 12 for i in range(13)),
        marks=tuple(marks),
        controls="pipeline",
        opens_s=_PLAY_S,
        paper=paper,
        beats=phases(slots, scale=_PLAY_S / makespan, until_s=_PLAY_S, told={"pp": pp})
        if pp > 1
        else (),
        facts=known,
        caption=Label(
            code="pipeline.output" if shown == micro else "pipeline.output.some",
            numbers={
                "pp": pp,
                "num_micro_batches": micro,
                "shown": shown,
                "full_s": full,
                "share": share,
                "simple": (pp - 1) / (micro + pp - 1),
            },
        ),
    )


def _ideal(times: PipelineTimes, *, micro: int, pp: int) -> float:
    """Work of the mean device without any waiting [s]."""
    work = sum(times.forward_s) + sum(times.backward_input_s) + sum(times.backward_weight_s)
    return micro * work / pp


def _slots(slots: tuple[Slot, ...], paper: Paper, *, makespan: float, pp: int) -> list[Mark]:
    left, top = (40.0, 60.0) if paper.narrow else (52.0, 40.0)
    width, pitch = paper.width - left, min((paper.height - top - 30) / pp, 96.0)
    second, third = (92, 196) if paper.narrow else (130, 280)
    scale = width / makespan
    marks: list[Mark] = [
        box(left, top, width, pitch * pp, tone="track"),
        text(0, 20, "timetable.forward", tone="t0"),
        text(second, 20, "timetable.backward", tone="t1"),
    ]
    if any(slot.kind is Kind.BACKWARD_WEIGHT for slot in slots):
        marks.append(text(third, 20, "timetable.weight", tone="t2"))
    every = -(-pp // 24)
    for d in range(0, pp, every):
        marks.append(text(0, top + pitch * (d + 0.62), literal=f"PP{d}", tone="soft"))
    for slot in slots:
        w = (slot.end_s - slot.start_s) * scale
        marks.append(
            box(
                left + slot.start_s * scale,
                top + slot.device * pitch,
                w,
                pitch * 0.92,
                tone=_TONE[slot.kind],
                literal=str(slot.micro_batch) if w > 15 and pitch > 14 else "",
                span=(_PLAY_S * slot.start_s / makespan, 1e9),
                seconds=slot.end_s - slot.start_s,
                group=f"pp{slot.device}",
                title=Label(
                    code="title.slot",
                    numbers={
                        "micro_batch": slot.micro_batch,
                        "virtual_stage": slot.virtual_stage,
                        "start_s": slot.start_s,
                        "long_s": slot.end_s - slot.start_s,
                    },
                ),
            )
        )
    y = top + pitch * pp + 22
    marks.append(text(left, y, literal="0"))
    marks.append(text(paper.width, y, literal=format_duration(makespan), anchor="end"))
    return marks
