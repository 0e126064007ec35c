"""From a plan to one of its scenes."""

from __future__ import annotations

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.output import output
from meshplan.explanation.scenes.overview import overview
from meshplan.explanation.scenes.records import WIDE, Paper, Scene, WhatIf
from meshplan.explanation.scenes.transformation import transformation
from meshplan.explanation.scenes.transmission import transmission

__all__ = ["MECHANISMS", "MODES", "build_scene"]

MECHANISMS = ("panorama", "data", "tensor", "pipeline", "combination", "scale", "links")
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
    what_if = what_if or WhatIf()
    if mode == "overview":
        return overview(facts, mechanism, paper)
    if mode == "transmission":
        return transmission(facts, mechanism, what_if, paper)
    if mode == "transformation":
        return transformation(facts, mechanism, paper)
    assert mode == "output", mode
    return output(facts, mechanism, what_if, paper)
