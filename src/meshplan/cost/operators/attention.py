"""Operators of softmax attention: grouped, latent and cross attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from meshplan.cost.operators.elementwise import activation, norm, rotary
from meshplan.cost.operators.records import (
    Gemm,
    Number,
    Operator,
    ScoreProduct,
    Shapes,
)
from meshplan.cost.surfaces import constant
from meshplan.inputs.model import Attention, CrossAttention, LatentAttention
from meshplan.space.plan import Framework, Recompute

__all__ = [
    "attention_operators",
    "causal_pairs",
    "cross_attention_operators",
    "latent_attention_operators",
    "takes_fused_softmax",
]


def causal_pairs(*, seq_len: float, window: int | None) -> float:
    """Count the query-key pairs that a causal mask leaves in one sequence.

    Equation: ``s (s + 1) / 2``, or with a window of ``w < s`` tokens
    ``w (w + 1) / 2 + (s - w) w``.
    """
    if window is None or window >= seq_len:
        return seq_len * (seq_len + 1) / 2
    return window * (window + 1) / 2 + (seq_len - window) * window


def _core(
    shapes: Shapes,
    *,
    heads: int,
    kv_heads: int,
    qk_dim: int,
    v_dim: int,
    pairs: float,
    full_pairs: float,
    key_len: float,
) -> ScoreProduct:
    """The score product on one device under tensor and context parallelism.

    A ring and an all-gather give each device ``1 / cp`` of the queries (head-tail balanced, so
    of the pairs too); Ulysses gives it ``1 / cp`` of the heads and all tokens.
    """
    seq_len = float(shapes.job.seq_len)
    split_queries = np.where(shapes.ulysses, 1.0, shapes.cp)
    split_heads = np.where(shapes.ulysses, shapes.cp, 1.0)
    own_heads = heads / (shapes.tp * split_heads)
    is_fused = shapes.fused_softmax & takes_fused_softmax(
        own_heads * shapes.micro_batch, key_len=key_len, framework=shapes.framework
    )
    return ScoreProduct(
        name="core_attention",
        batch=shapes.micro_batch,
        heads=own_heads,
        kv_heads=np.maximum(kv_heads / (shapes.tp * split_heads), 1.0),
        query_len=seq_len / split_queries,
        key_len=np.where(shapes.ring, key_len / shapes.cp, key_len),
        pairs=pairs / split_queries,
        full_pairs=full_pairs / split_queries,
        qk_dim=float(qk_dim),
        v_dim=float(v_dim),
        rounds=np.where(shapes.ring, shapes.cp, 1.0),
        fused=shapes.job.attention == "flash",
        dropout=shapes.job.dropout,
        softmax_kernels=np.where(is_fused, 1.0, constant("plain_softmax_kernels")),
        softmax_bytes_forward=np.where(
            is_fused, constant("fused_softmax_bytes_forward"), shapes.softmax_bytes_forward
        ),
        softmax_bytes_backward=np.where(
            is_fused, constant("fused_softmax_bytes_backward"), shapes.softmax_bytes_backward
        ),
    )


def takes_fused_softmax(
    score_matrices: Number, *, key_len: float, framework: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether Megatron-LM's kernel for scale, mask and softmax takes stored scores.

    It takes four matrices of scores at a time, one for each sequence and head, and rows of 17 to
    16,384 keys; else operators of PyTorch do the same one after another [1]_. Other versions take
    fewer keys: 4,096 with megatron/core/fusions/fused_softmax.py, 16,376 in eights with
    transformer_engine/pytorch/softmax.py. What other frameworks fuse, a compiler does for any
    number.

    Args:
        score_matrices: sequences of a micro-batch times heads on a device, ``(num_plans,)``.
        key_len: keys that a query meets.
        framework: framework of each plan, ``(num_plans,)``.

    Returns:
        ``(num_plans,)``.

    References:
        .. [1] Megatron-LM of 2023 to 2025, megatron/legacy/model/fused_softmax.py,
           ``is_kernel_available``.
    """
    megatron = (framework == Framework.MEGATRON) | (framework == Framework.DEEPSPEED)
    fits = (np.asarray(score_matrices) % 4 == 0) & (16 < key_len <= 16_384) & (key_len % 4 == 0)
    taken: npt.NDArray[np.bool_] = ~megatron | fits
    return taken


