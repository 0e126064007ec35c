"""Times of the units that stages are built of: each kind of block, the embedding and the head.

All times are of one micro-batch on one device, with the traffic that shows. Stages are sums of
units, so that a grid needs each unit once, and plans that deal the same units to stages in
different ways share them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields, replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from meshplan.cost.collectives import Collective
from meshplan.cost.communication import (
    BlockCommunication,
    DataParallel,
    End,
    Network,
    Part,
    block_communication,
    data_parallel_parts,
)
from meshplan.cost.compute import LayerTime, embedding_time, head_time, layer_time, with_host
from meshplan.cost.factoring import Factored, factor
from meshplan.cost.operators.records import FIELDS as OPERATOR_FIELDS
from meshplan.cost.optimizer import FIELDS as UPDATE_FIELDS
from meshplan.cost.optimizer import optimizer_time
from meshplan.cost.overlap import (
    exposed,
    exposed_context,
    exposed_experts,
    exposed_tensor,
    visible_tensor,
)
from meshplan.cost.tuning import Tuning
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.model import Layer
from meshplan.inputs.profile import FrameworkProfile, Profile
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.placement import axis_group
from meshplan.space.plan import Plan, PlanGrid
from meshplan.units import BF16_BYTES

__all__ = ["UnitTime", "Units", "reduced_in_stage", "shared_units", "tuning_of", "unit_times"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_STAGE_FIELDS = ("vpp", "schedule", "split", "recompute_layers", "stage_layers")
"""Fields that say how units are dealt to stages, and that no unit depends on."""
UNIT_FIELDS = tuple(f.name for f in fields(Plan) if f.name not in _STAGE_FIELDS)
PASS_FIELDS = (*OPERATOR_FIELDS, "recompute")
"""Fields that say what the passes of a unit take, whatever its replicas do."""


def tuning_of(profile: Profile, cluster: Cluster) -> Tuning:
    """Join the factors of a framework and of a cluster with the pace of its hosts."""
    framework, factors = profile.framework, profile.cluster
    return Tuning(
        gemm=framework.gemm * factors.gemm,
        low_precision=framework.low_precision * factors.low_precision,
        attention=framework.attention * factors.attention,
        ampere_attention=framework.ampere_attention,
        current_scaling=framework.current_scaling,
        block_scaling=framework.block_scaling,
        fused_softmax=framework.fused_softmax,
        softmax_bytes_forward=framework.softmax_bytes_forward,
        softmax_bytes_backward=framework.softmax_bytes_backward,
        fused_loss=framework.fused_loss,
        fused_dropout=framework.fused_dropout,
        memory_bound=framework.memory_bound * factors.memory_bound,
        launch_s=framework.launch_s * factors.launch * cluster.host_time_factor,
        graph_attention=framework.graph_attention,
        graph_router=framework.graph_router,
        fusion=framework.fusion,
        scale_up=factors.scale_up,
        scale_out=factors.scale_out,
        latency=factors.latency,
        expert_imbalance=framework.expert_imbalance,
        gradient_bytes=framework.gradient_bytes,
        all_reduce_bytes=framework.all_reduce_bytes,
        whole_gradient_bytes=framework.whole_gradient_bytes,
        reduces_whole=framework.reduces_whole,
        fp8_weight_bytes=framework.fp8_weight_bytes,
        quantised_gathers=framework.quantised_gathers,
        deduplicated_dispatch=framework.deduplicated_dispatch,
    )


@record
class UnitTime:
    """One unit for one micro-batch; arrays ``(num_plans,)`` in seconds, traffic as exposed.

    Attributes:
        forward_s: computation forward.
        input_s: computation of the input gradients.
        weight_s: computation of the weight gradients.
        recompute_s: computation done again, where the recompute mode applies.
        tp_s: tensor-parallel traffic, forward and backward.
        tp_forward_s: its forward part.
        tp_recompute_s: what recompute repeats of it.
        cp_s: context-parallel traffic, forward and backward.
        cp_forward_s: its forward part.
        cp_recompute_s: what recompute repeats of it.
        ep_s: expert-parallel traffic, forward and backward.
        ep_forward_s: its forward part.
        ep_recompute_s: what recompute repeats of it.
        shard_s: gathers and reductions of every micro-batch (ZeRO-2 and 3).
        shard_forward_s: its forward part.
        replicas: traffic of its gradients and parameters between replicas.
        optimizer_s: the optimizer step on its parameters, once per step.
    """

    forward_s: FloatArray
    input_s: FloatArray
    weight_s: FloatArray
    recompute_s: FloatArray
    tp_s: FloatArray
    tp_forward_s: FloatArray
    tp_recompute_s: FloatArray
    cp_s: FloatArray
    cp_forward_s: FloatArray
    cp_recompute_s: FloatArray
    ep_s: FloatArray
    ep_forward_s: FloatArray
    ep_recompute_s: FloatArray
    shard_s: FloatArray
    shard_forward_s: FloatArray
    replicas: DataParallel
    optimizer_s: FloatArray

    @property
    def ahead_s(self) -> FloatArray:
        """The whole forward pass [s]."""
        traffic = self.tp_forward_s + self.cp_forward_s + self.ep_forward_s
        return self.forward_s + traffic + self.shard_forward_s

    @property
    def back_s(self) -> FloatArray:
        """The whole backward pass towards the inputs, without recompute [s]."""
        traffic = self.tp_s - self.tp_forward_s + self.cp_s - self.cp_forward_s
        traffic = traffic + self.ep_s - self.ep_forward_s
        return self.input_s + traffic + self.shard_s - self.shard_forward_s

    @property
    def again_s(self) -> FloatArray:
        """All that recompute repeats [s]."""
        traffic = self.tp_recompute_s + self.cp_recompute_s + self.ep_recompute_s
        return self.recompute_s + traffic


_OfUnit = Callable[[UnitTime], FloatArray]
_OF_REPLICAS = ("shard_s", "shard_forward_s", "replicas", "optimizer_s")
_PASS_TIMES = tuple(f.name for f in fields(UnitTime) if f.name not in _OF_REPLICAS)


@record
class Units:
    """The units of a grid, once for all plans that differ in their stages alone.

    Attributes:
        distinct: one entry per unit, arrays ``(num_combinations,)``.
        factored: the combinations of the other fields, and where each plan finds its own.
        _known: what was worked out of the distinct ones, by name; shared by all parts of a grid.
        _spread: the same for each plan.
    """

    distinct: tuple[UnitTime, ...]
    factored: Factored
    _known: dict[str, tuple[FloatArray, ...]] = field(default_factory=dict)
    _spread: dict[str, tuple[FloatArray, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, units: tuple[UnitTime, ...], grid: PlanGrid) -> Units:
        """Units that were worked out plan by plan."""
        return cls(distinct=units, factored=Factored(grid=grid, inverse=None))

    def of_distinct(self, name: str, value: _OfUnit | None = None) -> tuple[FloatArray, ...]:
        """One of the times of every unit, ``(num_combinations,)`` each; see :meth:`values`."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = tuple(map(value or attrgetter(name), self.distinct))
        return found

    def values(self, name: str, value: _OfUnit | None = None) -> tuple[FloatArray, ...]:
        """One of the times of every unit, ``(num_plans,)`` each.

        Args:
            name: which of them, or how to call what follows from them.
            value: how that follows; it is worked out once under its name.
        """
        found = self._spread.get(name)
        if found is None:
            distinct = self.of_distinct(name, value)
            found = self._spread[name] = tuple(map(self.factored.expand, distinct))
        return found

    def take(self, index: npt.NDArray[np.intp] | slice) -> Units:
        """The units of some of the plans."""
        places = self.factored.places[index]
        grid = self.factored.grid
        factored = Factored(grid=grid, inverse=places)
        return Units(distinct=self.distinct, factored=factored, _known=self._known)


