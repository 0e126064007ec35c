"""Traffic between replicas and between stages: gradients, parameters and pipeline sends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.cost.behaviour import reduces_once
from meshplan.cost.collectives import Collective
from meshplan.cost.communication.parts import (
    End,
    Part,
    copies_embedding,
    parameters_of,
    trained_parameters_of,
)
from meshplan.cost.communication.records import Network, Traffic
from meshplan.cost.factoring import factor
from meshplan.cost.surfaces import constant, per_framework
from meshplan.cost.tuning import NEUTRAL, Tuning
from meshplan.inputs.model import Layer
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.placement import AxisGroup, axis_group
from meshplan.space.plan import Framework, PlanGrid
from meshplan.units import BF16_BYTES

__all__ = [
    "REPLICA_FIELDS",
    "DataParallel",
    "data_parallel",
    "data_parallel_parts",
    "pipeline_send",
    "tied_embedding_reduce",
]

FloatArray = npt.NDArray[np.float64]
Groups = tuple[AxisGroup, AxisGroup, AxisGroup]


@record
class DataParallel:
    """Traffic of one block's (or end's) gradients and parameters between replicas.

    Attributes:
        reduce: one reduction of its gradients.
        gather: one gather of its parameters.
        reduces: reductions per step, ``(num_plans,)``.
        gathers_forward: gathers per step before a forward, ``(num_plans,)``.
        gathers_backward: gathers per step before a backward, ``(num_plans,)``.
        gathers_update: gathers per step after the optimizer (ZeRO-1 and 2), ``(num_plans,)``.
    """

    reduce: Traffic
    gather: Traffic
    reduces: FloatArray
    gathers_forward: FloatArray
    gathers_backward: FloatArray
    gathers_update: FloatArray


def data_parallel(
    scenario: Scenario, part: Part, grid: PlanGrid, *, tuning: Tuning = NEUTRAL
) -> DataParallel:
    """Traffic of gradients and parameters of one block or end.

    Equation: DDP all-reduces ``P`` gradients; ZeRO-1 and 2 reduce-scatter them and gather the
    updated parameters; ZeRO-3 gathers parameters before each forward and backward and
    reduce-scatters gradients after it; HSDP adds an all-reduce of the shard over its replicas.

    Args:
        scenario: model, cluster and job.
        part: a block, or an end of the model.
        grid: plans.
        tuning: factors of the profile.
    """
    network = Network(cluster=scenario.cluster, tuning=tuning)
    return data_parallel_parts(scenario, (part,), grid, network=network)[0]


REPLICA_FIELDS = (
    "framework",
    "tp",
    "cp",
    "pp",
    "ep",
    "etp",
    "dp",
    "dp_shard",
    "dp_replicate",
    "zero",
)
"""Plan fields that traffic between replicas depends on."""


def data_parallel_parts(
    scenario: Scenario, parts: Sequence[Part], grid: PlanGrid, *, network: Network
) -> tuple[DataParallel, ...]:
    """Traffic of several parts of a model, each as :func:`data_parallel` has it.

    The collectives of all parts are timed together, which takes little longer than those of one.

    Args:
        scenario: model, cluster and job.
        parts: blocks and ends of the model.
        grid: plans.
        network: what times the collectives.
    """
    factored = factor(grid, REPLICA_FIELDS)
    few = factored.grid
    reduce, gather = _traffic(scenario, parts, few, network)
    reduces, forward, backward, update = _counts(scenario, grid)
    return tuple(
        DataParallel(
            reduce=reduce.at(own).expand(factored),
            gather=gather.at(own).expand(factored),
            reduces=reduces,
            gathers_forward=forward,
            gathers_backward=backward,
            gathers_update=update,
        )
        for own in (slice(p * len(few), (p + 1) * len(few)) for p in range(len(parts)))
    )


def _traffic(
    scenario: Scenario, parts: Sequence[Part], few: PlanGrid, network: Network
) -> tuple[Traffic, Traffic]:
    """One reduction and one gather of each part, ``(num_parts * num_plans,)``, part after part."""
    grid = few.take(np.tile(np.arange(len(few)), len(parts)))
    num_blocks = np.ceil(scenario.model.num_layers / few.pp)
    one = np.ones(len(few))
    blocks = np.concatenate([num_blocks if isinstance(part, Layer) else one for part in parts])
    # ends and norms stay in 16 bits, and so does what mxfp8 gathers
    narrow = network.tuning.fp8_weight_bytes if scenario.job.precision == "fp8" else BF16_BYTES
    widths = np.repeat(
        [narrow if isinstance(part, Layer) else BF16_BYTES for part in parts], len(few)
    )
    held = zip(*(parameters_of(scenario, part, few) for part in parts), strict=True)
    trained = zip(*(trained_parameters_of(scenario, part, few) for part in parts), strict=True)
    reduce, gather = Traffic.none(len(grid)), Traffic.none(len(grid))
    for wholes, counts, group in zip(
        held, trained, (_dense_groups(grid), _expert_groups(grid)), strict=True
    ):
        whole, count = np.concatenate(wholes), np.concatenate(counts)
        reduce = reduce + _reduction(network, grid, count, group, blocks)
        merged = _merged(grid, whole, blocks, group[2])
        collected = network.collective(
            Collective.ALL_GATHER, group[0], widths * whole, merged=merged
        )
        # of a sharded optimizer's weights only those that are trained come back changed
        share = np.where(grid.zero == 3, 1.0, count / np.maximum(whole, 1.0))
        gather = gather + collected.times(np.where(grid.zero > 0, share, 0.0))
    return reduce, gather


def _reduction(
    network: Network,
    grid: PlanGrid,
    count: FloatArray,
    groups: Groups,
    blocks: FloatArray,
) -> Traffic:
    """One reduction of ``count`` gradients: all-reduce, or reduce-scatter and its replicas."""
    shard, replicate, everyone = groups
    merged = _merged(grid, count, blocks, everyone)
    tuning = network.tuning
    whole = np.where(grid.zero > 0, tuning.gradient_bytes, tuning.all_reduce_bytes) * count
    all_reduce = network.collective(Collective.ALL_REDUCE, everyone, whole, merged=merged)
    gradients = tuning.gradient_bytes * count
    scatter = network.collective(Collective.REDUCE_SCATTER, shard, gradients, merged=merged)
    part = gradients / shard.size.astype(np.float64)
    across = network.collective(Collective.ALL_REDUCE, replicate, part, merged=merged)
    sharded, in_shards = scatter + across, (grid.zero > 0) & (not tuning.reduces_whole)
    return Traffic(
        num_bytes=np.where(in_shards, sharded.num_bytes, all_reduce.num_bytes),
        seconds=np.where(in_shards, sharded.seconds, all_reduce.seconds),
        num_calls=np.where(in_shards, sharded.num_calls, all_reduce.num_calls),
    )


def _merged(
    grid: PlanGrid, count: FloatArray, blocks: FloatArray, everyone: AxisGroup
) -> FloatArray:
    """How many blocks share one message: as many as fill a bucket, one under ZeRO-3.

    Blocks larger than a bucket are counted as one message, which changes nothing where the
    bandwidth is reached.
    """
    bucket = per_framework("bucket_parameters", grid.framework)
    growing = constant("bucket_parameters_per_rank") * everyone.size
    bucket = np.where(grid.framework == Framework.MEGATRON, np.maximum(bucket, growing), bucket)
    filled = np.clip(bucket / np.maximum(count, 1.0), 1.0, np.maximum(blocks, 1.0))
    return np.where(grid.zero == 3, 1.0, filled)


def _dense_groups(grid: PlanGrid) -> Groups:
    """Shard group, its replicas, and both together: all devices with the same parameters."""
    return (
        axis_group(grid, "dp_shard_cp"),
        axis_group(grid, "dp_replicate"),
        axis_group(grid, "dp_cp"),
    )


def _expert_groups(grid: PlanGrid) -> Groups:
    """The same for the parameters of the routed experts."""
    everyone = axis_group(grid, "edp")
    shard = axis_group(grid, "edp_shard")
    size = np.maximum(shard.size, 1)
    return (
        AxisGroup(size=size, stride=shard.stride),
        AxisGroup(size=np.maximum(everyone.size // size, 1), stride=shard.stride * size),
        everyone,
    )


def _counts(
    scenario: Scenario, grid: PlanGrid
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Reductions and gathers per step, as the frameworks do them.

    Whole gradients are reduced once per step, sharded ones (from ZeRO-2 on) after every
    micro-batch [1]_. Accelerate reduces those after the last alone [2]_, and so do torch's
    pipelines, which keep parameters gathered between micro-batches too. torch's FSDP gathers for
    every micro-batch, before the backward pass too unless it keeps parameters gathered (ZeRO-2).
    nanotron without ZeRO reduces after every micro-batch of a pipeline.

    References:
        .. [1] DeepSpeed ``runtime/zero/stage_1_and_2.py``; Megatron-FSDP ``megatron_fsdp.py``,
           ``grad_reduce_every_bprop``; torchtitan ``trainer.py``.
        .. [2] accelerate, ``accelerator.py: no_sync``; torch ``fully_shard``,
           ``FSDPModule.set_requires_gradient_sync``.
    """
    micro = grid.num_micro_batches.astype(np.float64)
    one = np.ones(len(grid))
    zero3 = grid.zero == 3
    pipeline = grid.pp > 1
    nanotron = grid.framework == Framework.NANOTRON
    native = grid.is_torch_native
    keeps = native & (grid.zero == 2) & ~pipeline
    every_time = (grid.zero >= 2) & ~reduces_once(scenario, grid)
    every_time = every_time | (nanotron & pipeline & (grid.zero == 0))
    reduces = np.where(every_time, micro, one)
    again = np.where(zero3 | keeps, np.where(native & pipeline, one, micro), 0.0)
    backward = np.where(zero3 & ~(native & pipeline), micro, 0.0)
    update = np.where((grid.zero > 0) & ~zero3 & ~keeps, one, 0.0)
    return reduces, again, backward, update


