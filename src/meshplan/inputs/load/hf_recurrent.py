"""Read mixers that carry a state along the sequence."""

from __future__ import annotations

from meshplan.inputs.load.hf_family import Flag, flag
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.model import GatedRecurrence, LinearAttention, ShortConv, StateSpace

__all__ = [
    "read_gated_delta",
    "read_kimi_delta",
    "read_lightning",
    "read_mamba1",
    "read_mamba2",
    "read_recurrence",
    "read_short_conv",
]


def read_mamba1(
    keys: Keys, hidden: int, *, prefix: str = "mamba_", inner_norms: bool = False
) -> StateSpace:
    """Read a Mamba-1 mixer; Jamba's keys start with ``mamba_`` and it norms dt, B and C."""
    names = (
        ("mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias")
        if prefix
        else ("state_size", "conv_kernel", "time_step_rank", "use_conv_bias", "use_bias")
    )
    state = keys.size(names[0])
    rank = _dt_rank(keys, names[2], hidden)
    if not prefix and keys.has("intermediate_size"):  # what the class goes by, whatever ``expand``
        inner = keys.size("intermediate_size")
        keys.read_all("expand")
    else:
        inner = _expanded(keys, f"{prefix}expand", hidden)
        if not prefix:
            keys.note("model_derived", f"intermediate_size = {inner} (expand * hidden_size)")
    return StateSpace(
        version=1,
        inner_dim=inner,
        state_dim=state,
        num_heads=0,
        num_groups=0,
        conv_kernel=keys.size(names[1]),
        dt_rank=rank,
        chunk_size=0,
        conv_bias=keys.flag(names[3], True),
        proj_bias=keys.flag(names[4], False),
        inner_norms=rank + 2 * state if inner_norms else 0,
    )


def _dt_rank(keys: Keys, key: str, hidden: int) -> int:
    value = keys.raw(key)
    if value == "auto":
        rank = -(-hidden // 16)
        keys.note("model_derived", f"{key} = {rank} (ceil(hidden_size / 16))")
        return rank
    return keys.size(key)


def _expanded(keys: Keys, key: str, hidden: int) -> int:
    """Inner width from an expansion factor, which may be a fraction."""
    inner = keys.ratio(key) * hidden
    if inner != int(inner):
        keys.problem("model_width_not_whole", key, value=keys.raw(key), width=inner)
    return max(1, int(inner))


def read_mamba2(
    keys: Keys,
    hidden: int,
    *,
    heads: str = "mamba_n_heads",
    head_dim: str = "mamba_d_head",
    inner: str = "",
    expand: str = "",
    groups: str = "mamba_n_groups",
    state: str = "mamba_d_state",
    conv: str = "mamba_d_conv",
    chunk: str = "mamba_chunk_size",
    conv_bias: str = "mamba_conv_bias",
    proj_bias: str = "mamba_proj_bias",
    norm: bool | Flag = True,
) -> StateSpace:
    """Read a Mamba-2 mixer.

    The inner width is ``inner`` where the family has a key for it, else ``expand`` times the
    hidden width, else heads times head width; where two of them are given they must agree.
    """
    num_heads = keys.size(heads)
    width = _inner_dim(keys, hidden, num_heads, head_dim, inner, expand)
    if not keys.problems and width % num_heads:
        keys.problem("model_inner_not_divisible", heads, value=num_heads, width=width)
    return StateSpace(
        version=2,
        inner_dim=width,
        state_dim=keys.size(state),
        num_heads=num_heads,
        num_groups=keys.size(groups),
        conv_kernel=keys.size(conv),
        dt_rank=0,
        chunk_size=keys.size_default(chunk, 256),
        conv_bias=keys.flag(conv_bias, True),
        proj_bias=keys.flag(proj_bias, False),
        inner_norms=width if flag(keys, norm) else 0,
    )


def _inner_dim(
    keys: Keys, hidden: int, num_heads: int, head_dim: str, inner: str, expand: str
) -> int:
    given = keys.raw(head_dim)
    by_heads = None
    if given not in (None, "auto"):
        by_heads = num_heads * keys.check_size(head_dim, given)
    if inner and keys.has(inner):
        return keys.size(inner)
    if expand:
        width = _expanded(keys, expand, hidden)
        if by_heads is not None and by_heads != width and not keys.problems:
            keys.problem(
                "model_inner_disagrees",
                head_dim,
                value=given,
                heads=num_heads,
                by_heads=by_heads,
                width=width,
            )
        return width
    if by_heads is None:
        keys.missing(head_dim)
        return num_heads
    return by_heads


def read_gated_delta(keys: Keys) -> LinearAttention:
    """Read gated delta-rule attention (Qwen3-Next)."""
    key_heads, value_heads = keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads")
    if not keys.problems and value_heads % key_heads:
        keys.problem(
            "model_kv_heads_not_divisor",
            "linear_num_key_heads",
            value=key_heads,
            heads=value_heads,
            layer=0,
        )
    return LinearAttention(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_head_dim=keys.size("linear_key_head_dim"),
        value_head_dim=keys.size("linear_value_head_dim"),
        conv_kernel=keys.size("linear_conv_kernel_dim"),
        rule="gated_delta",
    )


def read_kimi_delta(keys: Keys) -> LinearAttention:
    """Read Kimi Delta Attention, from ``linear_attn_config`` or from keys of its own."""
    if keys.has("linear_attn_config"):
        inner = keys.section("linear_attn_config")
        heads, width = inner.size("num_heads"), inner.size("head_dim")
        kernel = inner.size("short_conv_kernel_size")
    else:
        heads, width = keys.size("linear_num_heads"), keys.size("linear_head_dim")
        kernel = keys.size("linear_conv_kernel_dim")
    return LinearAttention(
        num_key_heads=heads,
        num_value_heads=heads,
        key_head_dim=width,
        value_head_dim=width,
        conv_kernel=kernel,
        rule="kimi_delta",
    )


def read_lightning(keys: Keys, *, num_heads: int, head_dim: int) -> LinearAttention:
    """Read lightning attention: as many heads, as wide, as the softmax attention beside it."""
    return LinearAttention(
        num_key_heads=num_heads,
        num_value_heads=num_heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        conv_kernel=0,
        rule="lightning",
    )


def read_short_conv(keys: Keys, hidden: int) -> ShortConv:
    """Read the gated short convolution of LFM2."""
    return ShortConv(
        inner_dim=hidden,
        conv_kernel=keys.size("conv_L_cache"),
        bias=keys.flag("conv_bias", False),
    )


def read_recurrence(keys: Keys, hidden: int) -> GatedRecurrence:
    """Read the recurrent block of RecurrentGemma."""
    return GatedRecurrence(
        inner_dim=keys.size_or("lru_width", hidden, "hidden_size"),
        num_heads=keys.size("num_attention_heads"),
        conv_kernel=keys.size("conv1d_width"),
    )
