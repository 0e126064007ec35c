"""What all scenes of one plan draw from: the cost model asked once."""

from __future__ import annotations

from collections import Counter
from dataclasses import field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshplan.cost.collectives import Collective
from meshplan.cost.communication import (
    BlockCommunication,
    DataParallel,
    Network,
    Traffic,
    block_communication,
    data_parallel_parts,
    pipeline_send,
)
from meshplan.cost.exact import pipeline_times
from meshplan.cost.memory import StageMemory, stage_memory
from meshplan.cost.schedule.actions import PipelineTimes, Slot, device_of
from meshplan.cost.schedule.bound import PipelineShape
from meshplan.cost.schedule.layout import chunk_counts, layout_of_plan
from meshplan.cost.schedule.simulate import timeline
from meshplan.cost.step import PARTS, StepGrid, step_time
from meshplan.cost.unit_time import Units, UnitTime, tuning_of, unit_times
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.model import Layer
from meshplan.inputs.profile import Profile
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.sizes import with_gpus
from meshplan.space.placement import AxisGroup, AxisName, axis_group, tier_groups_spanned
from meshplan.space.plan import Plan, PlanGrid
from meshplan.space.rules import check_plan
from meshplan.space.stages import StageLayout

__all__ = ["AxisTraffic", "PlanFacts"]

FloatArray = npt.NDArray[np.float64]
_MOST_SLOTS = 3000


@record
class AxisTraffic:
    """What one device of a middle stage sends on one axis in one step.

    Attributes:
        axis: the axis, ``dp`` for the devices that reduce the same gradients.
        name: what it is called: those are replicas times the parts of a sequence.
        size: devices in a group.
        tier: index of the outermost network level that a group crosses.
        num_bytes: bytes that a device sends [bytes].
        seconds: time of that traffic alone on the network [s].
    """

    axis: str
    name: str
    size: int
    tier: int
    num_bytes: float
    seconds: float


@record
class _Listening(Network):
    """A network that keeps what it was asked for: collective, devices and buffer [bytes]."""

    heard: list[tuple[Collective, int, float]] = field(default_factory=list)

    def collective(
        self,
        kind: Collective,
        group: AxisGroup,
        message_bytes: FloatArray,
        *,
        busy_share: FloatArray | float = 1.0,
        merged: FloatArray | float = 1.0,
    ) -> Traffic:
        whole = np.atleast_1d(message_bytes * merged)
        self.heard.append((kind, int(group.size[0]), float(whole[0])))
        return Network.collective(
            self, kind, group, message_bytes, busy_share=busy_share, merged=merged
        )


