"""Operators of mixers with a recurrent state or a short convolution instead of scores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshplan.cost.operators.elementwise import activation, norm
from meshplan.cost.operators.records import Elementwise, Gemm, Number, Operator, Scan, Shapes
from meshplan.inputs.model import GatedRecurrence, LinearAttention, ShortConv, StateSpace
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
    for inner width ``d``, state ``n`` and ``g`` groups [2]_; its backward pass runs the convolution
    and the states again [3]_. Mamba 1 runs a scan that memory traffic of the ``d``-wide streams
    bounds; its state stays on chip [1]_.

    References:
        .. [1] Gu and Dao, Mamba, arXiv:2312.00752, section 3.3.
        .. [2] Dao and Gu, Transformers are SSMs, arXiv:2405.21060, section 6.
        .. [3] mamba_ssm, ops/triton/ssd_combined.py, ``MambaSplitConv1dScanCombinedFn``.
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
    yield _convolution(s.tokens * conv_width, again=mixer.version == 2)
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
        yield _state_space_scan(
            s, chunk=float(mixer.chunk_size), key_width=groups * state, inner=inner, state=state
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
    yield _delta_rule_scan(
        s,
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


def _convolution(elements: Number, *, again: bool = False) -> Scan:
    """A short causal convolution: reads and writes once; backward reads two and writes one.

    Args:
        elements: tokens times channels.
        again: the backward pass runs it once more.
    """
    repeated = 2.0 if again else 0.0
    return Scan(
        name="causal_convolution",
        kind="convolution",
        forward_flop=0.0,
        forward_bytes=2.0 * BF16_BYTES * elements,
        backward_bytes=(3.0 + repeated) * BF16_BYTES * elements,
    )


def _state_space_scan(
    s: Shapes, *, chunk: float, key_width: Number, inner: Number, state: float
) -> Scan:
    """Mamba 2 inside chunks of ``c`` tokens and between them, kernel by kernel [1]_.

    Equation: per token ``6 d + 12 d n / c + 8 w + 8 w c / n`` bytes forward for keys of width
    ``w = g n`` in ``g`` groups: states of a chunk (``2 d + 2 w + 4 d n / c``, in 32 bits), passed
    on (``6 d n / c``), scores of a group (``4 w + 4 c g``, in 32 bits), outputs
    (``4 d + 2 w + 2 d n / c + 4 c g``). Backward ``22 d + 34 d n / c + 38 w + 24 c g``: scores
    and states again, gradients of the states, passed back with the states, and those of inputs,
    keys, queries, scores and decays.

    References:
        .. [1] mamba_ssm 2.3, ops/triton/ssd_combined.py, ``_mamba_chunk_scan_combined_fwd`` and
           ``_mamba_chunk_scan_combined_bwd``.
    """
    states = inner * (state / chunk)
    scores = key_width * (chunk / state)
    forward = 6.0 * inner + 12.0 * states + 8.0 * key_width + 8.0 * scores
    backward = 22.0 * inner + 34.0 * states + 38.0 * key_width + 24.0 * scores
    return Scan(
        name="state_space_scan",
        kind="state_space",
        forward_flop=2.0 * s.tokens * (chunk * (key_width + inner) + 2.0 * inner * state),
        forward_bytes=s.tokens * forward,
        backward_bytes=s.tokens * backward,
        kernels=5.0,
    )


def _delta_rule_scan(
    s: Shapes, *, chunk: float, key_width: Number, value_width: Number, state: float
) -> Scan:
    """Products inside chunks and the states passed between them, written and read once.

    The delta rule adds the triangular solve of each chunk to the scan, hence twice the keys.
    """
    moved = s.tokens * (key_width + value_width * (1.0 + 2.0 * state / chunk))
    products = chunk * (key_width + value_width) + 2.0 * value_width * state
    return Scan(
        name="delta_rule_scan",
        kind="delta_rule",
        forward_flop=2.0 * s.tokens * products,
        forward_bytes=2.0 * BF16_BYTES * moved,
        backward_bytes=5.0 * BF16_BYTES * moved,
        kernels=5.0,
    )