def pipeline_send(scenario: Scenario, grid: PlanGrid, *, tuning: Tuning = NEUTRAL) -> Traffic:
    """One send of activations, or of their gradients, to the next stage, per micro-batch.

    Equation: ``V = 2 t h`` bytes, divided by ``tp`` with sequence parallelism. Without it each
    device of a tensor-parallel group holds all of ``V``: Megatron-LM and DeepSpeed still send a
    part each and gather it inside the group on arrival [1]_.

    References:
        .. [1] Narayanan et al., SC21, section 4.1 (scatter/gather); DeepSpeed
           runtime/pipe/engine.py, ``is_pipe_partitioned``.
    """
    factored = factor(grid, ("framework", "tp", "sp", "cp", "dp", "pp", "micro_batch"))
    small = factored.grid
    network = Network(cluster=scenario.cluster, tuning=tuning)
    tokens = small.micro_batch * (scenario.job.seq_len / small.cp)
    whole = BF16_BYTES * tokens * float(scenario.model.hidden)
    sp = small.sp.astype(bool)
    parted = (small.framework == Framework.MEGATRON) | (small.framework == Framework.DEEPSPEED)
    message = whole / np.where(sp | parted, small.tp, 1)
    send = network.send(axis_group(small, "pp"), message)
    gather = network.collective(Collective.ALL_GATHER, axis_group(small, "tp"), whole)
    again = np.where(parted & ~sp & (small.pp > 1), 1.0, 0.0)
    return (send + gather.times(again)).expand(factored)


