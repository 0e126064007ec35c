"""Overview: what sits where."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshplan.explanation.scenes.cells import AXES, rank_cells
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.places import copies, groups, network, stages
from meshplan.explanation.scenes.records import Label, Mark, Paper, Scene, box, text
from meshplan.space.placement import AxisName

__all__ = ["overview"]

COLOUR_OF: dict[str, AxisName] = {
    "panorama": "pp",
    "data": "dp",
    "tensor": "tp",
}
_OWN: Mapping[str, Callable[[PlanFacts, Paper], Scene]] = {
    "combination": groups,
    "pipeline": stages,
    "scale": copies,
    "links": network,
}


_SPLITS = ("data", "tensor")
"""Whose words speak of groups, which a degree of 1 has none of."""


def overview(facts: PlanFacts, mechanism: str, paper: Paper) -> Scene:
    """Ranks on GPUs in nodes, coloured by their place on one axis, or what stands for them."""
    if mechanism in _OWN:
        return _OWN[mechanism](facts, paper)
    axis = COLOUR_OF[mechanism]
    plan, cluster = facts.plan, facts.scenario.cluster
    absent = ""
    if facts.group(axis)[0] == 1:
        absent = ".none" if mechanism in _SPLITS else ""
        axis = max(AXES, key=lambda a: facts.group(a)[0])
    size = facts.group(axis)[0]
    legend = _legend(axis, size, paper)
    lowest = max(mark.y for mark in legend)
    cells, frames = rank_cells(facts, axis, paper=paper, above=lowest + 28)
    marks = [*frames, *legend]
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
        paper=paper,
        caption=Label(code=f"{mechanism}.overview{absent}", numbers=numbers),
        facts={
            "num_gpus": cluster.num_gpus,
            "num_nodes": cluster.num_nodes,
            "axis": axis,
            **{a: facts.group(a)[0] for a in AXES},
        },
    )


def _legend(axis: str, size: int, paper: Paper) -> list[Mark]:
    """Colours of the positions on the axis: beside the title, or in rows of four under it."""
    shown = min(size, 8)
    marks = [text(0, 20, "legend.position", axis=axis.upper(), size=size)]
    for i in range(shown):
        x, y = (i % 4 * 94, 46 + i // 4 * 24) if paper.narrow else (330 + i * 84, 20)
        first, last = -(-i * size // shown), -(-(i + 1) * size // shown) - 1
        name = f"{axis.upper()}{first}" + (f"–{last}" if last > first else "")
        marks.append(box(x, y - 12, 14, 14, tone=f"t{i}"))
        marks.append(text(x + 19, y, literal=name, tone="soft"))
    return marks
