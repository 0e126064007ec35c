"""Transmission at scale: traffic against the number of GPUs and against each level's capacity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import (
    AXIS_TONE,
    HEIGHT,
    WIDTH,
    Label,
    Mark,
    Scene,
    amount,
    box,
    text,
)

__all__ = ["growing", "levels"]


def _scene(
    mechanism: str, marks: list[Mark], known: dict[str, float | str], **numbers: object
) -> Scene:
    return Scene(
        mechanism=mechanism,
        mode="transmission",
        duration_s=0.0,
        stops=(),
        marks=tuple(marks),
        caption=Label(code=f"{mechanism}.transmission", numbers=numbers),
        facts=known,
    )


def _with_bytes(mark: Mark, num_bytes: float, group: str) -> Mark:
    return replace(mark, num_bytes=num_bytes, group=group)


def _key(facts: PlanFacts) -> list[Mark]:
    """Which axis has which colour."""
    marks = []
    for i, lane in enumerate(facts.traffic):
        marks.append(box(170 + i * 70, 29, 12, 12, tone=AXIS_TONE[lane.axis]))
        marks.append(text(188 + i * 70, 40, literal=lane.axis.upper(), tone="soft"))
    return marks


def growing(facts: PlanFacts) -> Scene:
    """Traffic of one device against the number of GPUs."""
    marks: list[Mark] = [text(0, 16, "title.growing"), *_key(facts)]
    sizes = [dp for dp in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)]
    rows = [(dp, scaled) for dp in sizes if (scaled := facts.scaled(dp)) is not None][-8:]
    traffic = [sum(lane.num_bytes for lane in scaled.traffic) for _, scaled in rows]
    most = max([*traffic, 1.0])
    step = (HEIGHT - 80) / max(len(rows), 1)
    for i, ((dp, scaled), num_bytes) in enumerate(zip(rows, traffic, strict=True)):
        y = 56 + i * step
        gpus = scaled.scenario.cluster.num_gpus
        here = dp == facts.plan.dp
        marks.append(text(150, y + 19, "num_gpus", num_gpus=gpus, anchor="end"))
        marks.append(box(170, y, 560, min(step * 0.7, 28), tone="track"))
        left = 170.0
        for lane in scaled.traffic:
            width = 560 * lane.num_bytes / most
            title = Label(
                code="title.axis_bytes",
                numbers={"axis": lane.axis.upper(), "sent_bytes": lane.num_bytes},
            )
            bar = box(left, y, width, min(step * 0.7, 28), tone=AXIS_TONE[lane.axis], title=title)
            marks.append(_with_bytes(bar, lane.num_bytes, f"{lane.axis}@{gpus}"))
            left += width
        literal = amount(num_bytes)
        tone = "strong" if here else "ink"
        marks.append(text(WIDTH - 160, y + 19, literal=literal, anchor="end", tone=tone))
        efficiency = _busy(scaled)
        marks.append(text(WIDTH, y + 19, literal=f"{efficiency:.0%}", anchor="end", tone=tone))
    marks.append(text(WIDTH, 40, "title.busy", anchor="end", tone="soft"))
    known: dict[str, float | str] = {
        f"gpus_{s.scenario.cluster.num_gpus}": b for (_, s), b in zip(rows, traffic, strict=True)
    }
    return _scene(
        "scale",
        marks,
        known,
        count=len(rows),
        num_gpus=facts.scenario.cluster.num_gpus,
        step_bytes=sum(lane.num_bytes for lane in facts.traffic),
    )


def _busy(facts: PlanFacts) -> float:
    parts = facts.parts
    return parts["compute_s"] / sum(parts.values())


def levels(facts: PlanFacts) -> Scene:
    """Traffic of each level of the network against what it could carry in a step."""
    tiers = facts.scenario.cluster.tiers
    step_s = float(facts.step.step_time_s[0])
    marks: list[Mark] = [text(0, 16, "title.levels")]
    pitch = min((HEIGHT - 80) / len(tiers), 150.0)
    known: dict[str, float | str] = {}
    busiest, share_of = tiers[0].name, 0.0
    for i, tier in enumerate(tiers):
        y = 64 + i * pitch
        lanes = [lane for lane in facts.traffic if lane.tier == i]
        could = tier.bandwidth_bytes_per_s / tier.oversubscription * step_s
        used = sum(lane.num_bytes for lane in lanes)
        known[f"{i}_{tier.name}_bytes"] = used
        known[f"{i}_{tier.name}_capacity_bytes"] = could
        if used / could > share_of:
            busiest, share_of = tier.name, used / could
        marks.append(text(0, y, literal=tier.name, tone="strong"))
        numbers: dict[str, Any] = {"link_bytes_per_s": could / step_s, "num_gpus": tier.num_gpus}
        marks.append(text(0, y + 22, "level", tone="soft", **numbers))
        marks.append(box(300, y - 14, 480, 34, tone="track"))
        left = 300.0
        for lane in lanes:
            width = min(480 * lane.num_bytes / could, 780 - left)
            title = Label(
                code="title.axis_bytes",
                numbers={"axis": lane.axis.upper(), "sent_bytes": lane.num_bytes},
            )
            bar = box(left, y - 14, max(width, 1.5), 34, tone=AXIS_TONE[lane.axis], title=title)
            marks.append(_with_bytes(bar, lane.num_bytes, lane.axis))
            left += width
        literal = f"{amount(used)} · {used / could:.0%}"
        marks.append(text(WIDTH, y + 8, literal=literal, anchor="end"))
        for k, lane in enumerate(lanes):
            x = 300 + k * 120
            marks.append(box(x, y + 32, 12, 12, tone=AXIS_TONE[lane.axis]))
            told = f"{lane.axis.upper()} {amount(lane.num_bytes)}"
            marks.append(text(x + 18, y + 43, literal=told, tone="soft"))
    return _scene(
        "links", marks, known, tier=busiest, share=share_of, count=len(tiers), step_s=step_s
    )
