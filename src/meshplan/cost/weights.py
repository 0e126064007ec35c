"""The weight matrices and vectors of one block, by name and by how tensor parallelism splits them.

This is the one place that says which weights a mixer or a feed-forward network has. Parameter
counts, shards and adapter counts are sums over it.
"""

from __future__ import annotations

from meshplan.cost.matrices import Projection, Vector, Weights, columns, rows, whole
from meshplan.cost.recurrent_weights import (
    gated_recurrence,
    linear_attention,
    mamba1,
    mamba2,
    short_conv,
)
from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    GatedRecurrence,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    Mlp,
    Moe,
    ShortConv,
    StateSpace,
)

__all__ = [
    "Projection",
    "Vector",
    "Weights",
    "block_projections",
    "expert_weights",
    "mixer_weights",
    "mlp_weights",
    "router_weights",
    "shared_expert_weights",
]


def mixer_weights(mixer: Mixer, *, hidden: int) -> Weights:
    """List the weights of a token mixer on a residual stream of width ``hidden``."""
    match mixer:
        case Attention():
            return _attention(mixer, hidden)
        case LatentAttention():
            return _latent_attention(mixer, hidden)
        case CrossAttention():
            return _cross_attention(mixer, hidden)
        case StateSpace(version=1):
            return mamba1(mixer, hidden)
        case StateSpace():
            return mamba2(mixer, hidden)
        case LinearAttention():
            return linear_attention(mixer, hidden)
        case ShortConv():
            return short_conv(mixer, hidden)
        case GatedRecurrence():
            return gated_recurrence(mixer, hidden)


def mlp_weights(mlp: Mlp, *, hidden: int) -> Weights:
    """List the weights of a dense feed-forward network."""
    return _mlp(hidden, mlp.ffn_hidden, gated=mlp.gated, bias=mlp.bias)


def block_projections(layer: Layer, *, hidden: int) -> list[Projection]:
    """List the matrices of a block in the order of the forward pass, routed experts left out."""
    parts = [mixer_weights(mixer, hidden=hidden) for mixer in layer.mixers]
    if isinstance(layer.ffn, Mlp):
        parts.append(mlp_weights(layer.ffn, hidden=hidden))
    return [projection for part in parts for projection in part.projections]


def expert_weights(moe: Moe, *, hidden: int) -> Weights:
    """List the weights of one routed expert."""
    width = moe.routed_dim(hidden=hidden)
    return _mlp(width, moe.expert_ffn_hidden, gated=moe.gated, bias=moe.bias)


def shared_expert_weights(moe: Moe, *, hidden: int) -> Weights:
    """List the weights of the shared experts together, their scalar gate included."""
    if not moe.shared_ffn_hidden:
        return Weights(projections=())
    bias = moe.bias or moe.shared_bias
    shared = _mlp(hidden, moe.shared_ffn_hidden, gated=moe.gated, bias=bias)
    gate = (Vector(name="shared_expert_gate", size=hidden),) if moe.shared_gate else ()
    return Weights(projections=shared.projections, vectors=gate)


def router_weights(moe: Moe, *, hidden: int) -> Weights:
    """List the weights of the router, and of projections into and out of a latent width.

    Every device of a tensor-parallel group holds all of them.
    """
    choices = moe.num_experts + moe.num_zero_experts
    latent: tuple[Projection, ...] = ()
    if moe.latent_dim:
        latent = (
            whole("latent_down_proj", hidden, moe.latent_dim),
            whole("latent_up_proj", moe.latent_dim, hidden),
        )
    return Weights(projections=(whole("router", hidden, choices, bias=moe.router_bias), *latent))


def _mlp(hidden: int, ffn_hidden: int, *, gated: bool, bias: bool) -> Weights:
    gate = (columns("gate_proj", hidden, ffn_hidden, 1, bias=bias),) if gated else ()
    return Weights(
        projections=(
            *gate,
            columns("up_proj", hidden, ffn_hidden, 1, bias=bias),
            rows("down_proj", ffn_hidden, 1, hidden, bias=bias),
        )
    )


