"""How a training framework uses memory: what it keeps, in which width, and when.

Each figure is data (``presets/framework_memory.yaml``) with its source; formulas in
``cost.memory`` read them. Widths are bytes per element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from meshplan.provenance import Sourced
from meshplan.record import record

__all__ = ["FrameworkMemory", "LowPrecision", "MemoryConstants", "OptimizerState"]


@record
class OptimizerState:
    """What an optimizer keeps per parameter.

    Attributes:
        name: one of ``Job.optimizer``.
        moment_bytes: all moments together [bytes per element of a matrix].
        vector_moment_bytes: moments of parameters that are no hidden matrix: embeddings, head,
            norms [bytes per element]. Muon keeps Adam's two moments for them.
        remainder_bytes: what a bf16 weight lacks of the 32-bit one, where that is kept in place of
            a 32-bit copy [bytes per element]; None where the copy is whole.
    """

    name: str
    moment_bytes: float
    vector_moment_bytes: float
    remainder_bytes: float | None = None


@record
class LowPrecision:
    """What a number format below 16 bits adds and saves.

    Attributes:
        name: one of ``Job.precision``.
        input_bytes: a saved input of a matrix product [bytes per element], scales included.
        weight_copy_bytes: copies of the weights in that format that live next to the 16-bit ones
            [bytes per element], both orientations and scales included.
    """

    name: str
    input_bytes: float
    weight_copy_bytes: float


@record
class FrameworkMemory:
    """Memory behaviour of one framework (or of one variant of it, such as ``megatron-2022``).

    What ends in ``_bytes`` is per parameter or per element of a tensor, ``norm_stat_bytes`` per
    token; ``workspace_bytes`` and ``communicator_bytes`` are whole.

    States:
        weight_bytes: a stored parameter.
        gathered_weight_bytes: a parameter as the matrix products see it; a separate copy when
            parameters are sharded (ZeRO-3) or stored wider.
        gradient_bytes: the buffer in which gradients of a step are accumulated.
        autograd_gradient_bytes: gradients that autograd leaves beside that buffer until the end
            of the backward pass; 0 when it adds straight into the buffer.
        replica_bucket_bytes: communication buckets that a data-parallel wrapper keeps for all
            parameters as long as there is more than one replica and it does not shard weights.
        master_bytes: 32-bit copy of the weights kept by the optimizer.
        gradients_persist: the gradient buffer exists before the first backward pass.
        shards_gradients: ZeRO-2 really shards the gradient buffer.
        shards_weights_from: ZeRO stage from which stored weights are sharded; where that is 2
            (FSDP) stage 2 keeps them gathered between forward and backward pass.
        pipeline_gradient_bytes: unsharded gradients that a pipeline accumulates until its last
            micro-batch, under ZeRO-2 and 3.
        accumulation_gradient_bytes: the same without a pipeline; 0 where the gradients of every
            micro-batch are reduced at once.
        step_gradient_bytes: 32-bit copy of the gradients made for the update, per parameter of the
            local shard.
        host_gradient_bytes: gradients that move to the host with the optimizer, per parameter; 0
            when they stay on the device.
        optimizer_temporary_bytes: temporaries of the update per parameter of the local shard.
        offload_buffer_bytes: what stays on the device per offloaded parameter.
        host_factor: host memory over the bytes that are offloaded (pinned copies).
        load_on_host: weights are sharded before they reach the device.

    Activations:
        keeps_gathered_input: with sequence parallelism the all-gathered input of a matrix
            product is saved instead of gathered again in the backward pass.
        gated_activation_elements: elements saved per element of the inner width by a gated
            feed-forward network (2 branches, their product, and in eager mode the activated
            branch).
        plain_activation_elements: the same for a network without gate.
        keeps_fused_qkv: the fused query-key-value buffer stays alive beside the rotated copies.
        norm_stat_bytes: saved statistics per token and norm (4 RMS, twice that LayerNorm).
        norm_extra_bytes: saved bytes per element of a norm beyond its input and output.
        score_bytes: saved bytes per attention score where scores are stored, without dropout.
        score_working_bytes: bytes per attention score in flight in the backward pass of one layer.
        rope_extra_bytes: saved bytes per element of the query width for an unfused rotation.
        adapters_copy_inputs: each adapter keeps a copy of its projection's input of its own, also
            where several projections read the same tensor (PEFT casts it for each).
        saves_expert_output: expert outputs are saved to weigh them by the router afterwards.
        working_hidden_copies: tensors of ``tokens x hidden`` alive inside a layer's backward
            pass, sharded by sequence parallelism.
        gathered_hidden_copies: the same, all-gathered over the tensor-parallel group.
        working_ffn_elements: gradients of the inner width alive at once, per element, gated.
        expert_imbalance: tokens of the busiest device over the mean, as an allowance.

    Loss:
        loss_forward_bytes: bytes per logit alive in the forward pass of the loss.
        loss_saved_bytes: bytes per logit between its forward and backward pass.
        loss_backward_bytes: bytes per logit alive in its backward pass.
        loss_sharded_bytes: bytes per logit alive in the forward pass when the vocabulary is
            sharded over the tensor-parallel group.
        loss_gathers_vocab: the logits of all vocabulary shards are gathered.
        vocab_multiple: the vocabulary is padded to a multiple of it times tp.

    Buffers:
        fused_norms: norms before plain attention and dense networks are part of the product behind
            them, so that recompute of norms does not reach them.
        placeholder_gradients: one 16-bit gradient per distinct shape of a weight is allocated
            beside the buffer that is accumulated into.
        head_gradient_bytes: temporary gradient of the output head, per element.
        embedding_gradient_bytes: temporary gradient of the embedding, per element.
        bucket_bytes: gradients of one unit on their way through a collective, per element, from
            the ZeRO stage on that shards gradients.
        bucket_parameters: parameters of such a unit at least (a fixed bucket), from ZeRO-1 on; 0
            when units are blocks.
        prefetched_units: gathered units (blocks) alive at once under ZeRO-3.
        gathers_modules: units are single modules (matrices), not blocks.
        ends_form_a_unit: embedding and head are one sharded unit that stays gathered from the
            start of the forward pass to the end of the backward pass, with its gradients.
        live_parameters: gathered parameters that are kept at least, if there are as many.
        keeps_units_in_pipeline: with a pipeline all units of a stage stay gathered.
        workspace_bytes: matrix-product and kernel workspaces in the allocator.
        fragmentation: memory reserved beyond what is allocated, as a fraction.
        communicator_bytes: buffers of the communication library per process group.
        user_buffers: buffers of a whole micro-batch's tokens x hidden into which the devices of a
            tensor-parallel group write for one another while a product goes on.
        gathering_user_buffers: those of them that take gathered inputs, in 8 bits in jobs in fp8.

    Order of the work:
        runs_beside_backward: the forward pass of a micro-batch runs beside the backward pass of
            another one, layer by layer.
        graphs_mixers: CUDA graphs launch the mixers of blocks, with the norms before them.
        graphs_routers: CUDA graphs launch routers, shared experts and what prepares a dispatch.
        graphs_layers: CUDA graphs launch whole blocks.
        permutes_before_exchange: what prepares a dispatch hands over a copy of a token for each
            expert of its choice; else the exchange itself copies tokens.

    Attributes:
        name: key in the presets.
        low_precision: behaviour by precision.
        sources: attribute name to where it comes from.
    """

    name: str
    weight_bytes: float
    gathered_weight_bytes: float
    gradient_bytes: float
    autograd_gradient_bytes: float
    replica_bucket_bytes: float
    master_bytes: float
    gradients_persist: bool
    shards_gradients: bool
    shards_weights_from: int
    pipeline_gradient_bytes: float
    accumulation_gradient_bytes: float
    step_gradient_bytes: float
    host_gradient_bytes: float
    optimizer_temporary_bytes: float
    offload_buffer_bytes: float
    host_factor: float
    load_on_host: bool
    keeps_gathered_input: bool
    gated_activation_elements: float
    plain_activation_elements: float
    keeps_fused_qkv: bool
    norm_stat_bytes: float
    norm_extra_bytes: float
    score_bytes: float
    score_working_bytes: float
    rope_extra_bytes: float
    adapters_copy_inputs: bool
    saves_expert_output: bool
    working_hidden_copies: float
    gathered_hidden_copies: float
    working_ffn_elements: float
    expert_imbalance: float
    loss_forward_bytes: float
    loss_saved_bytes: float
    loss_backward_bytes: float
    loss_sharded_bytes: float
    loss_gathers_vocab: bool
    vocab_multiple: int
    fused_norms: bool
    placeholder_gradients: bool
    head_gradient_bytes: float
    embedding_gradient_bytes: float
    bucket_bytes: float
    bucket_parameters: float
    prefetched_units: float
    gathers_modules: bool
    ends_form_a_unit: bool
    live_parameters: float
    keeps_units_in_pipeline: bool
    workspace_bytes: float
    fragmentation: float
    communicator_bytes: float
    user_buffers: int
    gathering_user_buffers: int
    runs_beside_backward: bool
    graphs_mixers: bool
    graphs_routers: bool
    graphs_layers: bool
    permutes_before_exchange: bool
    low_precision: Mapping[str, LowPrecision] = field(default_factory=dict, hash=False)
    sources: Mapping[str, Sourced] = field(default_factory=dict, hash=False)


@record
class MemoryConstants:
    """What holds for every framework.

    Attributes:
        optimizers: state by optimizer.
        frozen_4bit_bytes: a frozen weight in 4-bit NormalFloat, quantisation constants included
            [bytes per parameter].
    """

    optimizers: Mapping[str, OptimizerState] = field(hash=False)
    frozen_4bit_bytes: float