def attention_operators(mixer: Attention, s: Shapes) -> Iterator[Operator]:
    """Multi-head, grouped and multi-query attention."""
    q_width = mixer.num_heads * mixer.head_dim * (2 if mixer.output_gate else 1) / s.tp
    kv_heads = np.maximum(mixer.num_kv_heads / s.tp, 1.0)
    yield from _qkv_projection(mixer, s, q_width=q_width, kv_heads=kv_heads)
    seq_len = float(s.job.seq_len)
    qk_width = (mixer.num_heads / s.tp + kv_heads) * mixer.head_dim
    if mixer.qk_norm != "none":
        yield norm("qk_norm", s.tokens * qk_width, kernels=2.0, rerun=Recompute.NORM)
    if mixer.rotary:
        yield rotary(s.tokens * qk_width)
    yield _core(
        s,
        heads=mixer.num_heads,
        kv_heads=mixer.num_kv_heads,
        qk_dim=mixer.head_dim,
        v_dim=mixer.v_head_dim,
        pairs=causal_pairs(seq_len=seq_len, window=mixer.window_size),
        full_pairs=seq_len * min(mixer.window_size or seq_len, seq_len),
        key_len=min(mixer.window_size or seq_len, seq_len),
    )
    out_width = mixer.num_heads * mixer.v_head_dim / s.tp
    if mixer.output_gate:
        yield activation("output_gate", s.tokens * out_width, branches=2)
    yield from _output_projection(mixer, s, width=out_width)


def _output_projection(mixer: Attention, s: Shapes, *, width: Number) -> Iterator[Operator]:
    """One product from all heads, or a low-rank one per group of heads and one from the groups."""
    if mixer.out_lora_rank is not None:
        groups = np.maximum(mixer.out_groups / s.tp, 1.0)
        yield Gemm(
            name="output_down_projection",
            m=s.tokens,
            n=float(mixer.out_lora_rank),
            k=width / groups,
            groups=groups,
            weight_gradient=s.trained,
        )
        width = groups * mixer.out_lora_rank
    yield Gemm(
        name="output_projection",
        m=s.tokens,
        n=float(s.hidden),
        k=width,
        weight_gradient=s.trained,
    )


def _qkv_projection(
    mixer: Attention, s: Shapes, *, q_width: Number, kv_heads: Number
) -> Iterator[Operator]:
    """Queries, keys and values: one fused product, or three where the framework keeps them apart.

    A low-rank query projection is never fused with the others. Keys that serve as values too are
    projected once, those of an earlier block not at all.
    """
    h = float(mixer.input_dim or s.hidden)
    dims: list[int] = []
    if not mixer.kv_shared:
        dims = [mixer.head_dim] if mixer.values_are_keys else [mixer.head_dim, mixer.v_head_dim]
    kv_width = kv_heads * float(sum(dims))
    fused = ~s.separate & (mixer.q_lora_rank is None)
    if mixer.q_lora_rank is not None:
        rank = float(mixer.q_lora_rank)
        yield Gemm(
            name="q_down_projection", m=s.tokens_split, n=rank, k=h, weight_gradient=s.trained
        )
        yield norm("q_norm", s.tokens_split * rank)
        yield Gemm(name="q_up_projection", m=s.tokens, n=q_width, k=rank, weight_gradient=s.trained)
        q_width = 0.0 * q_width
    yield Gemm(
        name="qkv_projection",
        m=s.tokens,
        n=q_width + np.where(fused, kv_width, 0.0),
        k=h,
        weight_gradient=s.trained,
    )
    yield Gemm(
        name="kv_projection",
        m=s.tokens,
        n=np.where(fused, 0.0, kv_width / max(len(dims), 1)),
        k=h,
        count=float(len(dims)),
        weight_gradient=s.trained,
    )


