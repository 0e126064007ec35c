"""Transmission: what moves over which link, how many bytes, and when."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from meshplan.cost.collectives import Collective
from meshplan.cost.schedule.actions import Kind, Slot, device_of
from meshplan.explanation.scenes.capacity import growing, levels
from meshplan.explanation.scenes.facts import PlanFacts, ring_of
from meshplan.explanation.scenes.records import HEIGHT, WIDTH, Label, Mark, Scene, box, packet, text
from meshplan.units import format_duration, format_memory

__all__ = ["transmission"]

MOST_DRAWN = 8
BF16_BYTES = 2.0
_PLAY_S = 12.0


def transmission(facts: PlanFacts, mechanism: str) -> Scene:
    """What moves."""
    made: dict[str, Callable[[PlanFacts], Scene]] = {
        "panorama": _all_axes,
        "combination": _all_axes,
        "data": _gradients,
        "tensor": _activations,
        "pipeline": _sends,
        "scale": growing,
        "links": levels,
    }
    scene = made[mechanism](facts)
    return scene if scene.mechanism == mechanism else _renamed(scene, mechanism)


def _renamed(scene: Scene, mechanism: str) -> Scene:
    caption = Label(code=f"{mechanism}.transmission", numbers=scene.caption.numbers)
    return replace(scene, mechanism=mechanism, caption=caption)


def _scene(
    mechanism: str,
    marks: list[Mark],
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
    )


def _all_axes(facts: PlanFacts) -> Scene:
    """One lane per axis: what a device sends in one step, over which level."""
    lanes = facts.traffic
    tiers = facts.scenario.cluster.tiers
    most = max((lane.num_bytes for lane in lanes), default=1.0)
    marks: list[Mark] = [text(0, 20, "title.per_step")]
    step = min((HEIGHT - 70) / max(len(lanes), 1), 120.0)
    for i, lane in enumerate(lanes):
        y = 56 + i * step
        numbers: dict[str, Any] = {"size": lane.size, "tier": tiers[lane.tier].name}
        marks.append(text(0, y + 16, literal=lane.axis.upper(), tone="strong"))
        marks.append(text(0, y + 36, "lane", **numbers, tone="soft"))
        width = 560 * lane.num_bytes / most
        marks.append(box(230, y + 2, 560, 30, tone="track"))
        title = Label(
            code="title.lane", numbers={"sent_bytes": lane.num_bytes, "alone_s": lane.seconds}
        )
        bar = box(230, y + 2, max(width, 2), 30, tone=f"t{i}", title=title)
        marks.append(_with_bytes(bar, lane.num_bytes, lane.axis))
        literal = f"{format_memory(lane.num_bytes)} · {format_duration(lane.seconds)}"
        marks.append(text(WIDTH, y + 22, literal=literal, anchor="end"))
        # packets run faster where the traffic takes less time
        slowest = max(other.seconds for other in lanes)
        period = 1.2 + 4.8 * lane.seconds / slowest if slowest else 2.0
        for k in range(int(_PLAY_S / period)):
            marks.append(
                packet(
                    (230, y + 17),
                    (790, y + 17),
                    (k * period, (k + 1) * period),
                    num_bytes=lane.num_bytes,
                    group=lane.axis,
                )
            )
    if not lanes:
        marks.append(text(WIDTH / 2, HEIGHT / 2, "nothing_moves", anchor="middle", tone="soft"))
    total = sum(lane.num_bytes for lane in lanes)
    known: dict[str, float | str] = {f"{lane.axis}_bytes": lane.num_bytes for lane in lanes}
    return _scene(
        "panorama",
        marks,
        duration_s=_PLAY_S if lanes else 0.0,
        stops=tuple(np.linspace(0, _PLAY_S, 7).tolist()) if lanes else (),
        facts={**known, "total_bytes": total},
        total_bytes=total,
        count=len(lanes),
        most=lanes[0].axis.upper() if lanes else "-",
        largest=max(lanes, key=lambda lane: lane.num_bytes).axis.upper() if lanes else "-",
    )


def _with_bytes(mark: Mark, num_bytes: float, group: str) -> Mark:
    return replace(mark, num_bytes=num_bytes, group=group)


def _ring(
    *, kind: Collective, buffer_bytes: float, size: int, begin: float, centre: tuple[float, float]
) -> tuple[list[Mark], float, int, float]:
    """A ring of devices that pass chunks on; rounds beyond those of eight devices are alike."""
    rounds, chunk = ring_of(kind, buffer_bytes=buffer_bytes, size=size)
    drawn = min(size, MOST_DRAWN)
    shown, _ = ring_of(kind, buffer_bytes=buffer_bytes, size=drawn)
    place = [
        (
            centre[0] + 165 * math.sin(2 * math.pi * i / drawn),
            centre[1] - 165 * math.cos(2 * math.pi * i / drawn),
        )
        for i in range(drawn)
    ]
    marks: list[Mark] = []
    for r in range(shown):
        for i in range(drawn):
            a, b = place[i], place[(i + 1) % drawn]
            span = (begin + r, begin + r + 1.0)
            tone = f"t{(i - r) % drawn}"
            marks.append(packet(a, b, span, num_bytes=chunk, tone=tone, group=kind.value))
    return marks, begin + shown, rounds, chunk


def _ring_scene(
    facts: PlanFacts,
    mechanism: str,
    runs: list[tuple[Collective, float]],
    *,
    axis: str,
    size: int,
    stride: int,
    tier: int,
    per_step: float,
) -> Scene:
    drawn = min(size, MOST_DRAWN)
    centre = (WIDTH / 2 - 150, HEIGHT / 2 + 8)
    marks: list[Mark] = []
    for i in range(drawn):
        x = centre[0] + 165 * math.sin(2 * math.pi * i / drawn)
        y = centre[1] - 165 * math.cos(2 * math.pi * i / drawn)
        j = (i + 1) % drawn
        if drawn > 1:
            nx = centre[0] + 165 * math.sin(2 * math.pi * j / drawn)
            ny = centre[1] - 165 * math.cos(2 * math.pi * j / drawn)
            marks.append(Mark(kind="line", x=x, y=y, w=nx - x, h=ny - y, tone="frame"))
    begin, sent, known = 0.0, 0.0, {}
    side = WIDTH - 330
    for k, (kind, buffer_bytes) in enumerate(runs):
        more, end, rounds, chunk = _ring(
            kind=kind, buffer_bytes=buffer_bytes, size=size, begin=begin, centre=centre
        )
        y = 120 + k * 130
        span = (begin, end)
        marks.append(box(side - 16, y - 30, 346, 112, tone="glow", span=span))
        marks.append(box(side - 16, y - 30, 346, 112, tone="frame"))
        marks.append(text(side, y, f"collective.{kind.value}", tone="strong"))
        marks.append(text(side, y + 26, "rounds", rounds=rounds, chunk_bytes=chunk))
        marks.append(
            text(side, y + 50, "sent_each", sent_bytes=rounds * chunk, buffer_bytes=buffer_bytes)
        )
        marks += more
        known[f"{kind.value}_bytes"] = rounds * chunk
        sent += rounds * chunk
        begin = end
    for i in range(drawn):
        x = centre[0] + 165 * math.sin(2 * math.pi * i / drawn)
        y = centre[1] - 165 * math.cos(2 * math.pi * i / drawn)
        marks.append(box(x - 27, y - 18, 54, 36, tone=f"t{i}", literal=str(i * stride)))
    note = "ring_more" if size > drawn else "ring_all"
    marks.append(text(centre[0], centre[1] - 6, literal=axis, tone="strong", anchor="middle"))
    below = HEIGHT - 12
    marks.append(text(centre[0], below, note, anchor="middle", size=size, drawn=drawn))
    if not runs:
        marks.append(text(side, 120, "nothing_moves", tone="soft"))
    facts_of: dict[str, float | str] = {
        **known,
        "sent_bytes": sent,
        "step_bytes": per_step,
        "size": size,
    }
    return _scene(
        mechanism,
        marks,
        duration_s=begin,
        stops=tuple(float(t) for t in range(int(begin) + 1)),
        facts=facts_of,
        sent_bytes=sent,
        step_bytes=per_step,
        size=size,
        axis=axis,
        tier=facts.scenario.cluster.tiers[tier].name,
    )


def _bytes_on(facts: PlanFacts, axis: str) -> float:
    return next((lane.num_bytes for lane in facts.traffic if lane.axis == axis), 0.0)


def _gradients(facts: PlanFacts) -> Scene:
    """Gradients of one block over its replicas."""
    plan, replicas = facts.plan, facts.replicas
    sharded = plan.zero > 0
    size, stride = facts.group("dp_shard_cp" if sharded else "dp_cp")
    share = (size - 1) / size if size > 1 else 1.0
    runs: list[tuple[Collective, float]] = []
    reduce, gather = float(replicas.reduce.num_bytes[0]), float(replicas.gather.num_bytes[0])
    if size > 1 and plan.dp_replicate == 1 and plan.ep == 1:
        kind = Collective.REDUCE_SCATTER if sharded else Collective.ALL_REDUCE
        runs.append((kind, reduce / share / (1.0 if sharded else 2.0)))
        if sharded:
            runs.append((Collective.ALL_GATHER, gather / share))
    elif size > 1:
        # several groups take part; the buffer is the one that gives what the cost model counts
        runs.append((Collective.REDUCE_SCATTER, reduce / share))
        runs.append((Collective.ALL_GATHER, gather / share))
    return _ring_scene(
        facts,
        "data",
        runs,
        axis="DP",
        size=size,
        stride=stride,
        tier=facts.tier_of("dp_cp"),
        per_step=_bytes_on(facts, "dp"),
    )


def _activations(facts: PlanFacts) -> Scene:
    """Activations of one block, forward, inside a tensor-parallel group."""
    size, stride = facts.group("tp")
    total = float(facts.block.tp_forward.num_bytes[0])
    share = (size - 1) / size if size > 1 else 1.0
    runs: list[tuple[Collective, float]] = []
    if size > 1 and facts.plan.sp:
        tokens = facts.plan.micro_batch * facts.scenario.job.seq_len / facts.plan.cp
        pairs = BF16_BYTES * tokens * facts.scenario.model.hidden * share
        # what is gathered and what is scattered together are what the block sends
        half = pairs * max(round(total / pairs / 2), 1)
        runs = [
            (Collective.ALL_GATHER, (total - half) / share),
            (Collective.REDUCE_SCATTER, half / share),
        ]
    elif size > 1:
        runs = [(Collective.ALL_REDUCE, total / (2 * share))]
    return _ring_scene(
        facts,
        "tensor",
        runs,
        axis="TP",
        size=size,
        stride=stride,
        tier=facts.tier_of("tp"),
        per_step=_bytes_on(facts, "tp"),
    )


def _sends(facts: PlanFacts) -> Scene:
    """Activations down the pipeline and gradients back, at the times of the simulation."""
    plan = facts.plan
    slots = facts.slots
    makespan = max(slot.end_s for slot in slots)
    cut = min(makespan, max(s.end_s for s in slots if s.micro_batch < max(plan.pp, 4)))
    drawn = min(plan.pp, 16)
    pitch = (WIDTH - 20) / drawn
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
    marks += _strip(slots, cut=cut, scale=scale, drawn=drawn)
    per_step = _bytes_on(facts, "pp")
    if plan.pp == 1:
        marks.append(text(WIDTH / 2, y + 130, "no_pipeline", anchor="middle", tone="soft"))
    return _scene(
        "pipeline",
        marks,
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


def _strip(slots: tuple[Slot, ...], *, cut: float, scale: float, drawn: int) -> list[Mark]:
    """What has been done so far, stage by stage."""
    top, each = 330.0, min(170.0 / drawn, 40.0)
    marks = [box(52, top, WIDTH - 52, each * drawn, tone="track")]
    across = (WIDTH - 52) / cut
    for d in range(0, drawn, -(-drawn // 8)):
        marks.append(text(0, top + each * (d + 0.7), literal=f"PP{d}", tone="soft"))
    for slot in slots:
        if slot.end_s <= cut and slot.device < drawn:
            tone = "t0" if slot.kind is Kind.FORWARD else "t1"
            span = (slot.start_s * scale, 1e9)
            width = (slot.end_s - slot.start_s) * across
            x, y = 52 + slot.start_s * across, top + slot.device * each
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