def tied_embedding_reduce(
    scenario: Scenario, grid: PlanGrid, *, tuning: Tuning = NEUTRAL
) -> Traffic:
    """The all-reduce of the embedding's gradient between first and last stage, per step.

    There is one where the head is the embedding, and where MTP blocks read a copy of it.
    """
    model = scenario.model
    if not model.tied_embeddings and not model.mtp_layers:
        return Traffic.none(len(grid))
    factored = factor(grid, ("framework", "tp", "cp", "ep", "etp", "dp", "pp"))
    small = factored.grid
    network = Network(cluster=scenario.cluster, tuning=tuning)
    pipeline = axis_group(small, "pp")
    # the ends are as far apart as the pipeline is long; half of it crosses the same levels and
    # keeps the pair inside the cluster
    pair = AxisGroup(
        size=np.minimum(pipeline.size, 2),
        stride=pipeline.stride * np.maximum(pipeline.size // 2, 1),
    )
    dense, _ = trained_parameters_of(scenario, End.EMBEDDING, small)
    traffic = network.collective(Collective.ALL_REDUCE, pair, tuning.gradient_bytes * dense)
    apart = model.tied_embeddings | copies_embedding(scenario, small)
    return traffic.times(np.where(apart, 1.0, 0.0)).expand(factored)
