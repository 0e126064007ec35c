"""What differs between frameworks, and between clusters, beyond what tables and plans say.

A framework profile says what a framework overlaps and what its host code costs; a cluster profile
says how far a training step stays behind kernels and collectives that were measured one at a
time. Each has at most eight fitted numbers; the others have a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from meshplan.provenance import Sourced
from meshplan.record import record

__all__ = [
    "MOST_WEIGHT",
    "SIZES",
    "Band",
    "ClusterProfile",
    "FrameworkProfile",
    "HeldRun",
    "MeasuredRun",
    "Profile",
    "Residuals",
]

SIZES = ("tp", "pp", "vpp", "cp", "ep", "tokens", "hidden")
"""What layouts are compared by in doublings: the degrees, the tokens of a micro-batch on one device
and the width of the model, which shape its products."""
MOST_WEIGHT = 10.0
"""Beyond, a run would have taken e^10 times what is predicted."""


@record
class FrameworkProfile:
    """Behaviour of one framework, or of one variant of it.

    Attributes:
        name: key in the presets, such as ``megatron`` or ``megatron-2021``.
        framework: name of the :class:`~meshplan.space.plan.Framework` that it describes.
        overlap_gradients: share of the last backward pass behind which gradients are reduced.
        overlap_all_reduce: the same without ZeRO, where every replica keeps all gradients.
        overlap_parameters: share of the first forward pass behind which updated parameters are
            gathered (ZeRO-1 and 2).
        overlap_shards: share of computation behind which ZeRO-3 gathers and reduces.
        overlap_tensor: share of the tensor-parallel traffic that is hidden behind the products
            that need it (pipelined user buffers, asynchronous tensor parallelism).
        overlap_weight_gradient: share of the weight gradients behind which the backward
            tensor-parallel traffic runs.
        overlap_context: share of the attention behind which a ring passes keys and values.
        overlap_experts: share of the computation of another micro-batch behind which the
            expert-parallel traffic runs.
        blocking_sends: without interleaving a stage waits for its sends.
        gradient_bytes: width of reduced gradients [bytes per parameter].
        all_reduce_bytes: the same without ZeRO, where every replica keeps all gradients.
        whole_gradient_bytes: memory traffic of the gradients of all local parameters, whether the
            optimizer is sharded or not, once per step [bytes per parameter].
        reduces_whole: gradients are all-reduced even where each replica updates its own share
            (ZeRO-1).
        fp8_weight_bytes: width in which replicas gather the weights of blocks of fp8 jobs [bytes
            per parameter].
        quantised_gathers: tensor-parallel gathers carry the few bits that the products read.
        deduplicated_dispatch: a token travels once to each device or node that holds experts of
            its choice, not once per expert (DeepEP, HybridEP).
        graph_attention: a CUDA graph launches the mixers of a block with norms and residuals.
        graph_router: a CUDA graph launches the router and the shared experts.
        current_scaling: the scale of a tensor in FP8 is that of its own maximum, which a pass
            over it finds first.
        block_scaling: each block of a tensor in FP8 has a scale of its own.
        fused_softmax: where scores are stored, a kernel does scale, mask and softmax at once.
        softmax_bytes_forward: what PyTorch's operators move for each score otherwise [bytes].
        softmax_bytes_backward: the same backward [bytes].
        fused_loss: the loss is one kernel over 16-bit logits that leaves their gradient in place
            (Transformer Engine), instead of what the framework does by itself.
        fused_dropout: the kernel that adds a branch to the residual stream drops out too.
        optimizer_passes: passes over the optimizer's memory traffic (1 when fused).
        gemm: speed of matrix products over that of the cluster profile.
        low_precision: speed of products in 8 bits and below over that of the kernel table, whose
            kernels scale by block.
        attention: speed of attention over that of the cluster profile.
        ampere_attention: the attention kernel is FlashAttention-2 or older, on newer devices too.
        memory_bound: speed of memory-bound kernels over that of the cluster profile.
        fusion: memory traffic of element-wise chains over that of fused operators.
        launch_s: host time per kernel [s].
        step_s: host time per step that nothing hides [s].
        micro_batch_s: host time per micro-batch that nothing hides [s].
        update_hop_s: where updated parameters are broadcast part by part instead of gathered
            (ZeRO-1 and 2), the time of each part for each node on its way [s]; else 0.
        shard_speed: bandwidth that gathers and reductions of ZeRO-3 reach over that of one large
            message.
        contention: share by which computation slows while communication runs behind it.
        contention_experts: the same for expert-parallel traffic.
        expert_imbalance: tokens of the busiest expert-parallel device over the mean.
        sources: attribute name to where it comes from.
    """

    name: str
    framework: str
    overlap_gradients: float
    overlap_all_reduce: float
    overlap_parameters: float
    overlap_shards: float
    overlap_tensor: float
    overlap_weight_gradient: float
    overlap_context: float
    overlap_experts: float
    blocking_sends: bool
    gradient_bytes: float
    all_reduce_bytes: float
    whole_gradient_bytes: float
    reduces_whole: bool
    fp8_weight_bytes: float
    quantised_gathers: bool
    deduplicated_dispatch: bool
    ampere_attention: bool
    graph_attention: bool
    graph_router: bool
    current_scaling: bool
    block_scaling: bool
    fused_softmax: bool
    softmax_bytes_forward: float
    softmax_bytes_backward: float
    fused_loss: bool
    fused_dropout: bool
    optimizer_passes: float
    gemm: float
    low_precision: float
    attention: float
    memory_bound: float
    fusion: float
    launch_s: float
    step_s: float
    micro_batch_s: float
    update_hop_s: float
    shard_speed: float
    contention: float
    contention_experts: float
    expert_imbalance: float
    sources: Mapping[str, Sourced] = field(default_factory=dict, hash=False)


@record
class ClusterProfile:
    """How one cluster trains, against its devices and links measured alone.

    Attributes:
        name: key in the presets, such as ``selene``.
        gemm: speed of matrix products in training over that of the kernel table.
        low_precision: speed of products in 8 bits and below over that of the table, whose kernels
            scale by block; ``gemm`` applies too.
        attention: the same for attention.
        memory_bound: the same for memory-bound kernels.
        scale_up: bandwidth reached inside a scale-up domain over that of the table.
        scale_out: bandwidth reached between nodes over that of the table.
        latency: latency of collectives over that of the table.
        straggler: share by which a step grows with each doubling of the nodes.
        launch: host time over that of the framework profile.
        wait_s: what each micro-batch waits where it passes from node to node of a pipeline, times
            the share ``1 - 1/p`` of the stages that pass it on [s]; runs of a cluster tell it.
        stall_s: what a node that holds up a pipeline costs each micro-batch, times the share
            ``1 - 1/p`` of the stages that pass it on; part of the upper end of the band [s].
        stall_share: share of the nodes that do so.
        sources: attribute name to where it comes from.
    """

    name: str
    gemm: float
    low_precision: float
    attention: float
    memory_bound: float
    scale_up: float
    scale_out: float
    latency: float
    straggler: float
    launch: float
    wait_s: float
    stall_s: float
    stall_share: float
    sources: Mapping[str, Sourced] = field(default_factory=dict, hash=False)


@record
class Band:
    """Width of the 80 % band of a predicted step time, as a share of each part of the step.

    The band is ``base`` of the whole step and more where the step is spent on what is harder to
    predict: the upper half width is ``base * step + sum(part share * part)``, and the lower end
    is as many times below the step as the upper one is above it.

    Attributes:
        base: share of the whole step.
        communication: extra share of exposed communication.
        bubble: extra share of the bubble.
        host: extra share of host time and launch overhead.
        memory_share: upper half width of predicted peak memory, as a share of it.
        memory_fixed_bytes: what is added to that whatever the size [bytes].
    """

    base: float
    communication: float
    bubble: float
    host: float
    memory_share: float
    memory_fixed_bytes: float


@record
class MeasuredRun:
    """A run of this cluster that plans like it follow.

    Attributes:
        framework: name of the framework that it ran.
        sizes: values of :data:`SIZES`.
        sp: Megatron sequence parallelism.
        recompute: what was recomputed, such as ``mlp+norm``.
        zero: what data parallelism sharded.
        weight: by how much it counts, of the logarithm of predicted over measured.
    """

    framework: str
    sizes: tuple[float, ...]
    sp: bool
    recompute: str
    zero: int
    weight: float


@record
class Residuals:
    """What measured runs took beyond what the numbers of a profile say of them.

    Attributes:
        reach: distance over which a run counts less by ``e`` [doublings].
        runs: the runs.
    """

    reach: float
    runs: tuple[MeasuredRun, ...]


@record
class HeldRun:
    """A run that a profile was fitted to, with what a further fit needs to know of it.

    Attributes:
        name: what its table or log calls it.
        job: digest of its model, devices, job and layout.
        step_time_s: what was measured [s].
        layout: what other plans are compared with, of no weight here.
        error: logarithm of predicted over measured with the numbers of the profile, wait aside.
        slopes: how that changes along the logarithm of each number that runs move.
        per_wait: what one second of wait adds, over the predicted step [1/s].
        parts_share: half width of the band of its traffic, bubble and host, as a share of the step.
    """

    name: str
    job: str
    step_time_s: float
    layout: MeasuredRun
    error: float
    slopes: tuple[float, ...]
    per_wait: float
    parts_share: float


@record
class Profile:
    """What holds for one framework on one cluster.

    Attributes:
        framework: what the framework does.
        cluster: how the cluster trains.
        band: how far predictions are off.
        residuals: what runs of the cluster took beyond that; none where no run was given.
    """

    framework: FrameworkProfile
    cluster: ClusterProfile
    band: Band
    residuals: Residuals | None = None
