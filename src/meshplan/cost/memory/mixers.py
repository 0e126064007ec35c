"""What token mixers save between the norm before them and the residual after them.

Shape letters as in :mod:`meshplan.cost.memory.activations`; e = 2 bytes.
"""

from __future__ import annotations

import numpy as np

from meshplan.cost.memory.saved import Saved
from meshplan.cost.memory.shapes import (
    ACTIVATION_BYTES,
    FloatArray,
    Shapes,
    per_device,
    rounded,
)
from meshplan.cost.operators.attention import takes_fused_softmax
from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    GatedRecurrence,
    LatentAttention,
    LinearAttention,
    Mixer,
    ShortConv,
    StateSpace,
)
from meshplan.space.plan import Recompute
from meshplan.units import FP32_BYTES

__all__ = ["kernel_output", "mixer_saved", "mixer_working"]

_DROPPED_SCORE = 3.0
"""Further bytes per score with dropout: its mask and its output."""
_PLAIN_SCORE, _PLAIN_WORKING = 6.0, 8.0
"""Bytes per score of PyTorch's softmax: it keeps its output in 32 bits for its own backward pass,
and the product keeps a 16-bit copy; two gradients in 32 bits are in flight backward."""


def mixer_saved(mixer: Mixer, x: Shapes) -> list[Saved]:
    """List the tensors that a token mixer saves."""
    match mixer:
        case Attention():
            return _attention_saved(mixer, x)
        case LatentAttention():
            return _latent_saved(mixer, x)
        case CrossAttention():
            return _cross_saved(mixer, x)
        case StateSpace():
            return _state_space_saved(mixer, x)
        case LinearAttention():
            return _linear_saved(mixer, x)
        case ShortConv(inner_dim=d):
            return [_line("short_conv", 5.0 * ACTIVATION_BYTES * d * x.tokens / x.tp)]
        case GatedRecurrence(inner_dim=d):
            # two branches, convolution, gates, states in 32 bits, product
            per_channel = 5.0 * ACTIVATION_BYTES + 3.0 * FP32_BYTES
            return [_line("recurrence", per_channel * d * x.tokens / x.tp)]


def mixer_working(mixer: Mixer, x: Shapes) -> FloatArray:
    """Gradients alive inside the backward pass of a token mixer [bytes].

    Equation:
        flash: gradients of q, k, v and of the output, and a 32-bit accumulator of dq:
        ``(e (2 a d + 2 k d) + 4 a d) T / t``; unfused: two score matrices more.
    """
    match mixer:
        case Attention():
            q, kv = (
                _local_heads(mixer.num_heads, x),
                _local_heads(mixer.num_kv_heads, x),
            )
            d = mixer.head_dim
            per_token = ACTIVATION_BYTES * (2.0 * q + 2.0 * kv) * d + FP32_BYTES * q * d
            return per_token * x.tokens + _scores_working(mixer.num_heads, x)
        case LatentAttention():
            q = _local_heads(mixer.num_heads, x)
            qk, v = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim, mixer.v_head_dim
            per_token = q * (ACTIVATION_BYTES * (2.0 * qk + 2.0 * v) + FP32_BYTES * qk)
            return per_token * x.tokens + _scores_working(mixer.num_heads, x)
        case CrossAttention():
            q = _local_heads(mixer.num_heads, x)
            per_token = (2.0 * ACTIVATION_BYTES + FP32_BYTES) * q * mixer.head_dim
            return per_token * x.tokens
        case StateSpace():
            return (2.0 * ACTIVATION_BYTES + FP32_BYTES) * mixer.inner_dim * x.tokens / x.tp
        case LinearAttention():
            wide = mixer.num_value_heads * mixer.value_head_dim
            return (3.0 * ACTIVATION_BYTES + FP32_BYTES) * wide * x.tokens / x.tp
        case ShortConv(inner_dim=d) | GatedRecurrence(inner_dim=d):
            return 3.0 * ACTIVATION_BYTES * d * x.tokens / x.tp


def kernel_output(mixer: Mixer, x: Shapes) -> FloatArray:
    """Output of the token-mixing kernel with its row statistics [bytes]."""
    match mixer:
        case Attention(num_heads=a, v_head_dim=d) | LatentAttention(num_heads=a, v_head_dim=d):
            width = d
        case CrossAttention(num_heads=a, head_dim=d):
            width = d
        case LinearAttention(num_value_heads=a, value_head_dim=d):
            width = d
        case StateSpace(inner_dim=d) | ShortConv(inner_dim=d) | GatedRecurrence(inner_dim=d):
            return ACTIVATION_BYTES * d * x.tokens / x.tp
    heads = _local_heads(a, x)
    return (ACTIVATION_BYTES * heads * width + FP32_BYTES * heads) * x.tokens


