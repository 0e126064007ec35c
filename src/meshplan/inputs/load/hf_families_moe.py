"""Families with experts, with or without latent attention."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_latent_attention
from meshplan.inputs.load.hf_families_dense import (
    GLM4,
    LLAMA,
    MISTRAL,
    OLMO2,
    QWEN2,
    QWEN3,
    transformers,
)
from meshplan.inputs.load.hf_family import AttentionFacts, Family, Flag, MlpFacts, MoeFacts
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import after_dense, all_layers, interval, sparse_step
from meshplan.inputs.load.hf_mtp import deepseek_mtp
from meshplan.inputs.load.hf_windows import alternating, every_layer

__all__ = ["MOE"]

_BIAS = Flag("attention_bias", False)

DEEPSEEK = Family(
    source=transformers("deepseek_v3"),
    attention=AttentionFacts(qkv_bias=_BIAS),
    mixers=read_latent_attention,
    moe=MoeFacts(layers=after_dense, shared="count"),
    finish=deepseek_mtp,
)
MIXTRAL = replace(
    MISTRAL,
    source=transformers("mixtral"),
    attention=AttentionFacts(windows=every_layer()),
    moe=MoeFacts(layers=all_layers, width="intermediate_size"),
)
GRANITE_MOE = Family(
    source=transformers("granitemoe"),
    attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, kv_heads="derived"),
    moe=MoeFacts(layers=all_layers, width="intermediate_size"),
)


def _ernie(keys: Keys, family: Family) -> Family:
    """One key decides about all biases."""
    bias = keys.flag("use_bias", False)
    return replace(
        family,
        attention=replace(family.attention, qkv_bias=bias, out_bias=bias),
        mlp=replace(family.mlp, bias=bias),
        moe=replace(family.moe, shared_bias=bias) if family.moe else None,
        head_bias=bias,
    )


def _softmax_only(keys: Keys, family: Family) -> Family:
    """MiniMax-M2 keeps the list of its predecessor, with softmax attention in every layer."""
    marks = keys.raw("attn_type_list")
    if isinstance(marks, list) and any(mark != 1 for mark in marks):
        keys.problem("model_value_unsupported", "attn_type_list", value=marks, allowed=(1,))
    return family


MOE: dict[str, Family] = {
    "deepseek": Family(
        source="deepseek-ai/deepseek-moe-16b-base on the Hugging Face hub",
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, kv_heads="derived"),
        moe=MoeFacts(layers=after_dense, shared="count", optional=True),
    ),
    "deepseek_v2": replace(
        DEEPSEEK,
        source=transformers("deepseek_v2"),
        mlp=MlpFacts(bias=Flag("mlp_bias", False)),
        moe=MoeFacts(layers=after_dense, shared="count", shared_bias=Flag("mlp_bias", False)),
    ),
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": replace(
        DEEPSEEK,
        source=transformers("deepseek_v32"),
        attention=AttentionFacts(qkv_bias=_BIAS, indexed=True),
    ),
    "kimi_k2": DEEPSEEK,
    "glm4_moe_lite": replace(DEEPSEEK, source=transformers("glm4_moe_lite")),
    "glm_moe_dsa": replace(
        DEEPSEEK,
        source=transformers("glm_moe_dsa"),
        attention=AttentionFacts(qkv_bias=_BIAS, indexed=True),
    ),
    "mixtral": MIXTRAL,
    "qwen2_moe": replace(
        QWEN2,
        source=transformers("qwen2_moe"),
        attention=replace(QWEN2.attention, qkv_bias=Flag("qkv_bias", True)),
        moe=MoeFacts(layers=sparse_step, shared="width", shared_gate=True),
    ),
    "qwen3_moe": replace(
        QWEN3,
        source=transformers("qwen3_moe"),
        attention=replace(QWEN3.attention, head_dim="derived"),
        moe=MoeFacts(layers=sparse_step),
    ),
    "olmoe": replace(
        OLMO2,
        source=transformers("olmoe"),
        moe=MoeFacts(layers=all_layers, width="intermediate_size"),
    ),
    "phimoe": Family(
        source=transformers("phimoe"),
        norm="layernorm",
        head_bias=Flag("lm_head_bias", False),
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, windows=every_layer()),
        moe=MoeFacts(layers=all_layers, width="intermediate_size"),
    ),
    "gpt_oss": Family(
        source=transformers("gpt_oss"),
        attention=AttentionFacts(
            qkv_bias=Flag("attention_bias", True),
            out_bias=Flag("attention_bias", True),
            head_dim="required",
            sinks=True,
            windows=alternating,
        ),
        moe=MoeFacts(
            layers=all_layers,
            width="intermediate_size",
            bias=True,
            router_bias=True,
            clamped=True,
        ),
    ),
    "glm4_moe": replace(
        GLM4,
        source=transformers("glm4_moe"),
        num_norms=2,
        attention=replace(GLM4.attention, qk_norm_if=Flag("use_qk_norm", False)),
        moe=MoeFacts(layers=after_dense, shared="count"),
        finish=deepseek_mtp,
    ),
    "dots1": Family(
        source=transformers("dots1"),
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, qk_norm_if=True),
        moe=MoeFacts(layers=after_dense, shared="count"),
    ),
    "ernie4_5_moe": Family(
        source=transformers("ernie4_5_moe"),
        tied=True,
        moe=MoeFacts(layers=interval, shared="count", router_bias=True),
        refine=_ernie,
    ),
    "granitemoe": GRANITE_MOE,
    "granitemoeshared": replace(
        GRANITE_MOE,
        source=transformers("granitemoeshared"),
        moe=MoeFacts(layers=all_layers, width="intermediate_size", shared="width"),
    ),
    "minimax_m2": Family(
        source=transformers("minimax_m2"),
        attention=AttentionFacts(qk_norm="full", qk_norm_if=True),
        moe=MoeFacts(layers=all_layers, width="intermediate_size"),
        refine=_softmax_only,
    ),
    "minicpm3": replace(
        LLAMA,
        source=transformers("minicpm3"),
        tied=True,
        attention=AttentionFacts(qkv_bias=_BIAS),
        mixers=read_latent_attention,
        mlp=MlpFacts(bias=Flag("mlp_bias", False)),
    ),
}