class PlanFacts:
    """Numbers of one plan, each worked out when it is first asked for.

    Args:
        scenario: what the plan is for.
        plan: a legal plan.
    """

    def __init__(self, scenario: Scenario, plan: Plan) -> None:
        self.scenario = scenario
        self.plan = plan
        self.grid = PlanGrid.of([plan])

    @cached_property
    def profile(self) -> Profile:
        """What holds for the framework on this cluster."""
        return profile_of(self.scenario, self.plan.framework.name.lower())

    @cached_property
    def layer(self) -> Layer:
        """The kind of block that the model has most of."""
        return Counter(self.scenario.model.layers).most_common(1)[0][0]

    @cached_property
    def units(self) -> tuple[UnitTime, ...]:
        """Times of each kind of block and of the ends."""
        return unit_times(self.scenario, self.grid, self.profile)

    @cached_property
    def network(self) -> Network:
        """The network as groups see it."""
        return Network(
            cluster=self.scenario.cluster, tuning=tuning_of(self.profile, self.scenario.cluster)
        )

    @cached_property
    def block(self) -> BlockCommunication:
        """Traffic inside the most frequent block, per micro-batch."""
        return self.block_of(self.layer)

    def block_of(self, layer: Layer) -> BlockCommunication:
        """Traffic inside a block, per micro-batch."""
        return block_communication(
            self.scenario, layer, self.grid, tuning=tuning_of(self.profile, self.scenario.cluster)
        )

    @cached_property
    def replicas(self) -> DataParallel:
        """Traffic of the gradients and parameters of the most frequent block."""
        kinds = list(self.scenario.model.layer_kinds)
        return self.units[kinds.index(self.layer)].replicas

    def messages(self, size: int) -> dict[Collective, float]:
        """Largest buffer of each collective on parameters and gradients of that block [bytes].

        Args:
            size: devices in the groups that are meant.
        """
        tuning = tuning_of(self.profile, self.scenario.cluster)
        network = _Listening(cluster=self.scenario.cluster, tuning=tuning)
        data_parallel_parts(self.scenario, (self.layer,), self.grid, network=network)
        found: dict[Collective, float] = {}
        for kind, members, message_bytes in network.heard:
            if members == size:
                found[kind] = max(found.get(kind, 0.0), message_bytes)
        return found

    @cached_property
    def send_bytes(self) -> float:
        """One send to the next stage, per micro-batch [bytes]."""
        return float(self._send.num_bytes[0])

    @cached_property
    def _send(self) -> Traffic:
        return pipeline_send(
            self.scenario, self.grid, tuning=tuning_of(self.profile, self.scenario.cluster)
        )

    @cached_property
    def layout(self) -> StageLayout:
        """Which layers each stage holds."""
        return layout_of_plan(self.scenario.model, self.plan)

    @cached_property
    def step(self) -> StepGrid:
        """The exact step."""
        return step_time(self.scenario, self.grid, exact=True)

    @property
    def middle(self) -> int:
        """The pipeline stage whose traffic is shown: the one in the middle."""
        return self.plan.pp // 2

    @property
    def parts(self) -> dict[str, float]:
        """Parts of the step [s]."""
        return {name: float(getattr(self.step, name)[0]) for name in PARTS}

    @cached_property
    def stages(self) -> tuple[StageMemory, ...]:
        """Memory of each stage at its peak."""
        return stage_memory(self.scenario, self.plan)

    @cached_property
    def times(self) -> PipelineTimes:
        """Times of one micro-batch on each virtual stage."""
        framework = self.profile.framework
        shape = PipelineShape(
            schedule=self.grid.schedule,
            pp=self.grid.pp,
            vpp=self.grid.vpp,
            num_micro_batches=self.grid.num_micro_batches,
            send_s=self._send.seconds,
            blocking=np.full(1, framework.blocking_sends) & (self.grid.vpp == 1),
        )
        units = Units.of(self.units, self.grid)
        return pipeline_times(self.scenario.model, self.grid, shape, units)

    @cached_property
    def shown_micro_batches(self) -> int:
        """Micro-batches that a timetable shows: all, or whole rounds of the pipeline."""
        p = self.plan
        most = max(_MOST_SLOTS // (2 * p.pp * p.vpp), 2 * p.pp)
        if p.num_micro_batches <= most:
            return p.num_micro_batches
        return max(most // p.pp * p.pp, p.pp)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Every action of the micro-batches shown."""
        p = self.plan
        return timeline(
            schedule=p.schedule,
            pp=p.pp,
            vpp=p.vpp,
            num_micro_batches=self.shown_micro_batches,
            times=self.times,
        )

    def group(self, axis: AxisName) -> tuple[int, int]:
        """Size and stride of the groups of an axis."""
        found = axis_group(self.grid, axis)
        return int(found.size[0]), int(found.stride[0])

    def tier_of(self, axis: AxisName) -> int:
        """Index of the outermost network level that a group of the axis crosses."""
        found = axis_group(self.grid, axis)
        spans = tier_groups_spanned(self.scenario.cluster, size=found.size, stride=found.stride)
        inside = [i for i in range(len(spans)) if int(spans[i][0]) == 1]
        return inside[0] if inside else len(spans) - 1

    @cached_property
    def traffic(self) -> tuple[AxisTraffic, ...]:
        """What one device of the middle stage sends in one step, axis by axis."""
        found = [self._axis("tp", *self._inside("tp")), self._axis("cp", *self._inside("cp"))]
        found.append(self._axis("ep", *self._inside("ep")))
        found.append(self._axis("pp", *self._sends()))
        found.append(self._axis("dp_cp", *self._gradients()))
        return tuple(item for item in found if item.num_bytes > 0)

    def _axis(self, axis: AxisName, num_bytes: float, seconds: float) -> AxisTraffic:
        size, _ = self.group(axis)
        gradients = axis == "dp_cp"
        return AxisTraffic(
            axis="dp" if gradients else axis,
            name=self.replicas_name if gradients else axis.upper(),
            size=size,
            tier=self.tier_of(axis),
            num_bytes=num_bytes,
            seconds=seconds,
        )

    @property
    def replicas_name(self) -> str:
        """Name of the devices that hold the same parameters and reduce their gradients."""
        return "DP" if self.plan.cp == 1 else "DP×CP"

    @cached_property
    def _counts(self) -> tuple[list[int], list[int]]:
        """Units of the device in the middle, and those that are recomputed."""
        p = self.plan
        count, again = chunk_counts(
            self.scenario.model, self.layout, recompute_layers=p.recompute_layers
        )
        held = [c.virtual_stage for c in self.layout.chunks[self.middle]]
        return count[held].sum(axis=0).tolist(), again[held].sum(axis=0).tolist()

    def _inside(self, axis: str) -> tuple[float, float]:
        """Traffic of an axis inside the blocks of the device in the middle."""
        num_bytes = seconds = 0.0
        counts, again = self._counts
        for i, layer in enumerate(self.scenario.model.layer_kinds):
            block = self.block_of(layer)
            parts = {"forward": counts[i], "backward": counts[i], "recompute": again[i]}
            for part, times in parts.items():
                item = getattr(block, f"{axis}_{part}")
                num_bytes += times * float(item.num_bytes[0])
                seconds += times * float(item.seconds[0])
        m = self.plan.num_micro_batches
        return m * num_bytes, m * seconds

    def _sends(self) -> tuple[float, float]:
        """Activations and gradients that the device in the middle sends to its neighbours."""
        p = self.plan
        hops = 0
        for v in (c.virtual_stage for c in self.layout.chunks[self.middle]):
            for other in (v - 1, v + 1):
                inside = 0 <= other < p.pp * p.vpp
                where = device_of(other, pp=p.pp, schedule=p.schedule) if inside else self.middle
                hops += where != self.middle
        times = hops * p.num_micro_batches
        return times * self.send_bytes, times * float(self._send.seconds[0])

    def _gradients(self) -> tuple[float, float]:
        """Gradients and parameters of the units of the device in the middle."""
        num_bytes = seconds = 0.0
        for count, unit in zip(self._counts[0], self.units, strict=True):
            r = unit.replicas
            gathers = float((r.gathers_forward + r.gathers_backward + r.gathers_update)[0])
            for item, times in ((r.reduce, float(r.reduces[0])), (r.gather, gathers)):
                num_bytes += count * times * float(item.num_bytes[0])
                seconds += count * times * float(item.seconds[0])
        return num_bytes, seconds

    def scaled(self, dp: int) -> PlanFacts | None:
        """The same plan with another number of replicas, on as many GPUs as that takes.

        The global batch stays; None when it cannot be dealt to so many replicas.
        """
        p = self.plan
        each = self.scenario.job.global_batch // p.micro_batch
        if dp < 1 or each % dp or p.dp_replicate > 1:
            return None
        scenario = with_gpus(self.scenario, p.tp * p.cp * p.pp * dp)
        micro = each // dp
        plan = replace(p, dp=dp, dp_shard=dp, dp_replicate=1, num_micro_batches=micro)
        return None if check_plan(scenario, plan) else PlanFacts(scenario, plan)
