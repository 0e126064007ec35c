"""Overviews: groups of a rank, stages of a pipeline, copies of a model, levels of a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meshplan.explanation.scenes.cells import AXES, rank_cells
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import (
    AXIS_TONE,
    Cells,
    Label,
    Mark,
    Paper,
    Scene,
    beat,
    box,
    still,
    text,
)
from meshplan.inputs.cluster import Tier
from meshplan.record import record
from meshplan.space.placement import AxisName
from meshplan.units import format_memory

__all__ = ["PALE", "copies", "groups", "key_height", "key_places", "network", "stages"]

PALE = 9
"""Tone of a square that stands back."""

_ACT_S, _FOREVER = 2.0, 1e9
_MOST_STAGES, _MOST_COPIES, _MOST_GROUPS = 16, 64, 24


_scene = partial(still, mode="overview")


def groups(facts: PlanFacts, paper: Paper) -> Scene:
    """One rank and everyone that it shares a group with, axis by axis."""
    p, cluster = facts.plan, facts.scenario.cluster
    sizes = {axis: facts.group(axis) for axis in AXES}
    shown = [axis for axis in AXES if sizes[axis][0] > 1]
    cells, frames = rank_cells(
        facts, "pp", paper=paper, tone=PALE, below=key_height(len(shown), paper)
    )
    marks = [*frames, *_members(sizes, shown, cells)]
    for (x, y), axis in zip(key_places(len(shown), paper, cells), shown, strict=True):
        size, stride = sizes[axis]
        tier = cluster.tiers[facts.tier_of(axis)].name
        marks.append(box(x, y - 11, 12, 12, tone=AXIS_TONE[axis]))
        told: dict[str, Any] = {"axis": axis.upper(), "size": size, "tier": tier}
        marks.append(text(x + 19, y, "axis_at", tone="strong", **told))
        marks.append(text(x + 19, y + 23, "every", tone="soft", stride=stride))
    known: dict[str, float | str] = {axis: size for axis, (size, _) in sizes.items()}
    product = p.tp * p.pp * p.dp * p.cp
    scene = _scene(
        "combination",
        marks,
        {**known, "num_gpus": cluster.num_gpus},
        paper,
        tp=p.tp,
        pp=p.pp,
        dp=p.dp,
        cp=p.cp,
        product=product,
    )
    beats = [beat(0.0, "groups.rank", num_gpus=cluster.num_gpus)]
    for act, axis in enumerate(shown, start=1):
        size, stride = sizes[axis]
        tier = cluster.tiers[facts.tier_of(axis)].name
        numbers = {"size": size, "others": size - 1, "stride": stride, "tier": tier}
        beats.append(beat(act * _ACT_S, f"groups.{axis}", **numbers))
    play_s = len(beats) * _ACT_S
    return replace(
        scene,
        cells=cells,
        beats=tuple(beats),
        duration_s=play_s,
        opens_s=play_s,
        stops=tuple(_ACT_S * act for act in range(len(beats) + 1)),
    )


def _members(
    sizes: Mapping[AxisName, tuple[int, int]], shown: Sequence[AxisName], cells: Cells
) -> list[Mark]:
    """Rank 0, and act by act the members of its group on one axis more."""
    marks: list[Mark] = []
    edge = cells.size
    for act, axis in reversed(list(enumerate(shown, start=1))):
        size, stride = sizes[axis]
        for member in range(size):
            i = member * stride // cells.ranks_per_cell
            literal = str(member * stride) if edge > 24 else ""
            made = box(
                cells.x[i],
                cells.y[i],
                edge,
                edge,
                tone=AXIS_TONE[axis],
                literal=literal,
                group=axis,
                span=(act * _ACT_S, _FOREVER),
            )
            marks.append(made)
    marks.append(box(cells.x[0], cells.y[0], edge, edge, tone="bad", literal="0"))
    return marks


def key_height(count: int, paper: Paper) -> float:
    """Room that entries of two lines each take at the foot of a picture."""
    return 34.0 + 50.0 * -(-count // _across(count, paper))


def _across(count: int, paper: Paper) -> int:
    return 2 if paper.narrow else max(count, 1)


def key_places(count: int, paper: Paper, cells: Cells) -> list[tuple[float, float]]:
    """Places of entries of two lines each under a map: side by side, or in pairs."""
    across = _across(count, paper)
    top = max(cells.y) + cells.size + 44.0
    return [(k % across * paper.width / across, top + k // across * 50.0) for k in range(count)]


def stages(facts: PlanFacts, paper: Paper) -> Scene:
    """Stage after stage: its layers, its GPUs in one pipeline, and what it holds."""
    p, layers = facts.plan, facts.scenario.model.num_layers
    held = [sum(c.num_layers for c in chunks) for chunks in facts.layout.chunks]
    step = -(-p.pp // _MOST_STAGES)
    rows = list(range(0, p.pp, step))
    at = _NARROW_STAGES if paper.narrow else _WIDE_STAGES
    pitch = min((paper.height - at.top - 18) / len(rows), 104.0)
    width = p.tp * p.cp
    usable = facts.scenario.cluster.device.usable_bytes
    gpus: dict[str, Any] = {"x": at.squares, "tp": p.tp, "cp": p.cp}
    if paper.narrow:
        gpus |= {"x": paper.width, "anchor": "end"}
    marks: list[Mark] = [
        text(at.layers, 24, "stages.layers", tone="soft"),
        text(gpus.pop("x"), at.top - 18, "stages.gpus", tone="soft", **gpus),
        text(paper.width, 24, "stages.memory", tone="soft", anchor="end", usable_bytes=usable),
    ]
    known: dict[str, float | str] = {"pp": p.pp, "vpp": p.vpp, "num_layers": layers}
    for row, stage in enumerate(rows):
        y = at.top + row * pitch
        tall = pitch * 0.7
        middle = y + tall * 0.5 + 5
        tone = f"t{stage * 8 // p.pp if p.pp > 8 else stage}"
        marks.append(text(0, middle, literal=f"PP{stage}", tone="strong"))
        marks += _layer_strip(facts, stage, at, y=y, height=tall, tone=tone)
        known[f"stage_{stage}_layers"] = held[stage]
        marks += _squares(width, x=at.squares, y=y, room=(at.squares_wide, tall), tone=tone)
        peak = facts.stages[stage].peak_bytes
        x, y, wide = at.memory, y + tall * 0.3, at.memory_wide
        marks.append(box(x, y, wide, tall * 0.4, tone="track"))
        bar = wide * min(peak / usable, 1.0)
        marks.append(box(x, y, bar, tall * 0.4, tone=tone, num_bytes=peak))
        literal = format_memory(peak)
        marks.append(text(paper.width, middle, literal=literal, anchor="end"))
    groups = facts.scenario.cluster.num_gpus // facts.group("pp")[0]
    return _scene("pipeline", marks, known, paper, pp=p.pp, num_groups=groups, size=p.pp, vpp=p.vpp)


@record
class _StageColumns:
    """Where the columns of the stages begin, and how wide they are."""

    top: float
    layers: float
    layers_wide: float
    squares: float
    squares_wide: float
    memory: float
    memory_wide: float


_WIDE_STAGES = _StageColumns(
    top=42.0, layers=70.0, layers_wide=460.0, squares=560.0, squares_wide=250.0,
    memory=828.0, memory_wide=90.0,
)  # fmt: skip
_NARROW_STAGES = _StageColumns(
    top=66.0, layers=44.0, layers_wide=126.0, squares=184.0, squares_wide=74.0,
    memory=262.0, memory_wide=36.0,
)  # fmt: skip


def _layer_strip(
    facts: PlanFacts, stage: int, at: _StageColumns, *, y: float, height: float, tone: str
) -> list[Mark]:
    """All layers of the model as a track, those of the stage filled in."""
    layers = facts.scenario.model.num_layers
    each = at.layers_wide / layers
    marks = [box(at.layers, y, at.layers_wide, height, tone="track")]
    for chunk in facts.layout.chunks[stage]:
        numbers = {"first": chunk.first_layer, "count": chunk.num_layers}
        width = chunk.num_layers * each
        last = chunk.first_layer + chunk.num_layers - 1
        literal = f"L{chunk.first_layer}–{last}" if width > 64 and chunk.num_layers else ""
        marks.append(
            box(
                at.layers + chunk.first_layer * each,
                y,
                width,
                height,
                tone=tone,
                literal=literal,
                title=Label(code="title.chunk", numbers=numbers),
                group=f"stage{stage}",
            )
        )
    return marks


def _squares(count: int, *, x: float, y: float, room: tuple[float, float], tone: str) -> list[Mark]:
    """As many squares as there are GPUs, as large as the room allows."""
    wide, tall = room
    rows = next((r for r in range(1, 9) if math.ceil(count / r) * (tall / r) <= wide), 8)
    edge = min(tall / rows, 30.0)
    columns = math.ceil(count / rows)
    shown = min(count, columns * rows, 256)
    return [
        box(
            x + (i % columns) * edge,
            y + (tall - rows * edge) / 2 + (i // columns) * edge,
            edge * 0.86,
            edge * 0.86,
            tone=tone,
        )
        for i in range(shown)
    ]


def copies(facts: PlanFacts, paper: Paper) -> Scene:
    """One copy of the model spread over its GPUs, and how many such copies there are."""
    p, cluster = facts.plan, facts.scenario.cluster
    each = p.tp * p.cp * p.pp
    shown = min(p.dp, _MOST_COPIES)
    most = math.ceil(math.sqrt(shown * 1.25 * paper.width / paper.height))
    columns = next(c for c in range(most, 0, -1) if shown % c == 0 or c <= most // 2)
    rows = math.ceil(shown / columns)
    above = 60.0 if paper.narrow else 38.0
    free = paper.height - above - 24.0
    width, height = paper.width / columns, min(free / rows, 300.0)
    top = above
    numbers: dict[str, Any] = {"dp": p.dp, "each": each, "shown": shown}
    told = "copies.all" if shown == p.dp else "copies.some"
    marks: list[Mark] = [text(0, 20, told, room=paper.width, **numbers)]
    for i in range(shown):
        x, y = (i % columns) * width, top + (i // columns) * height
        w, h = width - 8, height - 8
        marks.append(box(x, y, w, h, tone="frame"))
        marks += _one_copy(facts, x=x + 5, y=y + 5, w=w - 10, h=h - 10)
        if w > 70 and h > 60:
            literal = f"DP{i}"
            marks.append(text(x + w / 2, y + h - 9, literal=literal, anchor="middle", tone="soft"))
    known: dict[str, float | str] = {"dp": p.dp, "gpus_each": each, "num_gpus": cluster.num_gpus}
    return _scene(
        "scale",
        marks,
        known,
        paper,
        num_gpus=cluster.num_gpus,
        num_nodes=cluster.num_nodes,
        dp=p.dp,
        each=each,
        shards=facts.group("dp_shard_cp")[0] if p.zero else 1,
    )


def _one_copy(facts: PlanFacts, *, x: float, y: float, w: float, h: float) -> list[Mark]:
    """A stage per row, its GPUs side by side; rows stand for several where they are many."""
    p = facts.plan
    name = 22.0 if w > 60 and h > 50 else 0.0
    rows, columns = min(p.pp, 16), min(p.tp * p.cp, 16)
    tall, wide = (h - name) / rows, w / columns
    gap = wide * 0.08
    marks = []
    for r in range(rows):
        tone = f"t{r * 8 // rows if rows > 8 else r}"
        if p.dp * rows * columns > 1600:
            marks.append(box(x, y + r * tall, w, tall * 0.88, tone=tone))
            continue
        each = wide - gap * (columns - 1) / columns
        marks += [
            box(x + c * (each + gap), y + r * tall, each, tall * 0.9, tone=tone)
            for c in range(columns)
        ]
    return marks


def network(facts: PlanFacts, paper: Paper) -> Scene:
    """The levels of the network from inside out, with the axes that live on each."""
    cluster = facts.scenario.cluster
    tiers = cluster.tiers
    pitch = min((paper.height - 20) / len(tiers), 200.0 if paper.narrow else 160.0)
    left = 0.0 if paper.narrow else 300.0
    down = 62.0 if paper.narrow else 0.0
    tall = min(pitch * 0.56, 84.0) if not paper.narrow else min(pitch - down - 64.0, 60.0)
    known: dict[str, float | str] = {}
    marks: list[Mark] = []
    for i, tier in enumerate(reversed(tiers)):
        index = len(tiers) - 1 - i
        y = 24 + i * pitch
        rate = tier.bandwidth_bytes_per_s / tier.oversubscription
        known[f"{index}_bytes_per_s"] = rate
        marks += _level_words(tier, y=y, paper=paper)
        y += down
        room = (left, paper.width - left)
        marks += _groups(facts, index, y=y - 12, height=tall, room=room)
        lanes = [lane for lane in facts.traffic if lane.tier == index]
        for k, lane in enumerate(lanes):
            numbers = {"axis": lane.name, "sent_bytes": lane.num_bytes}
            title = Label(code="title.axis_bytes", numbers=numbers)
            literal = f"{lane.name} {lane.size}"
            x, wide = (left + k * 76, 70) if paper.narrow else (left + k * 92, 84)
            tone = AXIS_TONE[lane.axis]
            marks.append(box(x, y - 4 + tall, wide, 26, tone=tone, literal=literal, title=title))
        if not lanes:
            marks.append(text(left, y + 14 + tall, "level.quiet", tone="soft"))
    scene = _scene(
        "links",
        marks,
        known,
        paper,
        num_gpus=cluster.num_gpus,
        num_nodes=cluster.num_nodes,
        count=len(tiers),
        inner_bytes_per_s=tiers[0].bandwidth_bytes_per_s,
        outer_bytes_per_s=tiers[-1].bandwidth_bytes_per_s / tiers[-1].oversubscription,
    )
    one = replace(scene.caption, code="links.overview.one")
    return replace(scene, caption=one) if len(tiers) == 1 else scene


def _level_words(tier: Tier, *, y: float, paper: Paper) -> list[Mark]:
    """Name, speed, extent and latency of a level; speed beside the name where it is narrow."""
    rate = tier.bandwidth_bytes_per_s / tier.oversubscription
    speed: dict[str, Any] = {"link_bytes_per_s": rate, "fabric": tier.fabric}
    numbers: dict[str, Any] = {"num_gpus": tier.num_gpus, "latency_s": tier.latency_s}
    marks = [text(0, y + 4, "level.name", tone="strong", tier=tier.name)]
    if paper.narrow:
        marks.append(text(paper.width, y + 4, "level.speed", anchor="end", **speed))
    else:
        marks.append(text(0, y + 26, "level.speed", **speed))
    y += 25 if paper.narrow else 47
    marks.append(text(0, y, "level.span", tone="soft", **numbers))
    if tier.oversubscription > 1:
        code = "level.oversubscribed"
        marks.append(text(0, y + 20, code, tone="soft", times=tier.oversubscription))
    return marks


def _groups(
    facts: PlanFacts, index: int, *, y: float, height: float, room: tuple[float, float]
) -> list[Mark]:
    """The domains of a level, each as wide as its share of the cluster."""
    cluster = facts.scenario.cluster
    tier = cluster.tiers[index]
    count = -(-cluster.num_gpus // tier.num_gpus)
    left, wide = room
    shown = min(count, _MOST_GROUPS, int(wide // 26))
    width = wide / shown
    below = cluster.tiers[index - 1].num_gpus if index else 1
    marks = []
    for i in range(shown):
        cut = i == shown - 1 and shown < count
        x = left + i * width
        marks.append(box(x, y, width - 6, height, tone="frame"))
        label = f"+{count - shown + 1}" if cut else ""
        inside = min(tier.num_gpus // below, 32)
        if cut or (width - 18) / inside < 3:
            literal = label or f"{tier.num_gpus}"
            marks.append(box(x, y, width - 6, height, tone="track", literal=literal))
            continue
        each = (width - 18) / inside
        literal = f"{below}" if index and each > 20 else ""
        tone = "track" if index else "accent"
        marks += [
            box(x + 6 + k * each, y + 6, each * 0.86, height - 12, tone=tone, literal=literal)
            for k in range(inside)
        ]
    return marks