def _line(code: str, num_bytes: FloatArray, dropped_by: Recompute = Recompute.NONE) -> Saved:
    return Saved(code=code, num_bytes=rounded(num_bytes), dropped_by=dropped_by)


def _local_heads(num_heads: int, x: Shapes) -> FloatArray:
    return per_device(num_heads, x.tp)


def _core(num_heads: int, x: Shapes) -> Saved:
    """What the attention kernel keeps: log-sums of rows, or all scores when unfused.

    Equation:
        flash: ``4 a T / t``; unfused: ``2 a s T / t``, with dropout ``5 a s T / t``, and ``4 a s
        T / t`` more where operators of PyTorch keep a softmax in 32 bits.

    References:
        1. Korthikanti et al. 2022, section 4.1 (5 a s^2 b).
        2. T. Dao, FlashAttention-2, 2023, section 3.1.
    """
    heads = _local_heads(num_heads, x)
    per_score = _of_softmax("score_bytes", _PLAIN_SCORE, num_heads, x)
    per_score = per_score + (_DROPPED_SCORE if x.dropout else 0.0)
    per_row = per_score * x.seq_len if x.unfused else FP32_BYTES
    return _line("attention_core", per_row * heads * x.tokens, Recompute.CORE_ATTENTION)


def _of_softmax(name: str, plain: float, num_heads: int, x: Shapes) -> FloatArray:
    """Bytes for each score of the softmax that runs, the fused one of Megatron-LM or PyTorch's."""
    own: FloatArray = x.behaviours[name]
    matrices = x.sequences * num_heads / x.tp
    fused = takes_fused_softmax(matrices, key_len=x.seq_len, framework=x.framework)
    return np.where(fused, own, np.maximum(own, plain))


def _scores_working(num_heads: int, x: Shapes) -> FloatArray:
    if not x.unfused:
        return np.zeros_like(x.tokens)
    per_row = _of_softmax("score_working_bytes", _PLAIN_WORKING, num_heads, x) * x.seq_len
    return per_row * _local_heads(num_heads, x) * x.tokens


def _attention_saved(a: Attention, x: Shapes) -> list[Saved]:
    """Queries, keys, values, kernel, output.

    Equation:
        ``e (a d + k d + k d_v) T / t`` + kernel + ``w a d_v T / t``; with head-exchanging
        context parallelism the output once more, since it is saved before and after the
        exchange; with norms on queries and keys their inputs once more.
    """
    q, kv = _local_heads(a.num_heads, x), _local_heads(a.num_kv_heads, x)
    own_kv = 0.0 if a.kv_shared else 1.0
    width_q, width_kv = q * a.head_dim, own_kv * kv * a.head_dim
    width_v, width_out = own_kv * kv * a.v_head_dim, q * a.v_head_dim
    b, tokens = x.behaviours, x.tokens
    saved = [_line("attention", ACTIVATION_BYTES * (width_q + width_kv + width_v) * tokens)]
    # the value slice of the fused buffer keeps query and key slices alive beside rotated copies
    saved.append(
        _line(
            "attention",
            b["keeps_fused_qkv"] * ACTIVATION_BYTES * (width_q + width_kv) * tokens,
        )
    )
    if a.rotary:
        saved.append(_line("attention", b["rope_extra_bytes"] * width_q * tokens))
    if a.qk_norm != "none":
        norms = ACTIVATION_BYTES * (width_q + width_kv) + FP32_BYTES * (q + own_kv * kv)
        saved.append(_line("attention", norms * tokens))
    if a.q_lora_rank is not None:
        saved.append(_line("attention", 2.0 * ACTIVATION_BYTES * a.q_lora_rank * x.shared_tokens))
    if a.output_gate:
        saved.append(_line("attention", 2.0 * ACTIVATION_BYTES * width_out * tokens))
    saved.append(_core(a.num_heads, x))
    saved += _output(width_out, x)
    return saved


def _output(width_out: FloatArray, x: Shapes) -> list[Saved]:
    """Output of the kernel, which is the input of the output projection.

    The kernel saves it in 16 bits; a product in a narrower format saves its own copy.
    """
    own = (x.input_bytes < ACTIVATION_BYTES) & x.trains_mixers
    copies = ACTIVATION_BYTES + np.where(own, x.input_bytes, 0.0)
    exchanged = np.where(x.cp_all_to_all & (x.cp > 1), ACTIVATION_BYTES, 0.0)
    return [_line("attention", (copies + exchanged) * width_out * x.tokens)]


