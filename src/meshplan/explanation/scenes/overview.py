"""Overview: what sits where."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import HEIGHT, WIDTH, Cells, Label, Mark, Scene, box, text
from meshplan.space.placement import AxisName

__all__ = ["overview", "rank_cells"]

MOST_CELLS = 4096
_TOP, _LEGEND = 44.0, 60.0
COLOUR_OF: dict[str, AxisName] = {
    "panorama": "pp",
    "data": "dp",
    "tensor": "tp",
    "pipeline": "pp",
    "combination": "pp",
    "scale": "dp",
    "links": "tp",
}
AXES: tuple[AxisName, ...] = ("tp", "cp", "ep", "dp", "pp")


def overview(facts: PlanFacts, mechanism: str) -> Scene:
    """Ranks on GPUs in nodes, coloured by their place on one axis."""
    axis = COLOUR_OF[mechanism]
    plan, cluster = facts.plan, facts.scenario.cluster
    if facts.group(axis)[0] == 1:
        axis = max(AXES, key=lambda a: facts.group(a)[0])
    cells, frames = rank_cells(facts, axis)
    size = facts.group(axis)[0]
    marks = [*frames, *_legend(axis, size)]
    if mechanism == "links":
        marks += _tiers(facts)
    numbers = {
        "axis": axis.upper(),
        "size": size,
        "num_gpus": cluster.num_gpus,
        "num_nodes": cluster.num_nodes,
        "num_groups": cluster.num_gpus // size,
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "cp": plan.cp,
        "product": plan.tp * plan.pp * plan.dp * plan.cp,
        "cells_are": cells.ranks_per_cell,
    }
    return Scene(
        mechanism=mechanism,
        mode="overview",
        duration_s=0.0,
        stops=(),
        marks=tuple(marks),
        cells=cells,
        caption=Label(code=f"{mechanism}.overview", numbers=numbers),
        facts={
            "num_gpus": cluster.num_gpus,
            "num_nodes": cluster.num_nodes,
            "axis": axis,
            **{a: facts.group(a)[0] for a in AXES},
        },
    )


def rank_cells(facts: PlanFacts, axis: AxisName) -> tuple[Cells, list[Mark]]:
    """Place every rank in its node, nodes in rows; too many ranks become one square per node."""
    cluster = facts.scenario.cluster
    num, per_node = cluster.num_gpus, cluster.gpus_per_node
    stands_for = 1
    while num // stands_for > MOST_CELLS:
        stands_for = per_node if stands_for == 1 else stands_for * 2
    inside = max(per_node // stands_for, 1)
    count = -(-num // stands_for)
    across = math.ceil(math.sqrt(inside * 2)) if inside > 1 else 1
    down = -(-inside // across)
    blocks = -(-count // inside)
    width, height = WIDTH - 8, HEIGHT - _TOP - _LEGEND
    pad = 0.8 if inside > 1 else 0.15
    columns = min(
        range(1, blocks + 1),
        key=lambda c: (
            -min(width / (c * (across + pad)), height / (math.ceil(blocks / c) * (down + pad)))
        ),
    )
    rows = math.ceil(blocks / columns)
    pitch = min(width / (columns * (across + pad)), height / (rows * (down + pad)), 84.0)
    left = (WIDTH - pitch * columns * (across + pad) + pitch * pad) / 2
    index = np.arange(count)
    block, place = np.divmod(index, inside)
    x = left + pitch * ((block % columns) * (across + pad) + place % across)
    top = _TOP + max((height - pitch * rows * (down + pad)) / 2, 0.0) + pitch * 0.3
    y = top + pitch * ((block // columns) * (down + pad) + place // across)
    rank = index * stands_for
    groups: dict[str, tuple[int, ...]] = {}
    for name in AXES:
        size, stride = facts.group(name)
        if size > 1:
            groups[name] = tuple((rank - rank // stride % size * stride).tolist())
    size, stride = facts.group(axis)
    position = rank // stride % size
    tone = position * 8 // size if size > 8 else position
    cells = Cells(
        size=round(pitch * 0.88, 3),
        x=tuple(np.round(x, 2).tolist()),
        y=tuple(np.round(y, 2).tolist()),
        first_rank=tuple(rank.tolist()),
        ranks_per_cell=stands_for,
        tone=tuple(tone.tolist()),
        groups=groups,
    )
    frames = []
    if inside > 1 and blocks <= 512:
        for b in range(blocks):
            fx = left + pitch * (b % columns) * (across + pad) - pitch * 0.2
            fy = top + pitch * (b // columns) * (down + pad) - pitch * 0.2
            frames.append(box(fx, fy, pitch * (across + 0.28), pitch * (down + 0.28), tone="frame"))
    return cells, frames


def _legend(axis: str, size: int) -> list[Mark]:
    """Colours of the positions on the axis."""
    shown = min(size, 8)
    marks = [text(0, 20, "legend.position", axis=axis.upper(), size=size)]
    for i in range(shown):
        x = 330 + i * 84
        first, last = -(-i * size // shown), -(-(i + 1) * size // shown) - 1
        name = f"{axis.upper()}{first}" + (f"–{last}" if last > first else "")
        marks.append(box(x, 8, 14, 14, tone=f"t{i}"))
        marks.append(text(x + 19, 20, literal=name, tone="soft"))
    return marks


def _tiers(facts: PlanFacts) -> list[Mark]:
    """Levels of the network with what one GPU gets on each."""
    marks = []
    tiers = facts.scenario.cluster.tiers
    step = WIDTH / max(len(tiers), 1)
    for i, tier in enumerate(tiers):
        y = HEIGHT - 34
        marks.append(box(i * step, y - 16, step - 12, 44, tone="frame"))
        numbers: dict[str, Any] = {
            "name": tier.name,
            "num_gpus": tier.num_gpus,
            "link_bytes_per_s": tier.bandwidth_bytes_per_s / tier.oversubscription,
        }
        marks.append(text(i * step + 12, y + 10, "tier", **numbers))
    return marks
