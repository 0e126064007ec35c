"""The weights of mixers that carry a state along the sequence instead of scoring all pairs."""

from __future__ import annotations

from meshplan.cost.matrices import Vector, Weights, columns, rows, whole
from meshplan.inputs.model import GatedRecurrence, LinearAttention, ShortConv, StateSpace

__all__ = ["gated_recurrence", "linear_attention", "mamba1", "mamba2", "short_conv"]


def mamba1(s: StateSpace, hidden: int) -> Weights:
    """Selective state space; see Gu and Dao 2023 (arXiv 2312.00752), section 3."""
    d = s.inner_dim
    return Weights(
        projections=(
            columns("in_proj", hidden, d, 2, bias=s.proj_bias),
            rows("x_proj", d, 1, s.dt_rank + 2 * s.state_dim),
            columns("dt_proj", s.dt_rank, d, 1, bias=True),
            rows("out_proj", d, 1, hidden, bias=s.proj_bias),
        ),
        vectors=(
            Vector(name="conv1d", size=d * (s.conv_kernel + s.conv_bias), num_units=d),
            Vector(name="a_log", size=d * s.state_dim, num_units=d),
            Vector(name="d", size=d, num_units=d),
            Vector(name="inner_norms", size=s.inner_norms),
        ),
    )


def mamba2(s: StateSpace, hidden: int) -> Weights:
    """State-space duality; see Dao and Gu 2024 (arXiv 2405.21060), section 7."""
    head_dim = s.inner_dim // s.num_heads
    taps = s.conv_kernel + s.conv_bias
    return Weights(
        projections=(
            columns("in_proj", hidden, s.num_heads, 2 * head_dim + 1, bias=s.proj_bias),
            columns("bc_proj", hidden, s.num_groups, 2 * s.state_dim, bias=s.proj_bias),
            rows("out_proj", s.num_heads, head_dim, hidden, bias=s.proj_bias),
        ),
        vectors=(
            Vector(name="conv1d_x", size=s.inner_dim * taps, num_units=s.num_heads),
            Vector(
                name="conv1d_bc",
                size=2 * s.num_groups * s.state_dim * taps,
                num_units=s.num_groups,
            ),
            Vector(name="a_log_d_dt_bias", size=3 * s.num_heads, num_units=s.num_heads),
            Vector(name="inner_norms", size=s.inner_norms, num_units=s.num_heads),
        ),
    )


def linear_attention(a: LinearAttention, hidden: int) -> Weights:
    """Attention with a recurrent state, by its update rule."""
    match a.rule:
        case "gated_delta":
            return _gated_delta(a, hidden)
        case "kimi_delta":
            return _kimi_delta(a, hidden)
        case "lightning":
            return _lightning(a, hidden)


def _gated_delta(a: LinearAttention, hidden: int) -> Weights:
    """Gated DeltaNet; see Yang et al. 2024 (arXiv 2412.06464)."""
    keys, values = a.num_key_heads, a.num_value_heads
    taps = a.conv_kernel
    return Weights(
        projections=(
            columns("q_proj", hidden, keys, a.key_head_dim),
            columns("k_proj", hidden, keys, a.key_head_dim),
            columns("v_proj", hidden, values, a.value_head_dim),
            columns("gate_proj", hidden, values, a.value_head_dim),
            columns("ba_proj", hidden, values, 2),
            rows("o_proj", values, a.value_head_dim, hidden),
        ),
        vectors=(
            Vector(name="conv1d_qk", size=2 * keys * a.key_head_dim * taps, num_units=keys),
            Vector(name="conv1d_v", size=values * a.value_head_dim * taps, num_units=values),
            Vector(name="a_log_dt_bias", size=2 * values, num_units=values),
            Vector(name="out_norm", size=a.value_head_dim),
        ),
    )


def _kimi_delta(a: LinearAttention, hidden: int) -> Weights:
    """Kimi Delta Attention; see Kimi Linear (arXiv 2510.26692), section 4."""
    keys, values, taps = a.num_key_heads, a.num_value_heads, a.conv_kernel
    return Weights(
        projections=(
            columns("q_proj", hidden, keys, a.key_head_dim),
            columns("k_proj", hidden, keys, a.key_head_dim),
            columns("v_proj", hidden, values, a.value_head_dim),
            whole("f_a_proj", hidden, a.value_head_dim),
            columns("f_b_proj", a.value_head_dim, keys, a.key_head_dim),
            columns("b_proj", hidden, values, 1),
            whole("g_a_proj", hidden, a.value_head_dim),
            columns("g_b_proj", a.value_head_dim, values, a.value_head_dim),
            rows("o_proj", values, a.value_head_dim, hidden),
        ),
        vectors=(
            Vector(name="conv1d_qk", size=2 * keys * a.key_head_dim * taps, num_units=keys),
            Vector(name="conv1d_v", size=values * a.value_head_dim * taps, num_units=values),
            Vector(name="a_log", size=values, num_units=values),
            Vector(name="dt_bias", size=keys * a.key_head_dim, num_units=keys),
            Vector(name="out_norm", size=a.value_head_dim),
        ),
    )


def _lightning(a: LinearAttention, hidden: int) -> Weights:
    """Lightning attention; see MiniMax-01 (arXiv 2501.08313), section 2.2."""
    keys, values = a.num_key_heads, a.num_value_heads
    return Weights(
        projections=(
            columns("q_proj", hidden, keys, a.key_head_dim),
            columns("k_proj", hidden, keys, a.key_head_dim),
            columns("v_proj", hidden, values, a.value_head_dim),
            columns("gate_proj", hidden, values, a.value_head_dim),
            rows("o_proj", values, a.value_head_dim, hidden),
        ),
        vectors=(Vector(name="out_norm", size=values * a.value_head_dim, num_units=values),),
    )


def short_conv(c: ShortConv, hidden: int) -> Weights:
    """Gated short convolution; see Liquid AI, LFM2 (arXiv 2511.23404)."""
    return Weights(
        projections=(
            columns("in_proj", hidden, c.inner_dim, 3, bias=c.bias),
            rows("out_proj", c.inner_dim, 1, hidden, bias=c.bias),
        ),
        vectors=(
            Vector(
                name="conv1d", size=c.inner_dim * (c.conv_kernel + c.bias), num_units=c.inner_dim
            ),
        ),
    )


def gated_recurrence(r: GatedRecurrence, hidden: int) -> Weights:
    """Griffin's recurrent block; see De et al. 2024 (arXiv 2402.19427), section 2.4."""
    d, block = r.inner_dim, r.inner_dim // r.num_heads
    return Weights(
        projections=(
            columns("linear_y", hidden, r.num_heads, block, bias=True),
            columns("linear_x", hidden, r.num_heads, block, bias=True),
            rows("linear_out", r.num_heads, block, hidden, bias=True),
        ),
        vectors=(
            Vector(name="conv1d", size=d * (r.conv_kernel + 1), num_units=r.num_heads),
            Vector(name="gates", size=2 * (d * block + d), num_units=r.num_heads),
            Vector(name="recurrence", size=d, num_units=r.num_heads),
        ),
    )
