"""Virtual stages of a plan in model order."""

from __future__ import annotations

from meshplan.cost.schedule.layout import layout_of_plan
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Plan
from meshplan.space.stages import Chunk

__all__ = ["virtual_stages"]


def virtual_stages(scenario: Scenario, plan: Plan) -> tuple[Chunk, ...]:
    """What each virtual stage of a legal plan holds, in model order."""
    layout = layout_of_plan(scenario.model, plan)
    return tuple(chunk for _, chunk in layout.virtual_stages)
