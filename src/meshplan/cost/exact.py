"""Event simulation of the pipelines of a few plans, with the times of their units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from meshplan.cost.recent import Recent
from meshplan.cost.schedule.actions import Pipelines, PipelineTimes
from meshplan.cost.schedule.bound import PipelineShape
from meshplan.cost.schedule.layout import KEPT_LAYOUTS, chunk_counts, layout_of
from meshplan.cost.schedule.simulate import simulate_all
from meshplan.cost.unit_time import Units
from meshplan.inputs.model import Model
from meshplan.space.plan import PlanGrid, Schedule, Split

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
    places, pipelines = zip(*_all_pipelines(model, grid, shape, units), strict=True)
    seconds = np.empty(len(grid))
    for index, found in zip(places, simulate_all(pipelines), strict=True):
        seconds[index] = found
    return seconds


def pipeline_times(
    model: Model, grid: PlanGrid, shape: PipelineShape, units: Units
) -> PipelineTimes:
    """Time one micro-batch on each virtual stage of a single plan."""
    ((_, one),) = _all_pipelines(model, grid, shape, units)
    return PipelineTimes(
        forward_s=tuple(one.forward_s[:, 0].tolist()),
        backward_input_s=tuple(one.backward_input_s[:, 0].tolist()),
        backward_weight_s=tuple(one.backward_weight_s[:, 0].tolist()),
        send_s=float(one.send_s[0]),
        blocking=bool(one.blocking[0]),
    )


_Counts = tuple[IntArray, IntArray]
_Dealt = tuple[int, int, int, int, int]
"""Schedule, degrees, split and recomputed layers: what units of virtual stages follow from."""


def _all_pipelines(
    model: Model, grid: PlanGrid, shape: PipelineShape, units: Units
) -> Iterator[tuple[IntArray, Pipelines]]:
    """Plans with the same schedule and degrees of the pipeline, and where they stand."""
    columns = (grid.schedule, grid.pp, grid.vpp, grid.split, grid.recompute_layers)
    known = _known_counts(model)
    groups: dict[tuple[int, int, int], list[tuple[int, _Counts]]] = {}
    for place, dealt in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        key = (*dealt, grid.stage_layers)
        counts = known.get(key, partial(_unit_counts, model, dealt, grid.stage_layers))
        groups.setdefault(dealt[:3], []).append((place, counts))
    for (schedule, pp, vpp), group in groups.items():
        index = np.array([place for place, _ in group])
        count, again = (np.stack(part, axis=1) for part in zip(*(c for _, c in group), strict=True))
        forward, back, weight = _stage_times(count, again, units, index)
        yield (
            index,
            Pipelines(
                schedule=Schedule(schedule),
                pp=pp,
                vpp=vpp,
                num_micro_batches=shape.num_micro_batches[index],
                forward_s=forward,
                backward_input_s=back,
                backward_weight_s=weight,
                send_s=shape.send_s[index],
                blocking=shape.blocking[index],
            ),
        )


def _stage_times(
    count: IntArray, again: IntArray, units: Units, index: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Forward and both parts of backward of one micro-batch on each virtual stage [s].

    Args:
        count: units of each virtual stage, ``(pp * vpp, num_plans, num_units)``.
        again: those that are recomputed.
        units: times of the units of a grid.
        index: which of its plans these are.
    """

    def stages(counts: IntArray, name: str) -> FloatArray:
        # unit by unit, as the closed form adds them up
        total = np.zeros(counts.shape[:2])
        for unit, values in enumerate(units.values(name)):
            total += counts[:, :, unit] * values[index]
        return total

    back = stages(count, "back_s") + stages(again, "again_s")
    return stages(count, "ahead_s"), back, stages(count, "weight_s")


@lru_cache(maxsize=16)
def _known_counts(model: Model) -> Recent[_Counts]:
    """Units of the virtual stages of a model so far: one look-up of it serves a whole grid."""
    del model
    return Recent(KEPT_LAYOUTS)


def _unit_counts(model: Model, dealt: _Dealt, stage_layers: tuple[int, ...]) -> _Counts:
    """All units of each virtual stage and those that are recomputed."""
    schedule, pp, vpp, split, recompute_layers = dealt
    layout = layout_of(
        model,
        pp=pp,
        vpp=vpp,
        schedule=Schedule(schedule),
        split=Split(split),
        stage_layers=stage_layers,
    )
    return chunk_counts(model, layout, recompute_layers=recompute_layers)
