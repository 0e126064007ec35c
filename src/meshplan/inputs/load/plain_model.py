"""A model from a handful of numbers, as tables of training runs print them."""

from __future__ import annotations

from typing import Literal

from meshplan.inputs.model import Attention, Ffn, LatentAttention, Layer, Mixer, Mlp, Model, Moe

__all__ = ["plain_model"]


def plain_model(
    *,
    name: str,
    num_layers: int,
    hidden: int,
    ffn_hidden: int,
    num_heads: int,
    num_kv_heads: int,
    vocab: int,
    gated: bool,
    tied: bool,
    norm: Literal["rmsnorm", "layernorm", "layernorm_no_bias", "layernorm_no_params"],
    num_positions: int,
    head_dim: int | None = None,
    bias: bool | None = None,
    window_size: int | None = None,
    max_seq_len: int = 0,
    num_experts: int = 0,
    top_k: int = 0,
    expert_ffn_hidden: int = 0,
    shared_ffn_hidden: int = 0,
    num_dense_layers: int = 0,
    moe_every: int = 1,
    q_lora_rank: int | None = None,
    kv_lora_rank: int = 0,
    qk_nope_head_dim: int = 0,
    qk_rope_head_dim: int = 0,
    v_head_dim: int = 0,
    num_mtp_layers: int = 0,
    qk_norm: Literal["none", "head", "full"] = "none",
    route_groups: int = 1,
    route_top_groups: int = 1,
    source: str = "",
) -> Model:
    """Make a model of equal blocks from its sizes.

    Args:
        name: what to call it.
        num_layers: blocks.
        hidden: width of the residual stream.
        ffn_hidden: inner width of the dense feed-forward network (each branch when gated).
        num_heads: query heads.
        num_kv_heads: key-value heads.
        vocab: rows of the embedding.
        gated: the feed-forward network and the experts have two input branches (SwiGLU).
        tied: embedding and head are one matrix.
        norm: kind of norm.
        num_positions: rows of a learned position embedding; 0 for RoPE or ALiBi.
        head_dim: width of a head; ``hidden / num_heads`` when None.
        bias: biases on all projections; None means those of GPT-2, which pairs them with a
            LayerNorm that has a bias (``norm="layernorm"``).
        window_size: tokens that a token sees; None for all.
        max_seq_len: the longest sequence; 0 when unknown.
        num_experts: routed experts; 0 for a dense model.
        top_k: routed experts per token.
        expert_ffn_hidden: inner width of a routed expert.
        shared_ffn_hidden: inner width of the shared experts together.
        num_dense_layers: leading blocks without experts.
        moe_every: of the blocks after the dense ones, every so-manyth has experts (the last of
            each group).
        q_lora_rank: rank of the query compression of latent attention; None for none.
        kv_lora_rank: rank of the key-value compression; 0 for ordinary attention.
        qk_nope_head_dim: part of a latent head without position.
        qk_rope_head_dim: rotated part of a latent head.
        v_head_dim: width of a value head (latent attention).
        num_mtp_layers: blocks that predict further tokens.
        qk_norm: norms on queries and keys of ordinary attention.
        route_groups: groups of experts among which a token chooses first.
        route_top_groups: groups that it chooses from.
        source: where the numbers come from.

    Returns:
        The model.
    """
    has_bias = norm == "layernorm" if bias is None else bias
    mixer: Mixer = _attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hidden // num_heads if head_dim is None else head_dim,
        window_size=window_size,
        bias=has_bias,
        rotary=num_positions == 0,
        qk_norm=qk_norm,
    )
    if kv_lora_rank:
        mixer = LatentAttention(
            num_heads=num_heads,
            q_lora_rank=q_lora_rank,
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            v_head_dim=v_head_dim,
            bias=False,
        )
    dense = Mlp(ffn_hidden=ffn_hidden, gated=gated, bias=has_bias, activation=_activation(gated))
    sparse: Ffn = dense
    if num_experts:
        sparse = _experts(
            num_experts=num_experts,
            top_k=top_k,
            ffn_hidden=expert_ffn_hidden,
            shared_ffn_hidden=shared_ffn_hidden,
            gated=gated,
            bias=has_bias,
            num_groups=route_groups,
            top_groups=route_top_groups,
        )

    def block(index: int) -> Layer:
        after = index - num_dense_layers
        is_moe = after >= 0 and (after + 1) % moe_every == 0
        return Layer(mixer=mixer, ffn=sparse if is_moe else dense, num_norms=2)

    norm_weights = 2 * hidden if norm == "layernorm" else hidden
    joins = {"mtp_join": num_mtp_layers * (2 * hidden * hidden + 3 * norm_weights)}
    return Model(
        name=name,
        family="plain",
        hidden=hidden,
        vocab=vocab,
        layers=tuple(block(i) for i in range(num_layers)),
        tied_embeddings=tied,
        head_bias=False,
        embedding_dim=hidden,
        num_positions=num_positions,
        norm=norm,
        embedding_norm=False,
        final_norm=True,
        max_seq_len=max_seq_len,
        mtp_layers=tuple(block(num_layers - 1) for _ in range(num_mtp_layers)),
        other_parameters=joins if num_mtp_layers else {},
        source=source,
    )


def _activation(gated: bool) -> Literal["silu", "gelu"]:
    return "silu" if gated else "gelu"


def _attention(
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window_size: int | None,
    bias: bool,
    rotary: bool,
    qk_norm: Literal["none", "head", "full"],
) -> Attention:
    return Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        window_size=window_size,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=qk_norm,
        sinks=False,
        rotary=rotary,
    )


def _experts(
    *,
    num_experts: int,
    top_k: int,
    ffn_hidden: int,
    shared_ffn_hidden: int,
    gated: bool,
    bias: bool,
    num_groups: int,
    top_groups: int,
) -> Moe:
    return Moe(
        num_experts=num_experts,
        top_k=top_k,
        expert_ffn_hidden=ffn_hidden,
        gated=gated,
        bias=bias,
        activation=_activation(gated),
        shared_ffn_hidden=shared_ffn_hidden,
        shared_gate=False,
        router_bias=False,
        num_groups=num_groups,
        top_groups=top_groups,
    )
