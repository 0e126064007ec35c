"""Transmission: what moves over which link, how many bytes, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from meshplan.cost.schedule.actions import Kind, Slot, device_of
from meshplan.explanation.scenes.capacity import growing, levels
from meshplan.explanation.scenes.exchange import exchange
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import (
    AXIS_TONE,
    Label,
    Mark,
    Paper,
    Scene,
    WhatIf,
    amount,
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
    duration_s: float = 0.0,
    stops: tuple[float, ...] = (),
    facts: dict[str, float | str] | None = None,
    **numbers: object,
) -> Scene:
    return Scene(
        mechanism=mechanism,
        mode="transmission",
        duration_s=duration_s,
        stops=stops,
        marks=tuple(marks),
        caption=Label(code=f"{mechanism}.transmission", numbers=numbers),
        facts=facts or {},
        opens_s=duration_s * 0.45,
        paper=paper,
    )


def _all_axes(facts: PlanFacts, paper: Paper) -> Scene:
    """One lane per axis: what a device sends in one step, over which level."""
    lanes = facts.traffic
    tiers = facts.scenario.cluster.tiers
    most = max((lane.num_bytes for lane in lanes), default=1.0)
    narrow = paper.narrow
    left, wide = (0.0, paper.width) if narrow else (230.0, 560.0)
    above, tall = (66.0, 20.0) if narrow else (56.0, 30.0)
    marks: list[Mark] = [text(0, 20, "title.per_step", room=paper.width)]
    step = min((paper.height - above - 14) / max(len(lanes), 1), 120.0)
    for i, lane in enumerate(lanes):
        y = above + i * step
        bar_y = y + (46 if narrow else 2)
        numbers: dict[str, Any] = {"size": lane.size, "tier": tiers[lane.tier].name}
        marks.append(text(0, y + 16, literal=lane.name, tone="strong"))
        marks.append(text(0, y + 36, "lane", **numbers, tone="soft"))
        width = wide * lane.num_bytes / most
        marks.append(box(left, bar_y, wide, tall, tone="track"))
        title = Label(
            code="title.lane", numbers={"sent_bytes": lane.num_bytes, "alone_s": lane.seconds}
        )
        bar = box(left, bar_y, max(width, 2), tall, tone=AXIS_TONE[lane.axis], title=title)
        marks.append(_with_bytes(bar, lane.num_bytes, lane.axis))
        literal = f"{amount(lane.num_bytes)} · {format_duration(lane.seconds)}"
        told = y + (16 if narrow else 22)
        marks.append(text(paper.width, told, literal=literal, anchor="end"))
        # packets run faster where the traffic takes less time
        slowest = max(other.seconds for other in lanes)
        period = 1.2 + 4.8 * lane.seconds / slowest if slowest else 2.0
        for k in range(int(_PLAY_S / period)):
            marks.append(
                packet(
                    (left, bar_y + tall / 2),
                    (left + wide, bar_y + tall / 2),
                    (k * period, (k + 1) * period),
                    num_bytes=lane.num_bytes,
                    group=lane.axis,
                )
            )
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
        stops=tuple(np.linspace(0, _PLAY_S, 7).tolist()) if lanes else (),
        facts={**known, "total_bytes": total},
        total_bytes=total,
        count=len(lanes),
        most=lanes[0].name if lanes else "-",
        largest=max(lanes, key=lambda lane: lane.num_bytes).name if lanes else "-",
    )


def _with_bytes(mark: Mark, num_bytes: float, group: str) -> Mark:
    return replace(mark, num_bytes=num_bytes, group=group)


def _bytes_on(facts: PlanFacts, axis: str) -> float:
    return next((lane.num_bytes for lane in facts.traffic if lane.axis == axis), 0.0)


def _sends(facts: PlanFacts, paper: Paper) -> Scene:
    """Activations down the pipeline and gradients back, at the times of the simulation."""
    plan = facts.plan
    slots = facts.slots
    makespan = max(slot.end_s for slot in slots)
    cut = min(makespan, max(s.end_s for s in slots if s.micro_batch < max(plan.pp, 4)))
    drawn = min(plan.pp, 8 if paper.narrow else 16)
    pitch = (paper.width - 20) / drawn
    scale = _PLAY_S / cut
    y = 150.0
    marks: list[Mark] = []
    for d in range(drawn):
        marks.append(box(10 + d * pitch, y, pitch * 0.66, 70, tone="frame", literal=f"PP{d}"))
    for slot in slots:
        if slot.start_s >= cut or slot.device >= drawn:
            continue
        span = (slot.start_s * scale, min(slot.end_s * scale, _PLAY_S))
        tone = "t0" if slot.kind is Kind.FORWARD else "t1"
        x = 10 + slot.device * pitch
        literal = str(slot.micro_batch)
        marks.append(box(x, y, pitch * 0.66, 70, tone=tone, literal=literal, span=span))
        marks += _send(facts, slot, cut=cut, scale=scale, drawn=drawn, pitch=pitch, y=y)
    marks.append(text(10, 60, "sends.forward", tone="t0"))
    marks.append(text(10, 84, "sends.backward", tone="t1"))
    marks += _strip(slots, paper, cut=cut, scale=scale, drawn=drawn)
    per_step = _bytes_on(facts, "pp")
    if plan.pp == 1:
        marks.append(text(10, y + 150, "no_pipeline", tone="soft", room=paper.width - 10))
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
        send_bytes=facts.send_bytes,
        step_bytes=per_step,
        pp=plan.pp,
        shown_s=cut,
        num_micro_batches=plan.num_micro_batches,
    )


def _strip(
    slots: tuple[Slot, ...], paper: Paper, *, cut: float, scale: float, drawn: int
) -> list[Mark]:
    """What has been done so far, stage by stage."""
    left = 40.0 if paper.narrow else 52.0
    top, each = 330.0, min(170.0 / drawn, 40.0)
    marks = [box(left, top, paper.width - left, each * drawn, tone="track")]
    across = (paper.width - left) / cut
    for d in range(0, drawn, -(-drawn // 8)):
        marks.append(text(0, top + each * (d + 0.7), literal=f"PP{d}", tone="soft"))
    for slot in slots:
        if slot.end_s <= cut and slot.device < drawn:
            tone = "t0" if slot.kind is Kind.FORWARD else "t1"
            span = (slot.start_s * scale, 1e9)
            width = (slot.end_s - slot.start_s) * across
            x, y = left + slot.start_s * across, top + slot.device * each
            marks.append(box(x, y, width, each * 0.9, tone=tone, span=span, group="strip"))
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
