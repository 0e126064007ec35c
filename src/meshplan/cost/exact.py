"""Event simulation of the pipelines of a few plans, with the times of their units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.actions import Pipelines, PipelineTimes
from meshplan.cost.schedule.bound import PipelineShape
from meshplan.cost.schedule.layout import chunk_counts, layout_of_plan
from meshplan.cost.schedule.simulate import simulate_all
from meshplan.cost.unit_time import Units
from meshplan.inputs.model import Model
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["pipeline_times", "simulated_pipelines"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def simulated_pipelines(
    model: Model, grid: PlanGrid, shape: PipelineShape, units: Units
) -> FloatArray:
    """Play the pipeline of each plan.

    Returns:
        Seconds, ``(num_plans,)``.
    """
    seconds = np.empty(len(grid))
    places, pipelines = [], []
    for index, plans in _alike(grid):
        places.append(index)
        pipelines.append(_pipelines(model, plans, shape, units, index=index))
    for index, found in zip(places, simulate_all(pipelines), strict=True):
        seconds[index] = found
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
    one = _pipelines(model, [grid.plan(index)], shape, units, index=np.array([index]))
    return PipelineTimes(
        forward_s=tuple(one.forward_s[:, 0].tolist()),
        backward_input_s=tuple(one.backward_input_s[:, 0].tolist()),
        backward_weight_s=tuple(one.backward_weight_s[:, 0].tolist()),
        send_s=float(one.send_s[0]),
        blocking=bool(one.blocking[0]),
    )


def _alike(grid: PlanGrid) -> Iterator[tuple[IntArray, list[Plan]]]:
    """Plans with the same schedule and degrees of the pipeline, and where they stand."""
    groups: dict[tuple[int, int, int], list[tuple[int, Plan]]] = {}
    for place, plan in enumerate(grid):
        groups.setdefault((plan.schedule, plan.pp, plan.vpp), []).append((place, plan))
    for group in groups.values():
        yield np.array([place for place, _ in group]), [plan for _, plan in group]


def _pipelines(
    model: Model, plans: list[Plan], shape: PipelineShape, units: Units, *, index: IntArray
) -> Pipelines:
    """Time the virtual stages of plans that are alike."""
    counts = [_unit_counts(model, plan) for plan in plans]
    count = np.stack([all_units for all_units, _ in counts], axis=1)
    again = np.stack([recomputed for _, recomputed in counts], axis=1)

    def stages(counts: IntArray, name: str) -> FloatArray:
        # unit by unit, as the closed form adds them up
        total = np.zeros(counts.shape[:2])
        for unit, values in enumerate(units.values(name)):
            total += counts[:, :, unit] * values[index]
        return total

    return Pipelines(
        schedule=plans[0].schedule,
        pp=plans[0].pp,
        vpp=plans[0].vpp,
        num_micro_batches=shape.num_micro_batches[index],
        forward_s=stages(count, "ahead_s"),
        backward_input_s=stages(count, "back_s") + stages(again, "again_s"),
        backward_weight_s=stages(count, "weight_s"),
        send_s=shape.send_s[index],
        blocking=shape.blocking[index],
    )


_Counts = tuple[IntArray, IntArray]


@lru_cache(maxsize=16)
def _known_counts(model: Model) -> dict[tuple[object, ...], _Counts]:
    """Units of the virtual stages of a model so far, by what deals them."""
    del model
    return {}


def _unit_counts(model: Model, plan: Plan) -> _Counts:
    """All units of each virtual stage and those that are recomputed."""
    known = _known_counts(model)
    key = (plan.schedule, plan.pp, plan.vpp, plan.split, plan.stage_layers, plan.recompute_layers)
    if key not in known:
        layout = layout_of_plan(model, plan)
        known[key] = chunk_counts(model, layout, recompute_layers=plan.recompute_layers)
    return known[key]
