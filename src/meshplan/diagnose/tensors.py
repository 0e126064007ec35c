"""Tensors that a training step asks the allocator for in one piece, by name and shape.

Shapes are those of one device: heads and channels are divided over the tensor-parallel group,
tokens over the context-parallel group, states over the ranks that shard them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from meshplan.cost.behaviour import training_vocab
from meshplan.cost.schedule.layout import layout_of_plan
from meshplan.cost.shards import embedding_shard, layer_shard
from meshplan.cost.weights import block_projections, expert_weights
from meshplan.inputs.model import Attention, LatentAttention, Layer, Mlp, Model, Moe
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["Form", "activation_forms", "state_forms"]

HALF, FULL, BYTE = 2, 4, 1


@record
class Form:
    """One tensor.

    Attributes:
        code: ``tensor.<code>`` is its name.
        shape: its shape on one device.
        widths: bytes of an element that occur, most usual first.
        order: how often it is what an allocation fails at: 0 most often.
        stage: pipeline stage that asks for it; None when any does.
    """

    code: str
    shape: tuple[int, ...]
    widths: tuple[int, ...]
    order: int
    stage: int | None = None

    @property
    def num_elements(self) -> int:
        """Elements of it."""
        return prod(self.shape)


def _half(code: str, shape: tuple[int, ...], *, order: int, stage: int | None = None) -> Form:
    """A tensor in 16 bits, of which a copy in 32 bits occurs."""
    return Form(code=code, shape=shape, widths=(HALF, FULL), order=order, stage=stage)


def _full(code: str, shape: tuple[int, ...], *, order: int, stage: int | None = None) -> Form:
    """A tensor in 32 bits, of which a copy in 16 bits occurs."""
    return Form(code=code, shape=shape, widths=(FULL, HALF), order=order, stage=stage)


def activation_forms(scenario: Scenario, plan: Plan, *, micro_batch: int) -> Iterator[Form]:
    """Tensors whose size goes with the micro-batch."""
    model, job = scenario.model, scenario.job
    tokens = micro_batch * job.seq_len // plan.cp
    shared = ceil(tokens / plan.tp) if plan.sp else tokens
    vocab = int(training_vocab(scenario, PlanGrid.of([plan]))[0])
    last = plan.pp - 1
    yield _full("logits", (tokens, ceil(vocab / plan.tp)), order=0, stage=last)
    if plan.tp > 1:
        yield _full("logits_gathered", (tokens, vocab), order=3, stage=last)
    if model.vocab != vocab:
        shape = (tokens, ceil(model.vocab / plan.tp))
        yield _full("logits_unpadded", shape, order=3, stage=last)
    yield _half("hidden_states", (shared, model.hidden), order=4)
    if shared != tokens:
        yield _half("hidden_states_gathered", (tokens, model.hidden), order=4)
    for layer in dict.fromkeys(model.layers):
        yield from _layer_activations(layer, model, scenario, plan, micro_batch, tokens)


def _layer_activations(
    layer: Layer, model: Model, scenario: Scenario, plan: Plan, micro_batch: int, tokens: int
) -> Iterator[Form]:
    seq_len = scenario.job.seq_len
    for mixer in layer.mixers:
        if isinstance(mixer, LatentAttention):
            yield from _latent_activations(mixer, scenario, plan, micro_batch, tokens)
        if not isinstance(mixer, Attention):
            continue
        heads = ceil(mixer.num_heads / plan.tp)
        kv_heads = ceil(mixer.num_kv_heads / plan.tp)
        own = seq_len // plan.cp
        unfused = scenario.job.attention == "unfused"
        shape = (micro_batch, heads, own, seq_len)
        yield _half("attention_scores", shape, order=0 if unfused else 5)
        if scenario.job.dropout:
            yield Form(code="attention_mask", shape=shape, widths=(BYTE,), order=4)
        yield Form(
            code="causal_mask",
            shape=(micro_batch, 1, own, seq_len),
            widths=(BYTE, HALF, FULL),
            order=6,
        )
        width = heads * mixer.head_dim + kv_heads * (mixer.head_dim + mixer.v_head_dim)
        yield _half("qkv", (tokens, width), order=4)
        yield _half("queries", (tokens, heads, mixer.head_dim), order=5)
        yield _half("keys", (tokens, kv_heads, mixer.head_dim), order=5)
        if plan.cp > 1:
            gathered = (micro_batch * seq_len, kv_heads, mixer.head_dim + mixer.v_head_dim)
            yield Form(code="keys_gathered", shape=gathered, widths=(HALF,), order=5)
    if isinstance(layer.ffn, Mlp):
        inner = ceil(layer.ffn.ffn_hidden / plan.tp)
        if layer.ffn.gated:
            yield _half("mlp_both", (tokens, 2 * inner), order=3)
        yield _half("mlp_inner", (tokens, inner), order=3)
    elif isinstance(layer.ffn, Moe):
        yield from _expert_activations(layer.ffn, model, plan, tokens)


def _latent_activations(
    mixer: LatentAttention, scenario: Scenario, plan: Plan, micro_batch: int, tokens: int
) -> Iterator[Form]:
    """What latent attention expands to all heads."""
    heads, seq_len = ceil(mixer.num_heads / plan.tp), scenario.job.seq_len
    shape = (micro_batch, heads, seq_len // plan.cp, seq_len)
    unfused = scenario.job.attention == "unfused"
    yield _half("attention_scores", shape, order=0 if unfused else 5)
    width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    yield _half("queries", (tokens, heads, width), order=5)
    yield _half("keys", (tokens, heads, mixer.qk_nope_head_dim + mixer.v_head_dim), order=5)
    yield _half("keys", (tokens, mixer.kv_lora_rank + mixer.qk_rope_head_dim), order=6)


def _expert_activations(moe: Moe, model: Model, plan: Plan, tokens: int) -> Iterator[Form]:
    """Routed tokens: what a balanced router sends to a device, and what it could send at worst."""
    routed = ceil(tokens * moe.experts_per_token)
    width = moe.routed_dim(hidden=model.hidden)
    inner = ceil(moe.expert_ffn_hidden / plan.etp)
    yield _half("moe_tokens", (routed, width), order=2)
    yield _half("moe_inner", (routed, inner * (2 if moe.gated else 1)), order=2)
    if plan.ep > 1:
        yield Form(code="moe_worst", shape=(routed * plan.ep, width), widths=(HALF,), order=4)


def state_forms(scenario: Scenario, plan: Plan) -> Iterator[Form]:
    """Tensors of parameters, gradients and optimizer state, whatever the micro-batch."""
    model = scenario.model
    vocab = int(training_vocab(scenario, PlanGrid.of([plan]))[0])
    ends = embedding_shard(model, tp=plan.tp, padded_vocab=vocab)
    last = plan.pp - 1
    shape = (ceil(vocab / plan.tp), model.embedding_dim)
    yield _half("embedding", shape, order=2, stage=0)
    if not model.tied_embeddings or plan.pp > 1:
        yield _half("head", shape, order=2, stage=last)
    for stage, total in enumerate(_parameters_of_stages(scenario, plan, vocab)):
        yield from _flat(plan, total, stage)
    for layer in dict.fromkeys(model.layers):
        shard = layer_shard(layer, model, tp=plan.tp, ep=plan.ep, etp=plan.etp)
        yield _half("block", (int(shard.total),), order=1 if plan.zero == 3 else 5)
        yield from _matrices(layer, model, plan)
    root = int(ends.embedding + ends.head * (not model.tied_embeddings) + ends.final_norm)
    if plan.zero == 3 and plan.pp == 1:
        yield _half("root_unit", (root,), order=1)


def _flat(plan: Plan, total: int, stage: int) -> Iterator[Form]:
    """Parameters of a device in one buffer, and the part of it that one rank owns."""
    sharding = plan.dp_shard * plan.cp
    if plan.zero >= 1 and sharding > 1:
        # the master copy, a moment, or the temporary of an optimizer that is not fused
        yield _full("partition", (ceil(total / sharding),), order=0, stage=stage)
    yield _full("flat_parameters", (total,), order=1, stage=stage)


def _parameters_of_stages(scenario: Scenario, plan: Plan, vocab: int) -> list[int]:
    """Parameters that one device of each stage holds unsharded."""
    model = scenario.model
    ends = embedding_shard(model, tp=plan.tp, padded_vocab=vocab)
    layout = layout_of_plan(model, plan)
    totals = [0] * plan.pp
    for device, chunk in layout.virtual_stages:
        layers = model.layers[chunk.first_layer : chunk.first_layer + chunk.num_layers]
        layers += model.mtp_layers if chunk.has_head else ()
        for layer in layers:
            shard = layer_shard(layer, model, tp=plan.tp, ep=plan.ep, etp=plan.etp)
            totals[device] += int(shard.total)
        if chunk.has_embedding:
            totals[device] += int(ends.embedding + ends.positions)
        if chunk.has_head:
            tied = model.tied_embeddings and chunk.has_embedding
            totals[device] += int(ends.final_norm + (0 if tied else ends.head))
    return totals


def _matrices(layer: Layer, model: Model, plan: Plan) -> Iterator[Form]:
    """Single weight matrices, and those that frameworks fuse."""
    fused = {"gate_proj": "gate_up"}
    for product in block_projections(layer, hidden=model.hidden):
        shape = _shape(product.in_features, product.out_features, product.split, plan.tp)
        yield _half("matrix", shape, order=5)
        if product.name in fused:
            yield _half("matrix", (2 * shape[0], shape[1]), order=5)
    if isinstance(layer.ffn, Moe):
        local = ceil(layer.ffn.num_experts / plan.ep)
        for product in expert_weights(layer.ffn, hidden=model.hidden).projections:
            shape = _shape(product.in_features, product.out_features, product.split, plan.etp)
            yield _half("experts", (local, *shape), order=3)
            if product.name in fused:
                both = (local, 2 * shape[0], shape[1])
                yield _half("experts", both, order=3)


def _shape(in_features: int, out_features: int, split: str, tp: int) -> tuple[int, int]:
    if split == "column":
        return (ceil(out_features / tp), in_features)
    return (out_features, ceil(in_features / tp) if split == "row" else in_features)
