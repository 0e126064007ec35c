"""Families whose layers attend or carry a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_attention, read_latent_attention
from meshplan.inputs.load.hf_families_dense import transformers
from meshplan.inputs.load.hf_family import AttentionFacts, Family, Flag, MlpFacts, MoeFacts
from meshplan.inputs.load.hf_ffn import has_experts, read_mlps, read_moes
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_layer_kinds import Kind, at_indices, by_interval, by_period, kinds
from meshplan.inputs.load.hf_moe_layers import after_dense, all_layers, periodic_moe, sparse_step
from meshplan.inputs.load.hf_recurrent import (
    read_gated_delta,
    read_kimi_delta,
    read_lightning,
    read_mamba1,
    read_mamba2,
    read_recurrence,
    read_short_conv,
)
from meshplan.inputs.load.hf_windows import every_layer
from meshplan.inputs.model import Attention, Ffn, Layer, Mixer, Mlp, Model

__all__ = ["HYBRID", "LFM2", "mixed", "read_lfm2_mixers"]

_BIAS = Flag("attention_bias", False)
_MLP_BIAS = Flag("mlp_bias", False)
Rule = Callable[[Keys, int], "list[Kind] | None"]
Mixers = Callable[[Keys, Family, int, int], "list[Mixer | None]"]


def mixed(
    rule: Rule, state: Callable[[Keys, int], Mixer], attend: Mixers = read_attention
) -> Mixers:
    """Read the attention of some layers and the state mixer of the others."""

    def read(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
        which = kinds(keys, num_layers, rule)
        attention = attend(keys, family, num_layers, hidden) if "attention" in which else None
        other = state(keys, hidden) if "state" in which else None
        if other is None:  # no layer of this file carries a state, though others of its family do
            keys.read_all(*(k for k in keys.data if k.startswith(("mamba_", "linear_", "conv_"))))
        return [
            attention[i] if attention is not None and kind == "attention" else other
            for i, kind in enumerate(which)
        ]

    return read


def _no_ffn(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    return [None] * num_layers


def _mamba1_only(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    return [read_mamba1(keys, hidden, prefix="")] * num_layers


def _mamba2_only(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    mixer = read_mamba2(
        keys,
        hidden,
        heads="num_heads",
        head_dim="head_dim",
        expand="expand",
        groups="n_groups",
        state="state_size",
        conv="conv_kernel",
        chunk="chunk_size",
        conv_bias="use_conv_bias",
        proj_bias="use_bias",
    )
    return [mixer] * num_layers


def _falcon_h1(keys: Keys, family: Family) -> list[Layer]:
    """Attention and a state-space mixer read the same norm; a network follows."""
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    attention = read_attention(keys, family, num_layers, hidden)
    state = read_mamba2(
        keys,
        hidden,
        inner="mamba_d_ssm",
        expand="mamba_expand",
        norm=Flag("mamba_rms_norm", False),
    )
    if keys.flag("projectors_bias", False) != state.proj_bias:
        keys.problem(
            "model_value_unsupported",
            "projectors_bias",
            value=keys.raw("projectors_bias"),
            allowed=(state.proj_bias,),
        )
    keys.read_all("mamba_expand")  # ``mamba_d_ssm`` is what counts
    mlps = read_mlps(keys, family.mlp, num_layers, hidden)
    return [
        Layer(mixer=attention[i], second_mixer=state, ffn=mlps[i], num_norms=2)
        for i in range(num_layers)
    ]


def _granite_positions(keys: Keys, family: Family) -> Family:
    """Attention between state-space blocks knows no positions unless the file says ``rope``."""
    rotary = keys.text("position_embedding_type", "none") == "rope"
    return replace(family, attention=replace(family.attention, rotary=rotary))


def _granite_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """Routed experts beside a shared network, or the shared network alone."""
    if has_experts(keys):
        assert family.moe is not None
        return list(read_moes(keys, family.moe, num_layers))
    keys.read_all("intermediate_size")
    facts = MlpFacts(width="shared_expert_intermediate_size")
    return list(read_mlps(keys, facts, num_layers, hidden))


def _lightning_mixers(
    keys: Keys, family: Family, num_layers: int, hidden: int
) -> list[Mixer | None]:
    """Lightning attention with the heads of the softmax attention (MiniMax-01)."""
    which = kinds(keys, num_layers, _minimax_kinds)
    attention = read_attention(keys, family, num_layers, hidden)
    mixers: list[Mixer | None] = []
    for kind, mixer in zip(which, attention, strict=True):
        assert isinstance(mixer, Attention)
        linear = read_lightning(keys, num_heads=mixer.num_heads, head_dim=mixer.head_dim)
        mixers.append(linear if kind == "state" else mixer)
    return mixers


def _minimax_kinds(keys: Keys, num_layers: int) -> list[Kind] | None:
    """``attn_type_list``: 1 for softmax attention, 0 for lightning attention."""
    if not keys.has("attn_type_list"):
        return None
    marks = keys.sizes("attn_type_list", num_layers, zero=True)
    return ["attention" if mark else "state" for mark in marks]


def _kimi_kinds(keys: Keys, num_layers: int) -> list[Kind] | None:
    """``linear_attn_config`` numbers its layers from 1."""
    if not keys.has("linear_attn_config"):
        return None
    named = keys.section("linear_attn_config").raw("full_attn_layers")
    if not isinstance(named, list):
        keys.missing("linear_attn_config.full_attn_layers")
        return ["attention"] * num_layers
    return ["attention" if i + 1 in named else "state" for i in range(num_layers)]


def _lfm2_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """The inner width is two thirds of the key's, rounded up to ``block_multiple_of``."""
    key = "block_ff_dim" if keys.has("block_ff_dim") else "intermediate_size"
    width = keys.size(key)
    if keys.flag("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        if keys.has("block_ffn_dim_multiplier"):
            width = int(keys.ratio("block_ffn_dim_multiplier") * width)
        multiple = keys.size("block_multiple_of")
        width = -(-width // multiple) * multiple
        keys.note("model_derived", f"{key} = {width} (block_auto_adjust_ff_dim)")
    return [Mlp(ffn_hidden=width, gated=True, bias=False, activation="silu")] * num_layers


def _griffin_kinds(keys: Keys, num_layers: int) -> list[Kind] | None:
    """``block_types`` is repeated over the layers."""
    pattern = keys.raw("block_types") or keys.raw("_block_types")
    if not isinstance(pattern, list) or not pattern:
        keys.missing("block_types")
        return ["attention"] * num_layers
    unknown = sorted({str(p) for p in pattern} - {"attention", "recurrent"})
    if unknown:
        keys.problem(
            "model_layer_type_unknown",
            "block_types",
            value=unknown[0],
            allowed=("attention", "recurrent"),
        )
    return [
        "attention" if pattern[i % len(pattern)] == "attention" else "state"
        for i in range(num_layers)
    ]


def _half_width(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """``intermediate_size`` counts both branches (RecurrentGemma)."""
    width = keys.size("intermediate_size")
    if width % 2:
        keys.problem("model_width_not_whole", "intermediate_size", value=width, width=width / 2)
    keys.note("model_derived", f"ffn_hidden = {width // 2} (intermediate_size / 2)")
    mlp = Mlp(ffn_hidden=max(1, width // 2), gated=True, bias=True, activation="gelu")
    return [mlp] * num_layers


def _minimax_m1(keys: Keys, family: Family, model: Model) -> Model:
    """Refuse what MiniMax's own code supports and no published model uses."""
    if keys.size_or_none("shared_expert_intermediate_size", zero=True):
        keys.problem(
            "model_value_unsupported",
            "shared_intermediate_size",
            value=keys.raw("shared_expert_intermediate_size"),
            allowed=(0,),
        )
    return model


QWEN3_NEXT = Family(
    source=transformers("qwen3_next"),
    attention=AttentionFacts(
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm_if=True,
        head_dim="required",
        output_gate=Flag("attn_output_gate", True),
    ),
    moe=MoeFacts(layers=sparse_step, shared="width", shared_gate=True),
    mixers=mixed(by_interval("full_attention_interval", 4), lambda keys, _: read_gated_delta(keys)),
)
MINIMAX = Family(
    source=transformers("minimax"),
    mixers=_lightning_mixers,
    moe=MoeFacts(layers=all_layers, width="intermediate_size"),
)
MAMBA = Family(
    source=transformers("mamba"), tied=True, num_norms=1, mixers=_mamba1_only, ffns=_no_ffn
)
read_lfm2_mixers = mixed(at_indices("full_attn_idxs"), read_short_conv)
LFM2 = Family(
    source=transformers("lfm2"),
    tied=True,
    attention=AttentionFacts(qk_norm_if=True),
    mixers=read_lfm2_mixers,
    ffns=_lfm2_ffns,
)
BAMBA_MIXERS = mixed(
    at_indices("attn_layer_indices", missing="state"),
    lambda keys, hidden: read_mamba2(keys, hidden, expand="mamba_expand"),
)

HYBRID: dict[str, Family] = {
    "jamba": Family(
        source=transformers("jamba"),
        attention=AttentionFacts(rotary=False, windows=every_layer()),
        mixers=mixed(
            by_period(period="attn_layer_period", offset="attn_layer_offset"),
            lambda keys, hidden: read_mamba1(keys, hidden, inner_norms=True),
        ),
        moe=MoeFacts(
            layers=periodic_moe(period="expert_layer_period", offset="expert_layer_offset"),
            width="intermediate_size",
            optional=True,
        ),
    ),
    "bamba": Family(
        source=transformers("bamba"),
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS),
        mlp=MlpFacts(bias=_MLP_BIAS),
        mixers=BAMBA_MIXERS,
    ),
    "granitemoehybrid": Family(
        source=transformers("granitemoehybrid"),
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, kv_heads="derived"),
        moe=MoeFacts(layers=all_layers, width="intermediate_size", shared="width"),
        refine=_granite_positions,
        mixers=BAMBA_MIXERS,
        ffns=_granite_ffns,
    ),
    "falcon_h1": Family(
        source=transformers("falcon_h1"),
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS),
        mlp=MlpFacts(bias=_MLP_BIAS),
        blocks=_falcon_h1,
    ),
    "mamba": MAMBA,
    "falcon_mamba": replace(MAMBA, source=transformers("falcon_mamba")),
    "mamba2": replace(MAMBA, source=transformers("mamba2"), tied=False, mixers=_mamba2_only),
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5_text": replace(QWEN3_NEXT, source=transformers("qwen3_5"), moe=None),
    "qwen3_5_moe_text": replace(
        QWEN3_NEXT,
        source=transformers("qwen3_5_moe"),
        moe=MoeFacts(layers=all_layers, shared="width", shared_gate=True),
    ),
    "kimi_linear": Family(
        source=transformers("kimi_linear"),
        attention=AttentionFacts(qkv_bias=_BIAS),
        mixers=mixed(
            _kimi_kinds, lambda keys, _: read_kimi_delta(keys), attend=read_latent_attention
        ),
        moe=MoeFacts(layers=after_dense, shared="count"),
    ),
    "minimax": MINIMAX,
    "minimax_m1": replace(
        MINIMAX, source="MiniMaxAI/MiniMax-M1-80k on the Hugging Face hub", finish=_minimax_m1
    ),
    "minimax_text_01": replace(
        MINIMAX, source="MiniMaxAI/MiniMax-Text-01 on the Hugging Face hub", finish=_minimax_m1
    ),
    "lfm2": LFM2,
    "recurrent_gemma": Family(
        source=transformers("recurrent_gemma"),
        tied=True,
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=True, windows=every_layer(2048)),
        mixers=mixed(_griffin_kinds, read_recurrence),
        ffns=_half_width,
    ),
}