def shared_units(scenario: Scenario, grid: PlanGrid, profile: Profile) -> Units:
    """Time the units of a grid; see :func:`unit_times`."""
    factored = factor(grid, UNIT_FIELDS)
    return Units(distinct=unit_times(scenario, factored.grid, profile), factored=factored)


def unit_times(scenario: Scenario, grid: PlanGrid, profile: Profile) -> tuple[UnitTime, ...]:
    """Time every kind of block, then the embedding, then the head."""
    tuning = tuning_of(profile, scenario.cluster)
    # what a pass takes depends on fewer fields than what its replicas do, and so does the update
    passes, updates = factor(grid, PASS_FIELDS), factor(grid, UPDATE_FIELDS)
    network = Network(cluster=scenario.cluster, tuning=tuning)
    streams = _streams(scenario, passes.grid, network)
    parts: tuple[Part, ...] = (*scenario.model.layer_kinds, *End)
    replicated = data_parallel_parts(scenario, parts, grid, network=network)
    units = []
    for part, replicas in zip(parts, replicated, strict=True):
        if isinstance(part, End):
            own = _end(scenario, passes.grid, tuning, part, streams)
        else:
            own = _block(scenario, passes.grid, profile, part)
        times = {name: passes.expand(seconds) for name, seconds in own.times.items()}
        backward_s = passes.expand(own.backward_s)
        shard = _shards(profile.framework, times["forward_s"], backward_s, replicas, grid)
        update = optimizer_time(scenario, part, updates.grid, tuning=tuning)
        units.append(
            UnitTime(
                **times,
                shard_s=shard[0] + shard[1],
                shard_forward_s=shard[0],
                replicas=replicas,
                optimizer_s=updates.expand(update),
            )
        )
    return tuple(units)


