"""MPT and DBRX, whose attention and networks stand in sections of their own."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_attention
from meshplan.inputs.load.hf_families_dense import transformers
from meshplan.inputs.load.hf_family import AttentionFacts, Family, MoeFacts, Positions
from meshplan.inputs.load.hf_ffn import read_moes
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import all_layers
from meshplan.inputs.model import Attention, Ffn, Mixer, Mlp

__all__ = ["MOSAIC"]


def _mpt(keys: Keys, family: Family) -> Family:
    """Positions, norms and key-value heads stand in ``attn_config``; one key decides biases."""
    inner = keys.section("attn_config")
    kind = inner.text("attn_type", "multihead_attention")
    alibi = inner.flag("alibi", False)
    bias = not keys.flag("no_bias", True)
    attention = replace(
        family.attention,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="full",
        qk_norm_if=inner.flag("qk_ln", False),
        rotary=bool(inner.raw("rope")),
    )
    if kind == "multiquery_attention":
        attention = replace(attention, kv_heads="single")
    elif kind == "grouped_query_attention":
        attention = replace(attention, kv_heads="nested")
    elif kind != "multihead_attention":
        inner.problem(
            "model_value_unsupported",
            "attn_type",
            value=kind,
            allowed=("multihead_attention", "grouped_query_attention", "multiquery_attention"),
        )
    learned = keys.flag("learned_pos_emb", True) and not alibi and not attention.rotary
    norm = keys.text("norm_type", "low_precision_layernorm")
    return replace(
        family,
        attention=attention,
        mlp=replace(family.mlp, bias=bias),
        positions=Positions(key="max_seq_len") if learned else None,
        norm="rmsnorm" if "rms" in norm else "layernorm" if bias else "layernorm_no_bias",
    )


def _mpt_mixers(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    if family.attention.kv_heads != "nested":
        return read_attention(keys, family, num_layers, hidden)
    kv_heads = keys.section("attn_config").size("num_key_value_heads")
    same = replace(family, attention=replace(family.attention, kv_heads="same"))
    mixers = read_attention(keys, same, num_layers, hidden)
    return [replace(m, num_kv_heads=kv_heads) if isinstance(m, Attention) else m for m in mixers]


def _mpt_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    width = keys.ratio("expansion_ratio") * hidden
    if width != int(width):
        keys.problem(
            "model_width_not_whole",
            "expansion_ratio",
            value=keys.raw("expansion_ratio"),
            width=width,
        )
    gated = False
    if keys.has("ffn_config"):
        kind = keys.section("ffn_config").text("ffn_type", "mptmlp")
        gated = kind == "mptglu"
        if kind not in ("mptmlp", "mptglu"):
            keys.problem(
                "model_value_unsupported",
                "ffn_config: ffn_type",
                value=kind,
                allowed=("mptmlp", "mptglu"),
            )
    bias = bool(family.mlp.bias)
    return [Mlp(ffn_hidden=int(width), gated=gated, bias=bias, activation="gelu")] * num_layers


def _dbrx_mixers(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    kv_heads = keys.section("attn_config").size("num_key_value_heads")
    mixers = read_attention(keys, family, num_layers, hidden)
    return [replace(m, num_kv_heads=kv_heads) if isinstance(m, Attention) else m for m in mixers]


def _dbrx_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    inner = keys.section("ffn_config")
    return list(
        read_moes(inner, MoeFacts(layers=all_layers, width="intermediate_size"), num_layers)
    )


MOSAIC: dict[str, Family] = {
    "mpt": Family(
        source=transformers("mpt"),
        tied=True,
        attention=AttentionFacts(kv_heads="same"),
        refine=_mpt,
        mixers=_mpt_mixers,
        ffns=_mpt_ffns,
    ),
    "dbrx": Family(
        source=transformers("dbrx"),
        norm="layernorm_no_bias",
        attention=AttentionFacts(kv_heads="same"),
        mixers=_dbrx_mixers,
        ffns=_dbrx_ffns,
    ),
}