def latent_attention_operators(mixer: LatentAttention, s: Shapes) -> Iterator[Operator]:
    """Multi-head latent attention; the down projections are not split by tensor parallelism.

    With sequence parallelism each device projects its own part of the tokens down, and the small
    latent vectors are gathered [1]_.

    References:
        .. [1] DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    qk_dim = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    q_width = mixer.num_heads * qk_dim / s.tp
    yield from _latent_queries(mixer, s, width=q_width)
    yield from _latent_keys(mixer, s)
    # the rotated parts are joined to the others: queries and keys are written whole
    yield rotary(2.0 * s.tokens * q_width, rerun=Recompute.MLA_UP_PROJECTION)
    if mixer.index_num_heads:
        yield from _indexer(mixer, s)
    seq_len = float(s.job.seq_len)
    seen = mixer.index_top_k or None
    yield _core(
        s,
        heads=mixer.num_heads,
        kv_heads=mixer.num_heads,
        qk_dim=qk_dim,
        v_dim=mixer.v_head_dim,
        pairs=causal_pairs(seq_len=seq_len, window=seen),
        full_pairs=seq_len * min(seen or seq_len, seq_len),
        key_len=min(seen or seq_len, seq_len),
    )
    yield Gemm(
        name="output_projection",
        m=s.tokens,
        n=float(s.hidden),
        k=mixer.num_heads * mixer.v_head_dim / s.tp,
        weight_gradient=s.trained,
    )


def _latent_queries(mixer: LatentAttention, s: Shapes, *, width: Number) -> Iterator[Operator]:
    """Queries, through their latent vector where the model has one."""
    h = float(s.hidden)
    if mixer.q_lora_rank is None:
        yield Gemm(name="q_projection", m=s.tokens, n=width, k=h, weight_gradient=s.trained)
        return
    rank = float(mixer.q_lora_rank)
    yield Gemm(name="q_down_projection", m=s.tokens_split, n=rank, k=h, weight_gradient=s.trained)
    yield norm("q_norm", s.tokens_split * rank, rerun=Recompute.MLA_UP_PROJECTION)
    yield Gemm(
        name="q_up_projection",
        m=s.tokens,
        n=width,
        k=rank,
        weight_gradient=s.trained,
        rerun=Recompute.MLA_UP_PROJECTION,
    )


def _latent_keys(mixer: LatentAttention, s: Shapes) -> Iterator[Operator]:
    """Keys and values from their common latent vector."""
    latent = float(mixer.kv_lora_rank)
    yield Gemm(
        name="kv_down_projection",
        m=s.tokens_split,
        n=latent + mixer.qk_rope_head_dim,
        k=float(s.hidden),
        weight_gradient=s.trained,
    )
    yield norm("kv_norm", s.tokens_split * latent, rerun=Recompute.MLA_UP_PROJECTION)
    yield Gemm(
        name="kv_up_projection",
        m=s.tokens,
        n=mixer.num_heads * (mixer.qk_nope_head_dim + mixer.v_head_dim) / s.tp,
        k=latent,
        weight_gradient=s.trained,
        rerun=Recompute.MLA_UP_PROJECTION,
    )


def _indexer(mixer: LatentAttention, s: Shapes) -> Iterator[Operator]:
    """The light attention that picks which tokens are seen; it scores every earlier token [1]_.

    Each tensor-parallel device runs it whole.

    References:
        .. [1] DeepSeek-V3.2-Exp, 2025, section 1.
    """
    width = float(mixer.index_num_heads * mixer.index_head_dim)
    h = float(s.hidden)
    yield Gemm(
        name="index_projection",
        m=s.tokens,
        n=width,
        k=float(mixer.q_lora_rank or s.hidden),
        weight_gradient=s.trained,
    )
    yield Gemm(
        name="index_key_projection",
        m=s.tokens,
        n=float(mixer.index_head_dim + mixer.index_num_heads),
        k=h,
        weight_gradient=s.trained,
    )
    seq_len = float(s.job.seq_len)
    yield Gemm(
        name="index_scores",
        m=seq_len / s.cp,
        n=(seq_len + 1.0) / 2.0,
        k=float(mixer.index_head_dim),
        groups=s.micro_batch * mixer.index_num_heads,
        precision="bf16",
        weight_gradient=False,
        dense_weight=False,
    )


def cross_attention_operators(mixer: CrossAttention, s: Shapes) -> Iterator[Operator]:
    """Attention to another modality, whose states are taken to be as long as the sequence.

    The text-only job gives the length of no image; one context token per text token is assumed.
    """
    q_width = mixer.num_heads * mixer.head_dim / s.tp
    kv_width = 2.0 * np.maximum(mixer.num_kv_heads / s.tp, 1.0) * mixer.head_dim
    h = float(s.hidden)
    yield Gemm(name="q_projection", m=s.tokens, n=q_width, k=h, weight_gradient=s.trained)
    yield Gemm(
        name="kv_projection",
        m=s.tokens,
        n=kv_width,
        k=float(mixer.context_dim),
        weight_gradient=s.trained,
    )
    if mixer.qk_norm != "none":
        yield norm(
            "qk_norm",
            s.tokens * (q_width + kv_width / 2.0),
            kernels=2.0,
            rerun=Recompute.NORM,
        )
    yield _core(
        s,
        heads=mixer.num_heads,
        kv_heads=mixer.num_kv_heads,
        qk_dim=mixer.head_dim,
        v_dim=mixer.head_dim,
        pairs=float(s.job.seq_len) ** 2,
        full_pairs=float(s.job.seq_len) ** 2,
        key_len=float(s.job.seq_len),
    )
    yield Gemm(name="output_projection", m=s.tokens, n=h, k=q_width, weight_gradient=s.trained)
    if mixer.gated:
        yield activation("gate", s.tokens_split * h, branches=1)
