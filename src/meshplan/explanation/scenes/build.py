"""From a plan to one of its scenes."""

from __future__ import annotations

from dataclasses import replace

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.output import output
from meshplan.explanation.scenes.overview import overview
from meshplan.explanation.scenes.records import WIDE, Mark, Paper, Scene, WhatIf
from meshplan.explanation.scenes.transformation import transformation
from meshplan.explanation.scenes.transmission import transmission

__all__ = ["MECHANISMS", "MODES", "build_scene"]

MECHANISMS = ("panorama", "data", "tensor", "pipeline", "combination", "scale", "links")
_LETTERS, _BELOW, _LINE, _MARGIN, _WORTH_CUTTING = 12.0, 6.0, 19.0, 10.0, 24.0
MODES = ("overview", "transmission", "transformation", "output")


def build_scene(
    facts: PlanFacts,
    *,
    mechanism: str,
    mode: str,
    what_if: WhatIf | None = None,
    paper: Paper = WIDE,
) -> Scene:
    """Build one scene.

    Args:
        facts: numbers of the plan.
        mechanism: one of ``MECHANISMS``.
        mode: one of ``MODES``.
        what_if: a pipeline or a collective that is played with, where the scene has controls.
        paper: what it is laid out on.
    """
    made = _built(facts, mechanism, mode, what_if or WhatIf(), paper)
    return _fitted(made)


def _built(facts: PlanFacts, mechanism: str, mode: str, what_if: WhatIf, paper: Paper) -> Scene:
    if mode == "overview":
        return overview(facts, mechanism, paper)
    if mode == "transmission":
        return transmission(facts, mechanism, what_if, paper)
    if mode == "transformation":
        return transformation(facts, mechanism, paper)
    assert mode == "output", mode
    return output(facts, mechanism, what_if, paper)


def _fitted(scene: Scene) -> Scene:
    """Cut the paper to what is drawn: few rows would leave half of it empty."""
    upper, lower = scene.paper.height, 0.0
    for mark in scene.marks:
        heights = [y for _, y in mark.points] or [mark.y, mark.y + mark.h]
        rise, fall = (_LETTERS, _BELOW) if mark.kind == "text" else (0.0, 0.0)
        fall += _LINE if mark.room else 0.0
        upper, lower = min(upper, *heights, mark.y - rise), max(lower, *heights, mark.y + fall)
    if scene.cells:
        upper = min(upper, *scene.cells.y)
        lower = max(lower, max(scene.cells.y) + scene.cells.size)
    up = upper - _MARGIN
    if scene.paper.height - (lower - upper) < _WORTH_CUTTING:
        return scene
    cells = scene.cells
    if cells:
        cells = replace(cells, y=tuple(round(y - up, 2) for y in cells.y))
    paper = replace(scene.paper, height=lower - upper + 2 * _MARGIN)
    return replace(
        scene, marks=tuple(_higher(mark, up) for mark in scene.marks), cells=cells, paper=paper
    )


def _higher(mark: Mark, up: float) -> Mark:
    points = tuple((x, y - up) for x, y in mark.points)
    return replace(mark, y=mark.y - up, points=points)
