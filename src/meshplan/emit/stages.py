"""Virtual stages of a plan in model order."""

from __future__ import annotations

from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Plan
from meshplan.space.stages import Chunk, stage_layout

__all__ = ["virtual_stages"]


def virtual_stages(scenario: Scenario, plan: Plan) -> tuple[Chunk, ...]:
    """What each virtual stage of a legal plan holds, in model order."""
    layout = stage_layout(
        num_layers=scenario.model.num_layers,
        pp=plan.pp,
        vpp=plan.vpp,
        schedule=plan.schedule,
        split=plan.split,
        stage_layers=plan.stage_layers,
        num_mtp_layers=len(scenario.model.mtp_layers),
    )
    assert layout is not None, "the plan is legal"
    return tuple(chunk for _, chunk in layout.virtual_stages)