@record(kw_only=False)
class _Passes:
    """What the passes of a unit take, whatever its replicas send each other.

    Attributes:
        times: fields of :class:`UnitTime`, ``(num_plans,)`` each [s].
        backward_s: computation of the backward pass with what it repeats, which the traffic of
            replicas can hide behind [s].
    """

    times: dict[str, FloatArray]
    backward_s: FloatArray


def _block(scenario: Scenario, grid: PlanGrid, profile: Profile, layer: Layer) -> _Passes:
    """One kind of block."""
    tuning, framework = tuning_of(profile, scenario.cluster), profile.framework
    time = layer_time(scenario, layer, grid, tuning=tuning)
    traffic = block_communication(scenario, layer, grid, tuning=tuning)
    visible = visible_tensor(framework, grid, scenario.cluster)
    tp = exposed_tensor(framework, time, traffic, visible=visible)
    cp = exposed_context(
        framework, grid, time, traffic.cp_forward.seconds, traffic.cp_backward.seconds
    )
    ep_forward, ep_backward = exposed_experts(framework, time, traffic)
    tp_again = visible * traffic.tp_recompute.seconds
    cp_again = np.where(traffic.cp_recompute.seconds > 0, cp[0], 0.0)
    ep_again = traffic.ep_recompute.seconds
    time = with_host(
        _with_calls(time, traffic, launch_s=tuning.launch_s),
        forward_s=tp[0] + cp[0] + ep_forward,
        backward_s=tp[1] + cp[1] + ep_backward,
        recompute_s=tp_again + cp_again + ep_again,
    )
    times = {
        "forward_s": time.forward_s,
        "input_s": time.input_grad_s,
        "weight_s": time.weight_grad_s,
        "recompute_s": time.recompute_s,
        "tp_s": tp[0] + tp[1],
        "tp_forward_s": tp[0],
        "tp_recompute_s": tp_again,
        "cp_s": cp[0] + cp[1],
        "cp_forward_s": cp[0],
        "cp_recompute_s": cp_again,
        "ep_s": ep_forward + ep_backward,
        "ep_forward_s": ep_forward,
        "ep_recompute_s": ep_again,
    }
    return _Passes(times, time.backward_s + time.recompute_s)


