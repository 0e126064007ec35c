"""Event simulation of the pipelines of a few plans, with the times of their units."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.actions import PipelineTimes
from meshplan.cost.schedule.bound import PipelineShape
from meshplan.cost.schedule.layout import chunk_counts, layout_of_plan
from meshplan.cost.schedule.simulate import simulate
from meshplan.cost.unit_time import Units
from meshplan.inputs.model import Model
from meshplan.space.plan import PlanGrid

__all__ = ["pipeline_times", "simulated_pipelines"]

FloatArray = npt.NDArray[np.float64]


def simulated_pipelines(
    model: Model, grid: PlanGrid, shape: PipelineShape, units: Units
) -> FloatArray:
    """Play the pipeline of each plan.

    Returns:
        Seconds, ``(num_plans,)``.
    """
    seconds = np.empty(len(grid))
    for i, plan in enumerate(grid):
        seconds[i] = simulate(
            schedule=plan.schedule,
            pp=plan.pp,
            vpp=plan.vpp,
            num_micro_batches=plan.num_micro_batches,
            times=pipeline_times(model, grid, shape, units, index=i),
        )
    return seconds


def pipeline_times(
    model: Model,
    grid: PlanGrid,
    shape: PipelineShape,
    units: Units,
    *,
    index: int,
) -> PipelineTimes:
    """Time one micro-batch on each virtual stage of one plan of a grid."""
    plan = grid.plan(index)
    layout = layout_of_plan(model, plan)
    count, again = chunk_counts(model, layout, recompute_layers=plan.recompute_layers)

    def stages(counts: npt.NDArray[np.int64], name: str) -> FloatArray:
        # unit by unit, as the closed form adds them up
        total = np.zeros(len(counts))
        for unit, values in enumerate(units.values(name)):
            total += counts[:, unit] * values[index]
        return total

    back = stages(count, "back_s") + stages(again, "again_s")
    return PipelineTimes(
        forward_s=tuple(stages(count, "ahead_s").tolist()),
        backward_input_s=tuple(back.tolist()),
        backward_weight_s=tuple(stages(count, "weight_s").tolist()),
        send_s=float(shape.send_s[index]),
        blocking=bool(shape.blocking[index]),
    )
