"""The time of one training step, part by part.

.. math:: t = t_{pipeline} + t_{gradients} + t_{optimizer} + t_{host}

The pipeline runs the micro-batches through the stages; a stage is a sum of units, each with the
traffic that no computation hides. The parts are those of the device that sets the pace; what it
spends waiting is the bubble.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.bands import low_high
from meshplan.cost.exact import simulated_pipelines
from meshplan.cost.flop import recompute_flop, step_flop
from meshplan.cost.handovers import num_handovers, possible_stall_s
from meshplan.cost.least import least_high
from meshplan.cost.offload import offload_time
from meshplan.cost.replicas import after_pipeline
from meshplan.cost.schedule.actions import STAGGERED
from meshplan.cost.schedule.bound import DeviceTimes, PipelineShape, pipeline_bound
from meshplan.cost.schedule.layout import StageTable
from meshplan.cost.stage_sum import device_times, on_device
from meshplan.cost.timed import Timed
from meshplan.cost.unit_time import Units
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import Profile
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import PlanGrid

__all__ = ["PARTS", "StepGrid", "StepModel", "step_time"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PARTS = (
    "compute_s",
    "recompute_s",
    "tp_comm_s",
    "cp_comm_s",
    "ep_comm_s",
    "pp_comm_s",
    "dp_comm_s",
    "bubble_s",
    "optimizer_s",
    "other_s",
)
"""Parts of a step, which add up to ``step_time_s``."""


@record
class StepGrid:
    """Time of one step of each plan; arrays ``(num_plans,)``.

    Attributes:
        step_time_s: the whole step [s].
        low_s: lower end of the 80 % band [s].
        high_s: upper end of the 80 % band [s].
        compute_s: forward and backward computation of the device that sets the pace [s].
        recompute_s: forward passes that it computes again [s].
        tp_comm_s: tensor-parallel traffic that shows [s].
        cp_comm_s: context-parallel traffic that shows [s].
        ep_comm_s: expert-parallel traffic that shows [s].
        pp_comm_s: sends between stages that show, the wait for slow ones included where the
            pipeline is played [s].
        dp_comm_s: traffic of gradients and parameters that shows [s].
        bubble_s: waiting of the device that sets the pace [s].
        optimizer_s: optimizer step [s].
        other_s: host time, waiting for stragglers, for nodes that hold up a pipeline and for
            offloaded activations [s].
        model_flop: FLOP of the model per step over all devices, attention in full [flop].
        mfu: share of the peak that ``model_flop`` reach [1].
        mfu_causal: the same with attention inside its mask [1].
        hfu: the same as ``mfu`` with the FLOP that recompute repeats [1].
    """

    step_time_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    compute_s: FloatArray
    recompute_s: FloatArray
    tp_comm_s: FloatArray
    cp_comm_s: FloatArray
    ep_comm_s: FloatArray
    pp_comm_s: FloatArray
    dp_comm_s: FloatArray
    bubble_s: FloatArray
    optimizer_s: FloatArray
    other_s: FloatArray
    model_flop: FloatArray
    mfu: FloatArray
    mfu_causal: FloatArray
    hfu: FloatArray


class StepModel:
    """Step times of a grid, of all its plans or of some: what plans share is worked out once.

    Args:
        scenario: model, cluster, job and profile.
        grid: legal plans.
        profile: what holds for the framework on the cluster, instead of what the scenario
            names; for plans of one framework.
    """

    def __init__(
        self, scenario: Scenario, grid: PlanGrid, *, profile: Profile | None = None
    ) -> None:
        codes = grid.frameworks
        assert profile is None or len(codes) == 1, "a profile describes one framework"
        self._framework = grid.framework
        self._place = np.arange(len(grid))
        self._timed: dict[int, Timed] = {}
        for code in codes:
            own = grid
            if len(codes) > 1:
                index = np.flatnonzero(grid.framework == code)
                self._place[index] = np.arange(len(index))
                own = grid.take(index)
            chosen = profile or profile_of(scenario, code.name.lower())
            self._timed[code] = Timed.of(scenario, own, chosen)

    def times(self, index: IntArray | None = None, *, exact: bool = False) -> StepGrid:
        """Predict step times.

        Args:
            index: positions of the plans that are asked about; all by default.
            exact: play the pipeline event by event instead of the closed form, which is never
                above it.

        Returns:
            Step times and their parts, ``(num_plans,)``.
        """
        parts = [(at, _grid(timed, exact=exact)) for at, timed in self._parts(index)]
        if len(parts) == 1:
            return parts[0][1]
        num = len(self._place) if index is None else len(index)
        values: dict[str, FloatArray] = {f.name: np.empty(num) for f in fields(StepGrid)}
        for at, part in parts:
            for name, array in values.items():
                array[at] = getattr(part, name)
        return StepGrid(**values)

    def sends_apart(self, found: StepGrid, index: IntArray | None = None) -> StepGrid:
        """Tell waiting for sends from the bubble, which the plans have with free sends too.

        Equation: ``bubble = T(0) - busy``, ``sends = T(s) - T(0)``, with ``T(s)`` the pipeline
        played event by event with sends of ``s`` seconds. Their sum and all else stay.

        Args:
            found: exact times of the plans that are asked about.
            index: their positions; all by default.

        Returns:
            The same times, ``(num_plans,)``.
        """
        waiting = found.bubble_s + found.pp_comm_s
        if not len(waiting):
            return found
        bubble = np.empty(len(waiting))
        for at, timed in self._parts(index):
            bubble[at] = np.clip(_bubble_of_free_sends(timed), 0.0, waiting[at])
        return replace(found, bubble_s=bubble, pp_comm_s=waiting - bubble)

    def high(self, index: IntArray | None = None, *, exact: bool = False) -> FloatArray:
        """Predict the upper end of the 80 % band alone; see :meth:`times`.

        Returns:
            Seconds, ``(num_plans,)``.
        """
        high = np.empty(len(self._place) if index is None else len(index))
        for at, timed in self._parts(index):
            _, _, high[at] = _band(timed, _busy(timed, exact=exact))
        return high

    def least_high(self, index: IntArray | slice | None = None) -> FloatArray:
        """Bound ``high_s`` of the closed form from below, in a fraction of the time.

        Args:
            index: positions of the plans that are asked about; all by default.

        Returns:
            Seconds, ``(num_plans,)``.
        """
        least = np.empty(len(self._place) if index is None else len(self._place[index]))
        for at, timed in self._parts(index):
            least[at] = least_high(timed)
        return least

    def _parts(self, index: IntArray | slice | None) -> Iterator[tuple[IntArray | slice, Timed]]:
        """The plans asked about by framework, and where they stand among them."""
        if len(self._timed) == 1:
            timed = next(iter(self._timed.values()))
            yield slice(None), timed if index is None else timed.take(index)
            return
        index = np.arange(len(self._place))[slice(None) if index is None else index]
        for code, timed in self._timed.items():
            at = np.flatnonzero(self._framework[index] == code)
            if len(at):
                yield at, timed.take(self._place[index[at]])


def step_time(
    scenario: Scenario, grid: PlanGrid, *, exact: bool = False, profile: Profile | None = None
) -> StepGrid:
    """Predict the time of one step of each plan; see :class:`StepModel`."""
    model = StepModel(scenario, grid, profile=profile)
    found = model.times(exact=exact)
    return model.sends_apart(found) if exact else found


def _busy(timed: Timed, *, exact: bool) -> dict[str, FloatArray]:
    """The parts of the step of plans that share a profile."""
    scenario, grid, framework = timed.scenario, timed.grid, timed.profile.framework
    units, shape = timed.units, timed.shape
    table = timed.table
    devices = device_times(table, units, split=shape.splits)
    # the closed form: the largest bound over the devices
    pipeline, pace = pipeline_bound(shape, devices).max(axis=0), _pace(devices)
    if exact:
        # the maximum only takes away what rounding puts the simulation below its own bound
        pipeline = np.maximum(pipeline, simulated_pipelines(scenario.model, grid, shape, units))
    busy = _busy_parts(grid, table, units, pace)
    busy["pp_comm_s"] = _sends(shape, table.device[pace, table.index])
    traffic, optimizer = after_pipeline(scenario, grid, framework, table, units, devices)
    waiting = np.maximum(pipeline - _sum(list(busy.values())), 0.0)
    busy["bubble_s"] = np.where(grid.pp > 1, waiting, 0.0)
    busy["dp_comm_s"] = busy["dp_comm_s"] + traffic + timed.tied_s
    busy["optimizer_s"] = optimizer * framework.optimizer_passes
    host = timed.host_s(_sum(list(busy.values())))
    busy["other_s"] = host + offload_time(scenario, grid, devices)
    return {name: timed.as_measured(seconds) for name, seconds in busy.items()}


def _bubble_of_free_sends(timed: Timed) -> FloatArray:
    """Waiting of the device that sets the pace where nothing is waited for on the way [s]."""
    model, grid, units, table = timed.scenario.model, timed.grid, timed.units, timed.table
    shape = replace(timed.shape, send_s=np.zeros(len(grid)))
    pace = _pace(device_times(table, units, split=shape.splits))
    pipeline = simulated_pipelines(model, grid, shape, units)
    busy = _busy_parts(grid, table, units, pace)
    waiting = np.where(grid.pp > 1, pipeline - _sum(list(busy.values())), 0.0)
    return timed.as_measured(waiting)


def _pace(devices: DeviceTimes) -> IntArray:
    """The device that sets the pace of the pipeline: the first of those that work longest."""
    pace: IntArray = (devices.forward_s + devices.input_s + devices.weight_s).argmax(axis=0)
    return pace


def _busy_parts(
    grid: PlanGrid, table: StageTable, units: Units, pace: IntArray
) -> dict[str, FloatArray]:
    """What the device that sets the pace does in one step, by part."""
    micro = grid.num_micro_batches.astype(np.float64)

    def all_of(name: str) -> FloatArray:
        return micro * on_device(table.count, table.index, pace, units.values(name))

    def again(name: str) -> FloatArray:
        return micro * on_device(table.recomputed, table.index, pace, units.values(name))

    return {
        "compute_s": all_of("forward_s") + all_of("input_s") + all_of("weight_s"),
        "recompute_s": again("recompute_s"),
        "tp_comm_s": all_of("tp_s") + again("tp_recompute_s"),
        "cp_comm_s": all_of("cp_s") + again("cp_recompute_s"),
        "ep_comm_s": all_of("ep_s") + again("ep_recompute_s"),
        "dp_comm_s": all_of("shard_s"),
    }


def _sends(shape: PipelineShape, device: IntArray) -> FloatArray:
    """Sends that the device that sets the pace waits for, and the way of the first micro-batch."""
    there = (device < shape.pp - 1).astype(np.int64) + (device > 0)
    waited = np.where(shape.blocking, shape.num_micro_batches * there * shape.send_s, 0.0)
    fill = np.where(np.isin(shape.schedule, [int(s) for s in STAGGERED]), 0, device)
    return waited + fill * shape.send_s


def _sum(values: Sequence[FloatArray]) -> FloatArray:
    """Add arrays one by one."""
    total = np.zeros(len(values[0]))
    for value in values:
        total = total + value
    return total


def _band(timed: Timed, parts: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The step, and the lower and the upper end of its band."""
    step = _sum([parts[name] for name in PARTS])
    stall = possible_stall_s(
        timed.profile.cluster,
        num_handovers(timed.grid),
        num_nodes=timed.scenario.cluster.num_nodes,
    )
    low, high = low_high(timed.profile.band, step, parts, stall_s=stall)
    return step, low, high


def _grid(timed: Timed, *, exact: bool) -> StepGrid:
    """All that is said of the step of plans that share a profile."""
    scenario, grid = timed.scenario, timed.grid
    parts = _busy(timed, exact=exact)
    step, low, high = _band(timed, parts)
    device = scenario.cluster.device
    peak = device.peak_flop_per_s[device.peak_precision(scenario.job.precision)]
    flop = step_flop(scenario)
    capacity = peak * scenario.cluster.num_gpus * step
    return StepGrid(
        step_time_s=step,
        low_s=low,
        high_s=high,
        model_flop=np.full(len(grid), flop.full),
        mfu=flop.full / capacity,
        mfu_causal=flop.causal / capacity,
        hfu=(flop.full + recompute_flop(scenario, grid)) / capacity,
        **parts,
    )