def _with_calls(time: LayerTime, traffic: BlockCommunication, *, launch_s: float) -> LayerTime:
    """Let the host launch collectives too, each as one more kernel."""
    forward = traffic.tp_forward.num_calls + traffic.cp_forward.num_calls
    backward = traffic.tp_backward.num_calls + traffic.cp_backward.num_calls
    again = traffic.tp_recompute.num_calls + traffic.cp_recompute.num_calls
    return replace(
        time,
        host_forward_s=time.host_forward_s + launch_s * (forward + traffic.ep_forward.num_calls),
        host_backward_s=time.host_backward_s
        + launch_s * (backward + traffic.ep_backward.num_calls),
        host_recompute_s=time.host_recompute_s
        + launch_s * (again + traffic.ep_recompute.num_calls),
    )


def _shards(
    framework: FrameworkProfile,
    forward_s: FloatArray,
    backward_s: FloatArray,
    replicas: DataParallel,
    grid: PlanGrid,
) -> tuple[FloatArray, FloatArray]:
    """Exposed traffic of ZeRO-2 and 3 that repeats with every micro-batch."""
    micro = grid.num_micro_batches.astype(np.float64)
    every = reduced_in_stage(replicas, grid)
    gather = replicas.gather.seconds / framework.shard_speed
    reduce = replicas.reduce.seconds / framework.shard_speed
    forward = np.where(replicas.gathers_forward >= micro, gather, 0.0)
    backward = np.where(replicas.gathers_backward >= micro, gather, 0.0)
    backward = backward + np.where(every, reduce, 0.0)
    share, contention = framework.overlap_shards, framework.contention
    return (
        exposed(forward, forward_s, share=share, contention=contention),
        exposed(backward, backward_s, share=share, contention=contention),
    )


def reduced_in_stage(replicas: DataParallel, grid: PlanGrid) -> BoolArray:
    """Whether gradients are reduced in the backward pass of every micro-batch.

    Where they are sharded (ZeRO-2 and 3) the one pass of a single micro-batch is such a pass too:
    it hides what it gathers and what it reduces together.
    """
    micro = grid.num_micro_batches.astype(np.float64)
    return replicas.reduces >= np.where(grid.zero >= 2, micro, np.maximum(micro, 2.0))


def _streams(scenario: Scenario, grid: PlanGrid, network: Network) -> tuple[FloatArray, FloatArray]:
    """Gather and all-reduce of the tokens of a micro-batch in the tensor-parallel groups [s]."""
    few = factor(grid, ("tp", "cp", "micro_batch"))
    group = axis_group(few.grid, "tp")
    tokens = few.grid.micro_batch * (scenario.job.seq_len / few.grid.cp)
    stream = BF16_BYTES * tokens * float(scenario.model.hidden)
    gather = network.collective(Collective.ALL_GATHER, group, stream)
    reduce = network.collective(Collective.ALL_REDUCE, group, stream)
    return few.expand(gather.seconds), few.expand(reduce.seconds)


def _end(
    scenario: Scenario,
    grid: PlanGrid,
    tuning: Tuning,
    end: End,
    streams: tuple[FloatArray, FloatArray],
) -> _Passes:
    """The embedding, or the head with the loss.

    Sequence parallelism scatters what the embedding sums over the vocabulary and gathers what
    the head reads, and the other way round backward; without it both are all-reduces. Each MTP
    block passes through the head once more.
    """
    timed = embedding_time if end is End.EMBEDDING else head_time
    time = timed(scenario, grid, tuning=tuning)
    (one, both), split = streams, grid.sp.astype(bool)
    if end is End.EMBEDDING:
        forward, backward = np.where(split, one, both), np.where(split, one, 0.0)
    else:
        passes = 1.0 + len(scenario.model.mtp_layers)
        forward = passes * np.where(split, one, 0.0)
        backward = passes * np.where(split, 2.0 * one, both)
    times = {
        "forward_s": time.forward_s,
        "input_s": time.input_grad_s,
        "weight_s": time.weight_grad_s,
        "tp_s": forward + backward,
        "tp_forward_s": forward,
    }
    zero = np.zeros(len(grid))
    return _Passes(dict.fromkeys(_PASS_TIMES, zero) | times, time.backward_s + time.recompute_s)