def _attention(a: Attention, hidden: int) -> Weights:
    """Query, key, value and output projections; see Vaswani et al. 2017, Ainslie et al. 2023."""
    read = hidden if a.input_dim is None else a.input_dim
    q_in = read
    compress: tuple[Projection, ...] = ()
    vectors: list[Vector] = []
    if a.q_lora_rank is not None:
        q_in = a.q_lora_rank
        compress = (whole("q_a_proj", read, a.q_lora_rank),)
        vectors.append(Vector(name="q_a_norm", size=a.q_lora_rank))
    q_width = a.head_dim * (2 if a.output_gate else 1)
    kv_heads = 0 if a.kv_shared else a.num_kv_heads
    keys_values: tuple[Projection, ...] = ()
    if not a.kv_shared:
        keys_values = (columns("k_proj", read, kv_heads, a.head_dim, bias=a.qkv_bias),)
        if not a.values_are_keys:
            values = columns("v_proj", read, kv_heads, a.v_head_dim, bias=a.qkv_bias)
            keys_values = (*keys_values, values)
    per_channel = 2 if a.qk_norm_bias else 1
    if a.qk_norm == "head":
        sides = 1 if a.kv_shared else 2
        vectors.append(Vector(name="qk_norm", size=sides * a.head_dim * per_channel))
    elif a.qk_norm == "full":
        for name, heads in (("q_norm", a.num_heads), ("k_norm", kv_heads)):
            size = heads * a.head_dim * per_channel
            vectors.append(Vector(name=name, size=size, num_units=heads))
    if a.sinks:
        vectors.append(Vector(name="sinks", size=a.num_heads, num_units=a.num_heads))
    return Weights(
        projections=(
            *compress,
            columns("q_proj", q_in, a.num_heads, q_width, bias=a.qkv_bias),
            *keys_values,
            *_output(a, hidden),
        ),
        vectors=tuple(vectors),
    )


def _output(a: Attention, hidden: int) -> tuple[Projection, ...]:
    """One matrix from all heads, or a low-rank one per group of heads and one from the groups."""
    if a.out_lora_rank is None:
        return (rows("o_proj", a.num_heads, a.v_head_dim, hidden, bias=a.out_bias),)
    group_width = a.num_heads * a.v_head_dim // a.out_groups
    return (
        columns("o_a_proj", group_width, a.out_groups, a.out_lora_rank),
        rows("o_b_proj", a.out_groups, a.out_lora_rank, hidden, bias=a.out_bias),
    )


def _latent_attention(a: LatentAttention, hidden: int) -> Weights:
    """Multi-head latent attention; see DeepSeek-V2 (arXiv 2405.04434), section 2.1."""
    qk_dim = a.qk_nope_head_dim + a.qk_rope_head_dim
    projections: list[Projection] = []
    vectors = [Vector(name="kv_a_norm", size=a.kv_lora_rank)]
    if a.q_lora_rank is None:
        projections.append(columns("q_proj", hidden, a.num_heads, qk_dim))
    else:
        projections.append(whole("q_a_proj", hidden, a.q_lora_rank, bias=a.bias))
        projections.append(columns("q_b_proj", a.q_lora_rank, a.num_heads, qk_dim))
        vectors.append(Vector(name="q_a_norm", size=a.q_lora_rank))
    kv_dim = a.qk_nope_head_dim + a.v_head_dim
    projections += [
        whole("kv_a_proj", hidden, a.kv_lora_rank + a.qk_rope_head_dim, bias=a.bias),
        columns("kv_b_proj", a.kv_lora_rank, a.num_heads, kv_dim),
        rows("o_proj", a.num_heads, a.v_head_dim, hidden, bias=a.bias),
    ]
    if a.index_num_heads:
        index_in = hidden if a.q_lora_rank is None else a.q_lora_rank
        projections += [
            whole("index_q_proj", index_in, a.index_num_heads * a.index_head_dim),
            whole("index_k_proj", hidden, a.index_head_dim),
            whole("index_weights_proj", hidden, a.index_num_heads),
        ]
        vectors.append(Vector(name="index_k_norm", size=2 * a.index_head_dim))
    return Weights(projections=tuple(projections), vectors=tuple(vectors))


def _cross_attention(a: CrossAttention, hidden: int) -> Weights:
    vectors = []
    if a.qk_norm == "head":
        vectors.append(Vector(name="qk_norm", size=2 * a.head_dim))
    if a.gated:
        vectors.append(Vector(name="gates", size=2))
    return Weights(
        projections=(
            columns("q_proj", hidden, a.num_heads, a.head_dim),
            columns("k_proj", a.context_dim, a.num_kv_heads, a.head_dim),
            columns("v_proj", a.context_dim, a.num_kv_heads, a.head_dim),
            rows("o_proj", a.num_heads, a.head_dim, hidden),
        ),
        vectors=tuple(vectors),
    )
