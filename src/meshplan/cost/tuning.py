"""What differs between an idle-device measurement and a training step, as numbers of a profile."""

from __future__ import annotations

from meshplan.record import record

__all__ = ["NEUTRAL", "Tuning"]


@record
class Tuning:
    """Factors that a framework and cluster profile sets; the neutral values change nothing.

    The kernel and collective tables are measured one at a time on an idle device. A training
    step runs hotter, shares memory and links, and launches from a busy host.

    Attributes:
        gemm: speed of matrix products in training over that of the table.
        low_precision: speed of products in 8 bits and below over that of the table, whose
            kernels scale by block; ``gemm`` applies too.
        attention: speed of the attention kernel over that of the table.
        ampere_attention: the attention kernel was written for Ampere (FlashAttention-2 and before)
            and knows nothing of the matrix units of later devices.
        current_scaling: the scale of a tensor in FP8 is that of its own maximum, which a pass
            over it finds first.
        block_scaling: each block of a tensor in FP8 has a scale of its own, from its own maximum.
        fused_softmax: where scores are stored, a kernel does scale, mask and softmax at once.
        softmax_bytes_forward: what PyTorch's operators move for each score otherwise [bytes].
        softmax_bytes_backward: the same backward [bytes].
        fused_loss: the loss is one kernel that leaves the gradient of the logits in their place.
        fused_dropout: the kernel that adds a branch to the residual stream drops out too.
        memory_bound: speed of memory-bound kernels over that of the table.
        launch_s: host time per kernel [s]; a pass with its traffic takes at least that long for
            each of its kernels. 0 with CUDA graphs.
        graph_attention: a CUDA graph launches the mixers of a block with norms and residuals.
        graph_router: a CUDA graph launches the router and the shared experts.
        fusion: memory traffic of element-wise chains over that of the fused operators listed in
            ``cost.operators`` (1 fused by the framework or a compiler, 2 to 3 in eager mode).
        scale_up: bandwidth reached inside a node over that of the table.
        scale_out: bandwidth reached between nodes over that of the table.
        latency: latency of collectives over that of the table.
        expert_imbalance: tokens of the busiest expert-parallel device over the mean.
        gradient_bytes: width of reduced gradients [bytes per parameter].
        all_reduce_bytes: the same without ZeRO.
        whole_gradient_bytes: memory traffic of the gradients of all local parameters once per step
            [bytes per parameter].
        reduces_whole: gradients are all-reduced even where each replica updates its own share.
        fp8_weight_bytes: width in which replicas gather the weights of blocks of fp8 jobs [bytes
            per parameter].
        quantised_gathers: tensor-parallel gathers carry the few bits that the products read.
        deduplicated_dispatch: a token travels once to each node and device that holds experts of
            its choice (DeepEP, HybridEP), not once per expert.
    """

    gemm: float = 1.0
    low_precision: float = 1.0
    attention: float = 1.0
    ampere_attention: bool = False
    current_scaling: bool = False
    block_scaling: bool = False
    fused_softmax: bool = True
    softmax_bytes_forward: float = 0.0
    softmax_bytes_backward: float = 0.0
    fused_loss: bool = False
    fused_dropout: bool = True
    memory_bound: float = 1.0
    launch_s: float = 0.0
    graph_attention: bool = False
    graph_router: bool = False
    fusion: float = 1.0
    scale_up: float = 1.0
    scale_out: float = 1.0
    latency: float = 1.0
    expert_imbalance: float = 1.0
    gradient_bytes: float = 4.0
    all_reduce_bytes: float = 4.0
    whole_gradient_bytes: float = 4.0
    reduces_whole: bool = False
    fp8_weight_bytes: float = 2.0
    quantised_gathers: bool = False
    deduplicated_dispatch: bool = False


NEUTRAL = Tuning()
"""What the tables say, unchanged."""
