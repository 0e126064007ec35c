"""Gradients and parameters between replicas: what of their traffic the step waits for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from meshplan.cost.overlap import exposed
from meshplan.cost.schedule.bound import DeviceTimes
from meshplan.cost.schedule.layout import StageTable
from meshplan.cost.stage_sum import weigh
from meshplan.cost.unit_time import Units, UnitTime, reduced_in_stage
from meshplan.inputs.profile import FrameworkProfile
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import PlanGrid
from meshplan.space.stages import V_SHAPED

__all__ = ["after_pipeline", "owns_head"]

FloatArray = npt.NDArray[np.float64]


def owns_head(scenario: Scenario, grid: PlanGrid) -> FloatArray:
    """Return 0 where the head is the embedding that the same device holds already, else 1."""
    together = (grid.pp == 1) | np.isin(grid.schedule, [int(s) for s in V_SHAPED])
    return np.where(scenario.model.tied_embeddings & together, 0.0, 1.0)


def after_pipeline(
    scenario: Scenario,
    grid: PlanGrid,
    framework: FrameworkProfile,
    table: StageTable,
    units: Units,
    devices: DeviceTimes,
) -> tuple[FloatArray, FloatArray]:
    """Time what follows the pipeline: gradients, optimizer step, updated parameters.

    Gradients of a device hide behind its last backward pass, the gather of updated parameters
    behind the first forward of the next step. A device that ends its backward before the first
    one does has that much time more.

    Returns:
        ``(exposed traffic, optimizer step)`` of the device that is ready last [s].

    Assumes:
        A product beside which traffic of tensor or context parallelism runs hides traffic between
        replicas too: most of the one travels inside nodes, most of the other between them. Where
        each product hides but one of them, the steps of the golden predictions move by at most
        0.07 % and the measured layouts of MoE Parallel Folding away (median error 4.8 to 5.1 %).
    """
    reduce, gather, update = _once_per_step(units, owns_head(scenario, grid))
    passes = _passes_behind(grid)
    num_blocks = table.count.sum(axis=0).take(table.index, axis=1)
    traffic = _exposed_traffic(
        framework,
        grid,
        gradients=weigh(table.count, table.index, reduce),
        parameters=weigh(table.count, table.index, gather) + _broadcasts(scenario, grid, framework),
        backward=passes * (devices.input_s + devices.weight_s),
        forward=passes * devices.forward_s,
        buckets=np.maximum(num_blocks, 1.0),
    )
    optimizer = weigh(table.count, table.index, update)
    last = (traffic + optimizer - devices.backward_before_s).argmax(axis=0)
    slack = np.minimum(devices.backward_before_s, traffic)
    plan = np.arange(len(grid))
    return (traffic - slack)[last, plan], optimizer[last, plan]


def _once_per_step(units: Units, own_head: FloatArray) -> tuple[list[FloatArray], ...]:
    """Reductions, gathers and optimizer step of each unit that happen once per step [s].

    What repeats with every micro-batch is a part of the stage times already.
    """
    grid = units.factored.grid
    micro = grid.num_micro_batches.astype(np.float64)

    def per_unit(
        name: str, value: Callable[[UnitTime], FloatArray] | None = None
    ) -> list[FloatArray]:
        *blocks, head = units.values(name, value)
        return [*blocks, head * own_head]

    def reduced(unit: UnitTime) -> FloatArray:
        left = np.where(reduced_in_stage(unit.replicas, grid), 0.0, 1.0)
        return left * unit.replicas.reduce.seconds

    def gathered(unit: UnitTime) -> FloatArray:
        replicas = unit.replicas
        once = replicas.gathers_update
        once = once + np.where(replicas.gathers_forward >= micro, 0.0, replicas.gathers_forward)
        return once * replicas.gather.seconds

    return (
        per_unit("reduced_once_s", reduced),
        per_unit("gathered_once_s", gathered),
        per_unit("optimizer_s"),
    )


def _exposed_traffic(
    framework: FrameworkProfile,
    grid: PlanGrid,
    *,
    gradients: FloatArray,
    parameters: FloatArray,
    backward: FloatArray,
    forward: FloatArray,
    buckets: FloatArray,
) -> FloatArray:
    """What one device waits for: the last bucket of each at least, and what finds no cover [s]."""
    unsharded, sharded = framework.overlap_all_reduce, framework.overlap_gradients
    seen = exposed(
        gradients,
        backward,
        share=np.where(grid.zero == 0, unsharded, sharded),
        contention=framework.contention,
        least=gradients / buckets,
    )
    return seen + exposed(
        parameters,
        forward,
        share=framework.overlap_parameters,
        contention=framework.contention,
        least=parameters / buckets,
    )


def _passes_behind(grid: PlanGrid) -> FloatArray:
    """Backward passes of one micro-batch behind which gradients of a device are reduced.

    Without interleaving the gradients are complete in the last pass alone. With ``v`` chunks each
    is complete a round of ``min(p, m)`` micro-batches before the next one.
    """
    rounds = np.minimum(grid.pp, grid.num_micro_batches)
    chunks = grid.vpp.astype(np.float64)
    return (rounds * (chunks - 1.0) + 1.0) / chunks


def _broadcasts(
    scenario: Scenario, grid: PlanGrid, framework: FrameworkProfile
) -> FloatArray | float:
    """Time that broadcasts of updated parts take on top of their bytes.

    Each device of the shard group broadcasts its own part, one after another, through all nodes
    of the group.
    """
    if not framework.update_hop_s:
        return 0.0
    span = grid.dp_shard * grid.cp * grid.tp
    nodes = np.ceil(span / scenario.cluster.gpus_per_node)
    updates = (grid.zero == 1) | (grid.zero == 2)
    return np.where(updates, grid.dp_shard * nodes * framework.update_hop_s, 0.0)
