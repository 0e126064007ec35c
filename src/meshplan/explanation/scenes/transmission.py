"""Transmission: what moves over which link, how many bytes, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from meshplan.cost.schedule.actions import Kind, Slot, device_of
from meshplan.explanation.scenes.capacity import growing, levels
from meshplan.explanation.scenes.exchange import exchange
from meshplan.explanation.scenes.facts import AxisTraffic, PlanFacts
from meshplan.explanation.scenes.phases import phases
from meshplan.explanation.scenes.records import (
    AXIS_TONE,
    Beat,
    Label,
    Mark,
    Paper,
    Scene,
    WhatIf,
    amount,
    beat,
    box,
    packet,
    text,
)
from meshplan.explanation.scenes.rounds import activations, gradients
from meshplan.units import format_duration

__all__ = ["transmission"]

_PLAY_S = 12.0


def transmission(facts: PlanFacts, mechanism: str, what_if: WhatIf, paper: Paper) -> Scene:
    """What moves."""
    made: dict[str, Callable[[], Scene]] = {
        "panorama": lambda: _all_axes(facts, paper),
        "data": lambda: gradients(facts, what_if.algorithm, paper),
        "tensor": lambda: activations(facts, what_if.algorithm, paper),
        "pipeline": lambda: _sends(facts, paper),
        "combination": lambda: exchange(facts, what_if.algorithm, paper),
        "scale": lambda: growing(facts, paper),
        "links": lambda: levels(facts, paper),
    }
    return made[mechanism]()


def _scene(
    mechanism: str,
    marks: list[Mark],
    paper: Paper,
    *,
    code: str = "",
    duration_s: float = 0.0,
    stops: tuple[float, ...] = (),
    facts: dict[str, float | str] | None = None,
    beats: tuple[Beat, ...] = (),
    opens_s: float = 0.0,
    **numbers: object,
) -> Scene:
    return Scene(
        mechanism=mechanism,
        mode="transmission",
        duration_s=duration_s,
        stops=stops,
        marks=tuple(marks),
        caption=Label(code=code or f"{mechanism}.transmission", numbers=numbers),
        facts=facts or {},
        opens_s=opens_s,
        paper=paper,
        beats=beats,
    )


def _race(lanes: tuple[AxisTraffic, ...], slowest: float) -> tuple[Beat, ...]:
    """Who is done when, if all axes started at once and had the network for themselves."""
    if not lanes:
        return ()
    said = [beat(0.0, "race.start", most_s=slowest)]
    order = sorted(lanes, key=lambda lane: lane.seconds)
    for place, lane in enumerate(order, start=1):
        at_s = _PLAY_S * (lane.seconds / slowest)
        rate = lane.num_bytes / lane.seconds if lane.seconds else 0.0
        told = {"axis": lane.name, "alone_s": lane.seconds, "sent_bytes": lane.num_bytes}
        others = tuple(later.name for later in order[place:])
        code = "race.done" + (".others" if others else "")
        left = {"others": others} if others else {}
        said.append(beat(at_s, code, **told, sent_bytes_per_s=rate, **left))
    return tuple(said)


def _all_axes(facts: PlanFacts, paper: Paper) -> Scene:
    """One lane per axis: what a device sends in one step, over which level."""
    lanes = facts.traffic
    slowest = max((lane.seconds for lane in lanes), default=0.0) or 1.0
    above = 66.0 if paper.narrow else 56.0
    marks: list[Mark] = [text(0, 20, "title.per_step", room=paper.width)]
    step = min((paper.height - above - 14) / max(len(lanes), 1), 120.0)
    for i, lane in enumerate(lanes):
        marks += _lane(facts, lane, paper, y=above + i * step, slowest=slowest)
    if not lanes:
        x, y = paper.width / 2, paper.height / 2
        marks.append(text(x, y, "nothing_moves", anchor="middle", tone="soft", room=paper.width))
    total = sum(lane.num_bytes for lane in lanes)
    known: dict[str, float | str] = {f"{lane.axis}_bytes": lane.num_bytes for lane in lanes}
    return _scene(
        "panorama",
        marks,
        paper,
        duration_s=_PLAY_S if lanes else 0.0,
        stops=tuple(sorted({0.0, *(_PLAY_S * (lane.seconds / slowest) for lane in lanes), _PLAY_S}))
        if lanes
        else (),
        facts={**known, "total_bytes": total},
        opens_s=_PLAY_S,
        beats=_race(lanes, slowest),
        code=_shape("panorama", lanes),
        total_bytes=total,
        count=len(lanes),
        largest=max(lanes, key=lambda lane: lane.num_bytes).name if lanes else "-",
    )


def _lane(
    facts: PlanFacts, lane: AxisTraffic, paper: Paper, *, y: float, slowest: float
) -> list[Mark]:
    """What one axis sends: its bar grows at the speed of its links, as all start at once."""
    narrow = paper.narrow
    left, wide, tall = (0.0, paper.width, 20.0) if narrow else (230.0, 560.0, 30.0)
    bar_y = y + (46 if narrow else 2)
    tier = facts.scenario.cluster.tiers[lane.tier].name
    numbers: dict[str, Any] = {"size": lane.size, "tier": tier}
    width = wide * lane.num_bytes / max(other.num_bytes for other in facts.traffic)
    tone, done_s = AXIS_TONE[lane.axis], _PLAY_S * (lane.seconds / slowest)
    title = Label(
        code="title.lane", numbers={"sent_bytes": lane.num_bytes, "alone_s": lane.seconds}
    )
    bar = box(left, bar_y, max(width, 2), tall, tone=tone, title=title, span=(0.0, done_s))
    middle = bar_y + tall / 2
    moving = packet(
        (left, middle),
        (left + width, middle),
        (0.0, done_s),
        num_bytes=lane.num_bytes,
        tone=tone,
        group=lane.axis,
    )
    literal = f"{amount(lane.num_bytes)} · {format_duration(lane.seconds)}"
    told = y + (16 if narrow else 22)
    return [
        text(0, y + 16, literal=lane.name, tone="strong"),
        text(0, y + 36, "lane", **numbers, tone="soft"),
        box(left, bar_y, wide, tall, tone="track"),
        _with_bytes(replace(bar, kind="grow"), lane.num_bytes, lane.axis),
        moving,
        text(paper.width, told, literal=literal, anchor="end"),
    ]


def _shape(mechanism: str, lanes: tuple[AxisTraffic, ...]) -> str:
    """Caption by the number of axes that send something: none, one, or several."""
    return f"{mechanism}.transmission" + {0: ".none", 1: ".one"}.get(len(lanes), "")


def _with_bytes(mark: Mark, num_bytes: float, group: str) -> Mark:
    return replace(mark, num_bytes=num_bytes, group=group)


def _bytes_on(facts: PlanFacts, axis: str) -> float:
    return next((lane.num_bytes for lane in facts.traffic if lane.axis == axis), 0.0)


def _sends(facts: PlanFacts, paper: Paper) -> Scene:
    """Activations down the pipeline and gradients back, at the times of the simulation."""
    plan = facts.plan
    if plan.pp == 1:
        return _no_sends(facts, paper)
    slots = facts.slots
    makespan = max(slot.end_s for slot in slots)
    cut = min(makespan, max(s.end_s for s in slots if s.micro_batch < max(plan.pp, 4)))
    drawn = min(plan.pp, 8 if paper.narrow else 16)
    pitch = (paper.width - 20) / drawn
    scale = _PLAY_S / cut
    y = 138.0
    marks: list[Mark] = []
    for d in range(drawn):
        marks.append(box(10 + d * pitch, y, pitch * 0.66, 70, tone="frame"))
        middle, literal = 10 + d * pitch + pitch * 0.33, f"PP{d}"
        marks.append(text(middle, y + 18, literal=literal, tone="soft", anchor="middle"))
    for slot in slots:
        if slot.start_s >= cut or slot.device >= drawn:
            continue
        span = (slot.start_s * scale, min(slot.end_s * scale, _PLAY_S))
        tone = "t0" if slot.kind is Kind.FORWARD else "t1"
        x = 10 + slot.device * pitch
        literal = str(slot.micro_batch)
        wide = pitch * 0.66 - 8
        marks.append(box(x + 4, y + 26, wide, 40, tone=tone, literal=literal, span=span))
        marks += _send(facts, slot, cut=cut, scale=scale, drawn=drawn, pitch=pitch, y=y)
    marks.append(text(10, 60, "sends.forward", tone="t0"))
    marks.append(text(10, 84, "sends.backward", tone="t1"))
    marks += _strip(slots, paper, cut=cut, scale=scale, drawn=drawn)
    per_step = _bytes_on(facts, "pp")
    if drawn < plan.pp:
        few: dict[str, Any] = {"shown": drawn, "count": plan.pp}
        marks.append(text(paper.width, 60, "some_of", tone="soft", anchor="end", **few))
    return _scene(
        "pipeline",
        marks,
        paper,
        duration_s=_PLAY_S,
        stops=tuple(np.linspace(0, _PLAY_S, 13).tolist()),
        facts={
            "send_bytes": facts.send_bytes,
            "step_bytes": per_step,
            "shown_s": cut,
            "makespan_s": makespan,
        },
        opens_s=_PLAY_S * 0.45,
        beats=phases(slots, scale=scale, until_s=_PLAY_S, told={"pp": plan.pp}),
        send_bytes=facts.send_bytes,
        step_bytes=per_step,
        pp=plan.pp,
        shown_s=cut,
        num_micro_batches=plan.num_micro_batches,
    )


def _no_sends(facts: PlanFacts, paper: Paper) -> Scene:
    """One stage holds all layers: there is nobody to send to."""
    layers = facts.scenario.model.num_layers
    marks = [
        box(0, 20, paper.width, 60, tone="t0", literal=f"PP0 · L0 – L{layers - 1}"),
        text(0, 110, "no_pipeline", tone="soft", room=paper.width),
    ]
    known: dict[str, float | str] = {"send_bytes": facts.send_bytes, "step_bytes": 0.0}
    return _scene("pipeline", marks, paper, code="pipeline.transmission.none", facts=known)


def _strip(
    slots: tuple[Slot, ...], paper: Paper, *, cut: float, scale: float, drawn: int
) -> list[Mark]:
    """What has been done so far, stage by stage."""
    left = 40.0 if paper.narrow else 52.0
    top, each = 276.0, min(190.0 / drawn, 40.0)
    marks = [box(left, top, paper.width - left, each * drawn, tone="track")]
    across = (paper.width - left) / cut
    for d in range(0, drawn, -(-drawn // 8)):
        marks.append(text(0, top + each * (d + 0.7), literal=f"PP{d}", tone="soft"))
    for slot in slots:
        if slot.end_s <= cut and slot.device < drawn:
            tone = "t0" if slot.kind is Kind.FORWARD else "t1"
            span = (slot.start_s * scale, slot.end_s * scale)
            width = (slot.end_s - slot.start_s) * across
            x, y = left + slot.start_s * across, top + slot.device * each
            bar = box(x, y, width, each * 0.9, tone=tone, span=span, group="strip")
            marks.append(replace(bar, kind="grow"))
    return marks


def _send(
    facts: PlanFacts,
    slot: Slot,
    *,
    cut: float,
    scale: float,
    drawn: int,
    pitch: float,
    y: float,
) -> list[Mark]:
    """What a device sends when an action is over."""
    plan = facts.plan
    ahead = slot.kind is Kind.FORWARD
    other = slot.virtual_stage + (1 if ahead else -1)
    if slot.kind is Kind.BACKWARD_WEIGHT or not 0 <= other < plan.pp * plan.vpp:
        return []
    target = device_of(other, pp=plan.pp, schedule=plan.schedule)
    if target == slot.device or target >= drawn or slot.end_s >= cut:
        return []
    level = y - 20 if ahead else y + 90
    start = (10 + slot.device * pitch + pitch * 0.33, level)
    end = (10 + target * pitch + pitch * 0.33, level)
    begin = slot.end_s * scale
    length = max(facts.times.send_s * scale, 0.25)  # a send too short to see is drawn longer
    span = (begin, min(begin + length, _PLAY_S))
    tone = "t0" if ahead else "t1"
    literal = str(slot.micro_batch)
    return [
        packet(start, end, span, num_bytes=facts.send_bytes, tone=tone, literal=literal, group="pp")
    ]
