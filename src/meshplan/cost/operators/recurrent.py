"""Operators of mixers with a recurrent state or a short convolution instead of scores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshplan.cost.operators.elementwise import activation, norm
from meshplan.cost.operators.records import Elementwise, Gemm, Number, Operator, Shapes
from meshplan.inputs.model import GatedRecurrence, LinearAttention, ShortConv, StateSpace
from meshplan.space.plan import Recompute
from meshplan.units import BF16_BYTES

__all__ = [
    "gated_recurrence_operators",
    "linear_attention_operators",
    "short_conv_operators",
    "state_space_operators",
]


def state_space_operators(mixer: StateSpace, s: Shapes) -> Iterator[Operator]:
    """Mamba 1 and 2.

    Mamba 2 runs as products over chunks of ``c`` tokens: ``2 t (c (n g + d) + 2 d n)`` forward
    for inner width ``d``, state ``n`` and ``g`` groups [2]_. Mamba 1 runs a scan that memory
    traffic of the ``d``-wide streams bounds; its state stays on chip [1]_.

    References:
        .. [1] Gu and Dao, Mamba, arXiv:2312.00752, section 3.3.
        .. [2] Dao and Gu, Transformers are SSMs, arXiv:2405.21060, section 6.
    """
    h = float(s.hidden)
    inner = mixer.inner_dim / s.tp
    groups = np.maximum(mixer.num_groups / s.tp, 1.0 if mixer.num_groups else 0.0)
    state = float(mixer.state_dim)
    if mixer.version == 2:
        in_width: Number = 2.0 * inner + 2.0 * groups * state + mixer.num_heads / s.tp
        conv_width: Number = inner + 2.0 * groups * state
    else:
        in_width, conv_width = 2.0 * inner, inner
    yield Gemm(name="in_projection", m=s.tokens, n=in_width, k=h, weight_gradient=s.trained)
    yield _convolution(s.tokens * conv_width)
    if mixer.version == 1:
        rank = float(mixer.dt_rank)
        yield Gemm(
            name="x_projection",
            m=s.tokens,
            n=rank + 2.0 * state,
            k=inner,
            weight_gradient=s.trained,
        )
        yield Gemm(name="dt_projection", m=s.tokens, n=inner, k=rank, weight_gradient=s.trained)
        yield Elementwise(
            name="selective_scan",
            forward_bytes=BF16_BYTES * s.tokens * (4.0 * inner + 2.0 * state),
            backward_bytes=BF16_BYTES * s.tokens * (9.0 * inner + 4.0 * state),
            fusable=False,
        )
    else:
        yield from _chunked_scan(
            s,
            name="state_space_scan",
            chunk=float(mixer.chunk_size),
            key_width=groups * state,
            value_width=inner,
            state=state,
        )
        yield norm("gated_norm", 2.0 * s.tokens * inner)
    yield Gemm(name="output_projection", m=s.tokens, n=h, k=inner, weight_gradient=s.trained)


def linear_attention_operators(mixer: LinearAttention, s: Shapes) -> Iterator[Operator]:
    """Gated delta rule in chunks of 64 tokens [1]_.

    References:
        .. [1] Yang et al., Gated Delta Networks, arXiv:2412.06464, section 3.3.
    """
    h = float(s.hidden)
    key = mixer.num_key_heads * mixer.key_head_dim / s.tp
    value = mixer.num_value_heads * mixer.value_head_dim / s.tp
    heads = mixer.num_value_heads / s.tp
    yield Gemm(
        name="in_projection",
        m=s.tokens,
        n=2.0 * key + 2.0 * value + 2.0 * heads,
        k=h,
        weight_gradient=s.trained,
    )
    if mixer.conv_kernel:
        yield _convolution(s.tokens * (2.0 * key + value))
    # the delta rule adds the triangular solve of each chunk to the scan, hence twice the keys
    yield from _chunked_scan(
        s,
        name="delta_rule_scan",
        chunk=64.0,
        key_width=2.0 * heads * mixer.key_head_dim,
        value_width=value,
        state=float(mixer.key_head_dim),
    )
    yield norm("gated_norm", 2.0 * s.tokens * value)
    yield Gemm(name="output_projection", m=s.tokens, n=h, k=value, weight_gradient=s.trained)


def short_conv_operators(mixer: ShortConv, s: Shapes) -> Iterator[Operator]:
    """Gated short convolution: three branches in, a gate before and after the convolution."""
    h = float(s.hidden)
    inner = mixer.inner_dim / s.tp
    yield Gemm(name="in_projection", m=s.tokens, n=3.0 * inner, k=h, weight_gradient=s.trained)
    yield activation("input_gate", s.tokens * inner, branches=2)
    yield _convolution(s.tokens * inner)
    yield activation("output_gate", s.tokens * inner, branches=2)
    yield Gemm(name="output_projection", m=s.tokens, n=h, k=inner, weight_gradient=s.trained)


def gated_recurrence_operators(mixer: GatedRecurrence, s: Shapes) -> Iterator[Operator]:
    """Real-gated linear recurrent unit: two branches, block-diagonal gates and a scan [1]_.

    References:
        .. [1] De et al., Griffin, arXiv:2402.19427, section 2.4.
    """
    h = float(s.hidden)
    inner = mixer.inner_dim / s.tp
    block = float(mixer.inner_dim / mixer.num_heads)
    yield Gemm(name="in_projection", m=s.tokens, n=2.0 * inner, k=h, weight_gradient=s.trained)
    yield _convolution(s.tokens * inner)
    yield Gemm(
        name="gates",
        m=s.tokens,
        n=block,
        k=block,
        groups=2.0 * mixer.num_heads / s.tp,
        weight_gradient=s.trained,
    )
    yield Elementwise(
        name="recurrence",
        forward_bytes=4.0 * BF16_BYTES * s.tokens * inner,
        backward_bytes=8.0 * BF16_BYTES * s.tokens * inner,
        kernels=2.0,
        fusable=False,
    )
    yield activation("output_gate", s.tokens * inner, branches=2)
    yield Gemm(name="output_projection", m=s.tokens, n=h, k=inner, weight_gradient=s.trained)


def _convolution(elements: Number) -> Elementwise:
    """A short causal convolution, bound by its input and output."""
    return Elementwise(
        name="causal_convolution",
        forward_bytes=2.0 * BF16_BYTES * elements,
        backward_bytes=3.0 * BF16_BYTES * elements,
        fusable=False,
    )


def _chunked_scan(
    s: Shapes,
    *,
    name: str,
    chunk: float,
    key_width: Number,
    value_width: Number,
    state: float,
) -> Iterator[Operator]:
    """Products inside chunks and the states passed between them, written and read once."""
    yield Gemm(
        name=name,
        m=chunk,
        n=key_width + value_width + 2.0 * value_width * state / chunk,
        k=chunk,
        groups=s.tokens / chunk,
        precision="bf16",
        dense_weight=False,
        rerun=Recompute.CORE_ATTENTION,
    )
    moved = s.tokens * (key_width + value_width * (1.0 + 2.0 * state / chunk))
    yield Elementwise(
        name=f"{name}_states",
        forward_bytes=2.0 * BF16_BYTES * moved,
        backward_bytes=5.0 * BF16_BYTES * moved,
        kernels=4.0,
        rerun=Recompute.CORE_ATTENTION,
        fusable=False,
    )
