"""Output: what comes out: timetable, speed-up, memory, efficiency."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import (
    Label,
    Mark,
    Paper,
    Scene,
    WhatIf,
    box,
    percent,
    text,
)
from meshplan.explanation.scenes.timetable import timetable
from meshplan.search.evaluate import evaluate
from meshplan.space.plan import Plan, PlanGrid, Schedule
from meshplan.space.rules import check_plan
from meshplan.units import format_duration, format_memory

__all__ = ["ALARM", "output"]

ALARM = 0.8
"""Share of a step that goes into computation, below which the guide says to look for the cause."""


def output(facts: PlanFacts, mechanism: str, what_if: WhatIf, paper: Paper) -> Scene:
    """What comes out."""
    if mechanism == "pipeline":
        return timetable(facts, what_if, paper)
    made: Mapping[str, Callable[[PlanFacts, Paper], Scene]] = {
        "panorama": _parts,
        "data": _sharding,
        "tensor": _degrees,
        "combination": _table,
        "scale": _speed_up,
        "links": _gauge,
    }
    scene = made[mechanism](facts, paper)
    caption = replace(scene.caption, code=f"{mechanism}.output")
    return replace(scene, mechanism=mechanism, caption=caption)


def _scene(
    marks: list[Mark],
    known: dict[str, float | str],
    paper: Paper,
    **numbers: object,
) -> Scene:
    return Scene(
        mechanism="",
        mode="output",
        duration_s=0.0,
        stops=(),
        marks=tuple(marks),
        caption=Label(numbers=numbers),
        facts=known,
        paper=paper,
    )


def _parts(facts: PlanFacts, paper: Paper) -> Scene:
    """Parts of the step, which add up to it."""
    parts = facts.parts
    step = float(facts.step.step_time_s[0])
    order = sorted(parts.items(), key=lambda item: -item[1])
    shown = [(name, seconds) for name, seconds in order if seconds > 1e-6 * step]
    marks: list[Mark] = []
    left = 0.0
    for k, (name, seconds) in enumerate(shown):
        width = paper.width * seconds / step
        title = Label(code="title.part", numbers={"part": name, "part_s": seconds})
        bar = box(
            left, 40, width, 64, tone=f"t{min(k, 7)}", title=title, seconds=seconds, group=name
        )
        marks.append(bar)
        left += width
    # the gauge stands beside the list, or under it
    gauge = (190.0, paper.height - 24, 100.0) if paper.narrow else (800.0, 370.0, 140.0)
    below = 304.0 if paper.narrow else 160.0
    seconds_x, share_x = (paper.width - 66, paper.width) if paper.narrow else (430.0, 520.0)
    pitch = min((paper.height - below) / max(len(shown), 1), 44.0)
    for k, (name, seconds) in enumerate(shown):
        y = 150 - (18 if paper.narrow else 0) + k * pitch
        marks.append(box(0, y - 13, 15, 15, tone=f"t{min(k, 7)}"))
        marks.append(text(26, y, f"../part.{name}"))
        marks.append(text(seconds_x, y, literal=format_duration(seconds), anchor="end"))
        marks.append(text(share_x, y, literal=percent(seconds / step), anchor="end", tone="soft"))
    x, y, r = gauge
    marks += _arc(float(facts.step.mfu[0]), x=x, y=y, r=r, name="MFU")
    known: dict[str, float | str] = {**parts, "step_time_s": step, "mfu": float(facts.step.mfu[0])}
    return _scene(
        marks,
        known,
        paper,
        step_time_s=step,
        mfu=float(facts.step.mfu[0]),
        part=shown[0][0],
        second=shown[1][0] if len(shown) > 1 else shown[0][0],
    )


def _arc(
    share: float, *, x: float, y: float, name: str, alarm: float | None = None, r: float = 140
) -> list[Mark]:
    """Half a ring that is filled as far as the share goes."""

    def along(a: float, b: float) -> tuple[tuple[float, float], ...]:
        steps = 48
        angles = (math.pi * (1 - a - (b - a) * i / steps) for i in range(steps + 1))
        return tuple((x + r * math.cos(t), y - r * math.sin(t)) for t in angles)

    bad = alarm is not None and share < alarm
    marks = [
        Mark(kind="curve", points=along(0, 1), tone="track", w=26),
        Mark(kind="curve", points=along(0, min(share, 1.0)), tone="bad" if bad else "t0", w=26),
        text(x, y - 34, literal=f"{share:.1%}", tone="huge", anchor="middle"),
        text(x, y, literal=name, tone="soft", anchor="middle"),
    ]
    if alarm is not None:
        angle = math.pi * (1 - alarm)
        inner, outer = r - 24, r + 24
        marks.append(
            Mark(
                kind="line",
                x=x + inner * math.cos(angle),
                y=y - inner * math.sin(angle),
                w=(outer - inner) * math.cos(angle),
                h=-(outer - inner) * math.sin(angle),
                tone="bad",
            )
        )
    return marks


def _speed_up(facts: PlanFacts, paper: Paper) -> Scene:
    """Throughput against GPUs, ideal and predicted, as replicas are added."""
    candidates = (facts.scaled(2**k) for k in range(13))
    sizes = [scaled for scaled in candidates if scaled is not None]
    sizes = sizes or [facts]
    first = sizes[0]
    base = float(first.step.step_time_s[0])
    rows = [
        (s.scenario.cluster.num_gpus, base / float(s.step.step_time_s[0]), float(s.step.mfu[0]))
        for s in sizes
    ]
    least, most = rows[0][0], rows[-1][0]
    left, right = (22.0, 26.0) if paper.narrow else (80.0, 40.0)
    bottom, height = paper.height - 60, paper.height - 120 - (30 if paper.narrow else 0)
    width = paper.width - left - right
    top = max(most / least, 1.0)

    def place(gpus: float, gain: float) -> tuple[float, float]:
        span = math.log2(top) or 1.0
        return left + width * math.log2(gpus / least) / span, bottom - height * math.log2(
            gain
        ) / span

    marks = [
        Mark(kind="line", x=left, y=bottom, w=width, h=0, tone="frame"),
        Mark(kind="line", x=left, y=bottom - height, w=0, h=height, tone="frame"),
        Mark(
            kind="curve", points=tuple(place(g, g / least) for g, _, _ in rows), tone="muted", w=2
        ),
        Mark(kind="curve", points=tuple(place(g, s) for g, s, _ in rows), tone="t0", w=3),
        text(left + 16, 30 if paper.narrow else 60, "curve.ideal", tone="soft"),
        text(left + 16, 54 if paper.narrow else 84, "curve.real", tone="t0"),
        text(left + width, paper.height - 8, "axis.gpus", anchor="end", tone="soft"),
    ]
    each = max(1, math.ceil(len(rows) * 46 / width))  # numbers side by side need their room
    for k, (gpus, gain, mfu) in enumerate(rows):
        x, y = place(gpus, gain)
        tone = "bad" if gpus == facts.scenario.cluster.num_gpus else "t0"
        title = Label(code="title.speed", numbers={"num_gpus": gpus, "gain": gain, "mfu": mfu})
        marks.append(box(x - 5, y - 5, 10, 10, tone=tone, title=title, group=f"gpus{gpus}"))
        if (len(rows) - 1 - k) % each == 0:
            marks.append(text(x, bottom + 24, literal=f"{gpus:,}", anchor="middle", tone="soft"))
            marks.append(_gained(gain, x=x, y=y, first=k == 0, last=k == len(rows) - 1))
    known: dict[str, float | str] = {f"gpus_{g}": s for g, s, _ in rows}
    efficiency = rows[-1][1] / (most / least)
    numbers = {"least": least, "most": most, "gain": rows[-1][1], "efficiency": efficiency}
    return _scene(marks, known, paper, **numbers)


def _gained(gain: float, *, x: float, y: float, first: bool, last: bool) -> Mark:
    """The gain of a point: right of the curve and under it, which the ideal passes above."""
    literal = f"{gain:.3g}×"
    if first:
        return text(x - 8, y + 5, literal=literal, anchor="end")
    if last:
        return text(x, y + 24, literal=literal, anchor="middle")
    return text(x + 7, y + 24, literal=literal)


def _variants(facts: PlanFacts, degrees: list[dict[str, int]]) -> list[Plan]:
    """The plan with other degrees on the same GPUs, where the rules allow it."""
    p, job = facts.plan, facts.scenario.job
    found = []
    for change in degrees:
        tp, pp = change.get("tp", p.tp), change.get("pp", p.pp)
        dp, rest = divmod(facts.scenario.cluster.num_gpus, tp * pp * p.cp)
        if rest or not dp or job.global_batch % (dp * p.micro_batch):
            continue
        chunked = pp > 1 and p.pp > 1
        plan = replace(
            p,
            tp=tp,
            pp=pp,
            dp=dp,
            dp_shard=dp,
            dp_replicate=1,
            sp=p.sp if tp > 1 and p.tp > 1 else tp > 1,
            etp=min(p.etp, tp),
            vpp=p.vpp if chunked else 1,
            schedule=p.schedule if chunked else Schedule.ONE_F_ONE_B,
            zero=min(p.zero, 1) if pp > 1 and p.pp == 1 else p.zero,
            num_micro_batches=job.global_batch // (dp * p.micro_batch),
            stage_layers=(),
        )
        if not check_plan(facts.scenario, plan):
            found.append(plan)
    return found


def _degrees(facts: PlanFacts, paper: Paper) -> Scene:
    """The same plan with other tensor-parallel degrees: time and memory."""
    plans = _variants(facts, [{"tp": 2**k} for k in range(7)]) or [facts.plan]
    return _bars(
        facts,
        plans,
        paper,
        name=lambda p: f"TP{p.tp}",
        chosen=lambda p: p.tp == facts.plan.tp,
    )


def _sharding(facts: PlanFacts, paper: Paper) -> Scene:
    """The same plan with other sharding and micro-batches: time and memory."""
    p, batch = facts.plan, facts.scenario.job.global_batch
    sizes = sorted({1, 2, 4, p.micro_batch})
    found = [
        replace(
            p,
            zero=zero,
            dp_shard=p.dp,
            dp_replicate=1,
            micro_batch=size,
            num_micro_batches=batch // (p.dp * size),
        )
        for zero in range(4)
        for size in sizes
        if batch % (p.dp * size) == 0
    ]
    plans = [plan for plan in found if not check_plan(facts.scenario, plan)] or [p]
    names = {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"}
    return _bars(
        facts,
        plans,
        paper,
        name=lambda q: f"{names[q.zero]} · MBS {q.micro_batch}",
        chosen=lambda q: (q.zero, q.micro_batch) == (p.zero, p.micro_batch),
    )


def _table(facts: PlanFacts, paper: Paper) -> Scene:
    """Tensor and pipeline degrees against each other."""
    degrees = [{"tp": 2**i, "pp": 2**j} for i in range(5) for j in range(5)]
    plans = _variants(facts, degrees) or [facts.plan]
    return _bars(
        facts,
        plans,
        paper,
        name=lambda p: f"TP{p.tp} PP{p.pp} DP{p.dp}",
        chosen=lambda p: (p.tp, p.pp) == (facts.plan.tp, facts.plan.pp),
    )


def _bars(
    facts: PlanFacts,
    plans: list[Plan],
    paper: Paper,
    *,
    name: Callable[[Plan], str],
    chosen: Callable[[Plan], bool],
) -> Scene:
    grid = PlanGrid.of(plans)
    found = evaluate(facts.scenario, grid)
    steps, peaks = found.time.step_time_s, found.memory.peak_bytes
    usable = float(found.memory.usable_bytes)
    order = sorted(range(len(plans)), key=lambda i: (peaks[i] > usable, steps[i]))[:14]
    slowest = max(float(steps[i]) for i in order)
    narrow, edge = paper.narrow, paper.width
    left, wide = (0.0, edge) if narrow else (200.0, 470.0)
    pitch = min((paper.height - 90) / len(order), 54.0)
    marks: list[Mark] = [
        text(left, 24, "title.steps"),
        text(edge, 24, "title.peak", anchor="end", usable_bytes=usable),
    ]
    known: dict[str, float | str] = {}
    for row, i in enumerate(order):
        y = 44 + row * pitch
        fits = peaks[i] <= usable
        tone = "strong" if chosen(plans[i]) else "ink"
        told = y + (14 if narrow else pitch * 0.5)
        bar_y, tall = (y + 20, max(pitch - 26, 6.0)) if narrow else (y, pitch * 0.68)
        marks.append(text(0, told, literal=name(plans[i]), tone=tone))
        width = wide * float(steps[i]) / slowest
        colour = ("t0" if chosen(plans[i]) else "t3") if fits else "muted"
        marks.append(box(left, bar_y, width, tall, tone=colour, seconds=float(steps[i])))
        literal = format_duration(float(steps[i]))
        if narrow:
            marks.append(text(edge - 110, told, literal=literal, tone=tone, anchor="end"))
        else:
            marks.append(text(left + width + 10, told, literal=literal, tone=tone))
        literal = format_memory(float(peaks[i])) + ("" if fits else " ✕")
        colour = "ink" if fits else "bad"
        marks.append(text(edge, told, literal=literal, anchor="end", tone=colour))
        known[name(plans[i])] = float(steps[i])
    if len(order) < len(plans):
        y = 44 + len(order) * pitch + 20
        marks.append(text(0, y, "fastest_drawn", tone="soft", shown=len(order)))
    fit = int((peaks <= usable).sum())
    numbers = {"count": len(plans), "best": name(plans[order[0]]), "num_fit": fit}
    return _scene(marks, known, paper, **numbers)


def _gauge(facts: PlanFacts, paper: Paper) -> Scene:
    """Share of the step that computes, with the alarm of the guide."""
    parts = facts.parts
    total = sum(parts.values())
    share = (parts["compute_s"] + parts["recompute_s"]) / total
    x, y, r = (190.0, 168.0, 126.0) if paper.narrow else (300.0, 330.0, 200.0)
    marks = _arc(share, x=x, y=y, name="", alarm=ALARM, r=r)
    marks.append(text(x, y + 30, "gauge", anchor="middle"))
    marks.append(text(x, y + 54, "gauge_alarm", anchor="middle", tone="soft", alarm=ALARM))
    left, top, each = (0.0, 262.0, 36.0) if paper.narrow else (600.0, 110.0, 42.0)
    wide = paper.width - left
    names = [n for n, s in sorted(parts.items(), key=lambda i: -i[1]) if s > 1e-4 * total]
    for k, name in enumerate(names[:8]):
        y = top + k * each
        lost = name not in ("compute_s", "recompute_s")
        marks.append(text(left, y, f"../part.{name}"))
        marks.append(text(paper.width, y, literal=percent(parts[name] / total), anchor="end"))
        marks.append(box(left, y + 8, wide, 7, tone="track"))
        long, tone = wide * parts[name] / total, "t1" if lost else "t0"
        marks.append(box(left, y + 8, long, 7, tone=tone, group=name))
    lost_most = max(
        (n for n in parts if n not in ("compute_s", "recompute_s")), key=lambda n: parts[n]
    )
    return _scene(
        marks,
        {"efficiency": share, "alarm": ALARM},
        paper,
        share=share,
        alarm=ALARM,
        part=lost_most,
        part_s=parts[lost_most],
    )