def _latent_saved(a: LatentAttention, x: Shapes) -> list[Saved]:
    """Compressed queries and keys, the expanded ones, kernel, output.

    Equation:
        ``2 e (q_rank + kv_rank + rope / 2) T r`` (input and output of the inner norms) +
        ``(e (i + 1) d_i + 4 i + 4 k_i) T`` (queries, key and weights of an indexer with i heads,
        whole on every device, and the k_i tokens that it picks) +
        ``e a (2 (nope + rope) + v) T / t`` (queries, assembled keys, contiguous values) +
        kernel + ``w a v T / t``.

    References:
        1. DeepSeek-AI, DeepSeek-V2, 2024, section 2.1.2.
        2. Megatron-LM, ``core/transformer/multi_latent_attention.py``: keys and values are
           copied out of the up-projection.
    """
    heads = _local_heads(a.num_heads, x)
    qk, v = a.qk_nope_head_dim + a.qk_rope_head_dim, a.v_head_dim
    compressed = 2.0 * a.kv_lora_rank + a.qk_rope_head_dim + 2.0 * (a.q_lora_rank or 0)
    expanded = heads * (2.0 * qk + v)
    return [
        _line("attention", ACTIVATION_BYTES * compressed * x.shared_tokens),
        _line(
            "attention",
            ACTIVATION_BYTES * expanded * x.tokens,
            Recompute.MLA_UP_PROJECTION,
        ),
        *_index_saved(a, x),
        _core(a.num_heads, x),
        *_output(heads * v, x),
    ]


def _index_saved(a: LatentAttention, x: Shapes) -> list[Saved]:
    """Queries, key and weights of the indexer, and which tokens it picks.

    Assumes:
        Its scores are computed block by block and not kept.
    """
    if not a.index_num_heads:
        return []
    products = ACTIVATION_BYTES * (a.index_num_heads + 1.0) * a.index_head_dim
    picked = FP32_BYTES * (a.index_num_heads + a.index_top_k)
    return [_line("attention", (products + picked) * x.tokens)]


def _cross_saved(a: CrossAttention, x: Shapes) -> list[Saved]:
    """Queries, kernel and output.

    Assumes:
        Keys and values of the other modality are left out: the job does not state its length.
    """
    width = _local_heads(a.num_heads, x) * a.head_dim
    saved = [_line("attention", ACTIVATION_BYTES * width * x.tokens)]
    if a.qk_norm != "none":
        saved.append(_line("attention", ACTIVATION_BYTES * width * x.tokens))
    saved.append(_core(a.num_heads, x))
    saved += _output(width, x)
    return saved


def _state_space_saved(m: StateSpace, x: Shapes) -> list[Saved]:
    """Projected input, convolved input, scan output, gated output, chunk states.

    Equation:
        version 2: ``e (2 d + 2 g n + heads) T/t`` (projection) + ``e (d + 2 g n) T/t``
        (convolution) + ``e 2 d T/t`` (scan and gated output) + ``4 d n / chunk T/t`` (states at
        chunk borders, 32 bits); version 1: ``e (2 d + 2 d + rank + 2 n) T/t`` + ``4 d T/t``
        (time steps), states are computed again.

    References:
        1. T. Dao, A. Gu, Transformers are SSMs, 2024, section 6.
        2. A. Gu, T. Dao, Mamba, 2023, section 3.3.2 (recomputed states).
    """
    d, n = m.inner_dim, m.state_dim
    if m.version == 1:
        per_token = ACTIVATION_BYTES * (4.0 * d + m.dt_rank + 2.0 * n) + FP32_BYTES * d
        return [_line("state_space", per_token * x.tokens / x.tp)]
    groups = 2.0 * m.num_groups * n
    elements = 2.0 * d + groups + m.num_heads + d + groups + 2.0 * d
    states = FP32_BYTES * d * n / m.chunk_size
    return [_line("state_space", (ACTIVATION_BYTES * elements + states) * x.tokens / x.tp)]


def _linear_saved(a: LinearAttention, x: Shapes) -> list[Saved]:
    """Projections before and after the convolution, decays, output before and after its gate.

    Equation:
        ``e (2 (2 k d_k + v d_v) + 4 v d_v) T/t`` + ``4 x 2 v T/t``, with k key heads, v value
        heads; without convolution the projections count once.
    """
    keys = 2.0 * a.num_key_heads * a.key_head_dim
    values = 1.0 * a.num_value_heads * a.value_head_dim
    passes = 2.0 if a.conv_kernel else 1.0
    per_token = ACTIVATION_BYTES * (passes * (keys + values) + 4.0 * values)
    per_token += 2.0 * FP32_BYTES * a.num_value_heads
    return [_line("linear_attention", per_token * x.tokens / x.tp)]
