"""Transmission at scale: traffic against the number of GPUs and against each level's capacity."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import (
    AXIS_TONE,
    Label,
    Mark,
    Paper,
    Scene,
    amount,
    box,
    still,
    text,
)
from meshplan.record import record

__all__ = ["growing", "levels"]


_MOST_SIZES = 8

_scene = partial(still, mode="transmission")


def _with_bytes(mark: Mark, num_bytes: float, group: str) -> Mark:
    return replace(mark, num_bytes=num_bytes, group=group)


def _key(facts: PlanFacts, *, x: float, y: float) -> list[Mark]:
    """Which axis has which colour."""
    marks = []
    for i, lane in enumerate(facts.traffic):
        marks.append(box(x + i * 72, y - 11, 12, 12, tone=AXIS_TONE[lane.axis]))
        marks.append(text(x + 18 + i * 72, y, literal=lane.name, tone="soft"))
    return marks


def growing(facts: PlanFacts, paper: Paper) -> Scene:
    """Traffic of one device against the number of GPUs."""
    narrow, width = paper.narrow, paper.width
    left, wide = (0.0, width) if narrow else (170.0, 560.0)
    above = 104.0 if narrow else 56.0
    marks: list[Mark] = [text(0, 16, "title.growing", room=width)]
    marks += _key(facts, x=left, y=above - 42 if narrow else 40)
    sizes = [dp for dp in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)]
    found = [(dp, scaled) for dp in sizes if (scaled := facts.scaled(dp)) is not None]
    rows = _around(found, at=facts.plan.dp)
    traffic = [sum(lane.num_bytes for lane in scaled.traffic) for _, scaled in rows]
    most = max([*traffic, 1.0])
    step = (paper.height - above - 24) / max(len(rows), 1)
    for i, (dp, scaled) in enumerate(rows):
        bars = _Bars(left=left, wide=wide, top=above + i * step, step=step, most=most)
        marks += _size(scaled, paper, bars, tone="strong" if dp == facts.plan.dp else "ink")
    marks.append(text(width, above - 22 if narrow else 40, "title.busy", anchor="end", tone="soft"))
    known: dict[str, float | str] = {
        f"gpus_{s.scenario.cluster.num_gpus}": b for (_, s), b in zip(rows, traffic, strict=True)
    }
    scene = _scene(
        "scale",
        marks,
        known,
        paper,
        count=len(rows),
        num_gpus=facts.scenario.cluster.num_gpus,
        step_bytes=sum(lane.num_bytes for lane in facts.traffic),
    )
    return scene if facts.traffic else _silent(scene)


@record
class _Bars:
    """Where the bar of a size stands [units of the paper], and what fills it [bytes]."""

    left: float
    wide: float
    top: float
    step: float
    most: float


def _size(scaled: PlanFacts, paper: Paper, at: _Bars, *, tone: str) -> list[Mark]:
    """One number of GPUs: what a device sends on each axis, and the share that computes."""
    narrow, width, y = paper.narrow, paper.width, at.top
    told = y if narrow else y + 19
    bar_y, tall = (y + 7, 16.0) if narrow else (y, min(at.step * 0.7, 28))
    gpus = scaled.scenario.cluster.num_gpus
    if narrow:
        marks = [text(0, told, "num_gpus", num_gpus=gpus)]
    else:
        marks = [text(150, told, "num_gpus", num_gpus=gpus, anchor="end")]
    marks.append(box(at.left, bar_y, at.wide, tall, tone="track"))
    x, sent = at.left, sum(lane.num_bytes for lane in scaled.traffic)
    for lane in scaled.traffic:
        long = at.wide * lane.num_bytes / at.most
        told_of: dict[str, object] = {"axis": lane.name, "sent_bytes": lane.num_bytes}
        title = Label(code="title.axis_bytes", numbers=told_of)
        bar = box(x, bar_y, long, tall, tone=AXIS_TONE[lane.axis], title=title)
        marks.append(_with_bytes(bar, lane.num_bytes, f"{lane.axis}@{gpus}"))
        x += long
    bytes_x = width - (80 if narrow else 160)
    code, literal = ("", amount(sent)) if sent else ("nothing_sent", "")
    marks.append(text(bytes_x, told, code, literal=literal, anchor="end", tone=tone))
    marks.append(text(width, told, literal=f"{_busy(scaled):.0%}", anchor="end", tone=tone))
    return marks


def _around(found: list[tuple[int, PlanFacts]], *, at: int) -> list[tuple[int, PlanFacts]]:
    """As many sizes as there is room for: those of the plan and beyond, and one below."""
    smaller = sum(dp < at for dp, _ in found)
    first = max(0, min(smaller - 1, len(found) - _MOST_SIZES))
    return found[first : first + _MOST_SIZES]


def _silent(scene: Scene) -> Scene:
    """A plan whose GPUs send nothing says that, instead of amounts of nothing."""
    return replace(scene, caption=replace(scene.caption, code=f"{scene.caption.code}.none"))


def _busy(facts: PlanFacts) -> float:
    parts = facts.parts
    return parts["compute_s"] / sum(parts.values())


def levels(facts: PlanFacts, paper: Paper) -> Scene:
    """Traffic of each level of the network against what it could carry in a step."""
    tiers = facts.scenario.cluster.tiers
    step_s = float(facts.step.step_time_s[0])
    narrow, edge = paper.narrow, paper.width
    marks: list[Mark] = [text(0, 16, "title.levels", room=edge)]
    above = 84.0 if narrow else 64.0
    pitch = min((paper.height - above - 10) / len(tiers), 170.0)
    start, wide = (0.0, edge) if narrow else (300.0, 480.0)
    known: dict[str, float | str] = {}
    busiest, share_of = tiers[0].name, 0.0
    for i, tier in enumerate(tiers):
        y = above + i * pitch
        lanes = [lane for lane in facts.traffic if lane.tier == i]
        could = tier.bandwidth_bytes_per_s / tier.oversubscription * step_s
        used = sum(lane.num_bytes for lane in lanes)
        known[f"{i}_{tier.name}_bytes"] = used
        known[f"{i}_{tier.name}_capacity_bytes"] = could
        if used / could > share_of:
            busiest, share_of = tier.name, used / could
        marks.append(text(0, y, "level.name", tone="strong", tier=tier.name))
        numbers: dict[str, Any] = {"link_bytes_per_s": could / step_s, "num_gpus": tier.num_gpus}
        marks.append(text(0, y + 22, "level", tone="soft", **numbers))
        bar_y, tall = (y + 32, 20.0) if narrow else (y - 14, 34.0)
        marks.append(box(start, bar_y, wide, tall, tone="track"))
        left = start
        for lane in lanes:
            width = min(wide * lane.num_bytes / could, start + wide - left)
            title = Label(
                code="title.axis_bytes",
                numbers={"axis": lane.name, "sent_bytes": lane.num_bytes},
            )
            bar = box(left, bar_y, max(width, 1.5), tall, tone=AXIS_TONE[lane.axis], title=title)
            marks.append(_with_bytes(bar, lane.num_bytes, lane.axis))
            left += width
        code, literal = (
            ("", f"{amount(used)} · {used / could:.0%}") if used else ("nothing_sent", "")
        )
        marks.append(text(edge, y if narrow else y + 8, code, literal=literal, anchor="end"))
        for k, lane in enumerate(lanes):
            x = start + k % 3 * 126 if narrow else start + k * 120
            key_y = bar_y + tall + 12 + (k // 3 * 20 if narrow else 0)
            marks.append(box(x, key_y, 12, 12, tone=AXIS_TONE[lane.axis]))
            told = f"{lane.name} {amount(lane.num_bytes)}"
            marks.append(text(x + 18, key_y + 11, literal=told, tone="soft"))
    numbers = {"tier": busiest, "share": share_of, "count": len(tiers), "step_s": step_s}
    scene = _scene("links", marks, known, paper, **numbers)
    if not facts.traffic:
        return _silent(scene)
    one = replace(scene.caption, code="links.transmission.one")
    return replace(scene, caption=one) if len(tiers) == 1 else scene
