"""Further families, most of them variations of well-known ones."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_attention
from meshplan.inputs.load.hf_families_dense import (
    COHERE,
    GPT2,
    LLAMA,
    MISTRAL,
    OLMO,
    OLMO2,
    QWEN2,
    QWEN3,
    repository,
    transformers,
)
from meshplan.inputs.load.hf_families_hybrid import LFM2, read_lfm2_mixers
from meshplan.inputs.load.hf_families_moe import DEEPSEEK
from meshplan.inputs.load.hf_family import AttentionFacts, Family, Flag, MlpFacts, MoeFacts
from meshplan.inputs.load.hf_ffn import read_ffns, read_mlps, read_moes
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import after_dense, all_layers, listed
from meshplan.inputs.load.hf_mtp import deepseek_mtp
from meshplan.inputs.load.hf_windows import by_layer_types, every_layer, periodic
from meshplan.inputs.model import Attention, Ffn, Mixer, Mlp

__all__ = ["MORE"]

_BIAS = Flag("attention_bias", False)
_MLP_BIAS = Flag("mlp_bias", False)


def _two_scalars(keys: Keys, hidden: int, mixer: Mixer | None, ffn: Ffn | None) -> int:
    """The two learned numbers of xIELU (Apertus)."""
    return 2


def _sub_norms(keys: Keys, hidden: int, mixer: Mixer | None, ffn: Ffn | None) -> int:
    """Norms inside attention and network (BitNet)."""
    assert isinstance(mixer, Attention) and isinstance(ffn, Mlp)
    return mixer.num_heads * mixer.head_dim + ffn.ffn_hidden


def _lambdas(keys: Keys, hidden: int, mixer: Mixer | None, ffn: Ffn | None) -> int:
    """Four vectors that weigh the two attention maps (Differential Transformer)."""
    assert isinstance(mixer, Attention)
    return 4 * mixer.head_dim


def _post_norms(keys: Keys, family: Family) -> Family:
    return replace(family, num_norms=4 if keys.flag("use_post_norm") else 2)


def _hunyuan_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """Experts as wide as ``moe_intermediate_size`` where given, with shared ones beside them."""
    width = "moe_intermediate_size" if keys.has("moe_intermediate_size") else "intermediate_size"
    keys.read_all("intermediate_size", "use_qk_norm", "use_mixed_mlp_moe")
    shared = "count" if keys.has("num_shared_experts") else "none"
    facts = MoeFacts(layers=all_layers, width=width, shared=shared)  # type: ignore[arg-type]
    moes = list(read_moes(keys, facts, num_layers))
    if shared == "none":
        keys.note("model_default", "num_shared_expert = 1 (hunyuan_v1_moe)")
        moes = [replace(m, shared_ffn_hidden=m.expert_ffn_hidden) for m in moes]
    skipped = keys.size_or_none("moe_layer_num_skipped", zero=True) or 0
    if not skipped:
        return list(moes)
    mlps = read_mlps(keys, family.mlp, num_layers, hidden)
    return [mlps[i] if i < skipped else moes[i] for i in range(num_layers)]


def _shared_keys(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    """Every so-manyth layer computes keys and values, the others use them (Hunyuan-Large)."""
    mixers = read_attention(keys, family, num_layers, hidden)
    if not keys.has("use_cla") or not keys.flag("use_cla"):
        return mixers
    factor = keys.size("cla_share_factor")
    return [
        replace(m, kv_shared=i % factor != 0) if isinstance(m, Attention) else m
        for i, m in enumerate(mixers)
    ]


def _dense_first(keys: Keys, num_layers: int) -> list[bool]:
    """``mlp_layer_types``, or ``first_k_dense_replace``, or no dense layer at all."""
    types = listed(keys, num_layers)
    if types is not None:
        return types
    if keys.has("first_k_dense_replace") or keys.has("moe_layer_freq"):
        return after_dense(keys, num_layers)
    return [True] * num_layers


def _mimo_v2_mixers(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    """Layers with a window have twice the key-value heads, and sinks."""
    marks = keys.raw("hybrid_layer_pattern")
    window = keys.size("sliding_window")
    if marks is not None:
        local = [
            m > 0 for m in keys.per_layer("hybrid_layer_pattern", marks, num_layers, zero=True)
        ]
    else:
        types = keys.names_list("layer_types", num_layers)
        if types is None:
            keys.missing("hybrid_layer_pattern")
            types = ["full_attention"] * num_layers
        local = [kind == "sliding_attention" for kind in types]
    whole = read_attention(keys, family, num_layers, hidden)
    mixers: list[Mixer | None] = []
    for mixer, is_local in zip(whole, local, strict=True):
        assert isinstance(mixer, Attention)
        if is_local:
            kv_heads = keys.size_or(
                "swa_num_key_value_heads", 2 * mixer.num_kv_heads, "2 * num_key_value_heads"
            )
            mixer = replace(mixer, num_kv_heads=kv_heads, window_size=window, sinks=True)
        mixers.append(mixer)
    keys.read_all(*(k for k in keys.data if k.startswith(("swa_", "add_"))))
    return mixers


def _cohere2_moe(keys: Keys, family: Family) -> Family:
    if keys.has("prefix_dense_intermediate_size"):
        keys.problem(
            "model_value_unsupported",
            "prefix_dense_intermediate_size",
            value=keys.raw("prefix_dense_intermediate_size"),
            allowed=(None,),
        )
    return family


def _step3_mixers(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    """Multi-matrix factorisation attention: a shared low-rank query, one key-value head."""
    mixer = Attention(
        num_heads=keys.size("num_attention_heads"),
        num_kv_heads=keys.size("num_key_value_heads"),
        head_dim=keys.size("head_dim"),
        v_head_dim=keys.size("head_dim"),
        window_size=None,
        qkv_bias=False,
        out_bias=False,
        qk_norm="none",
        sinks=False,
        rotary=True,
        q_lora_rank=keys.size("share_q_dim"),
    )
    return [mixer] * num_layers


def _step3_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """``moe_layers_enum`` lists the layers with experts; each has a shared expert."""
    text = keys.text("moe_layers_enum")
    named = {part.strip() for part in text.split(",")}
    if not all(part.isdigit() for part in named):
        keys.problem("model_key_not_layers", "moe_layers_enum", value=text)
    mlps = read_mlps(keys, family.mlp, num_layers, hidden)
    facts = MoeFacts(layers=all_layers)
    shared = keys.size("share_expert_dim")
    moes = [replace(m, shared_ffn_hidden=shared) for m in read_moes(keys, facts, num_layers)]
    return [moes[i] if str(i) in named else mlps[i] for i in range(num_layers)]


def _arctic_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """Experts beside a dense network as wide as the residual stream."""
    every = keys.size("moe_layer_frequency")
    moes = read_moes(keys, MoeFacts(layers=all_layers, width="intermediate_size"), num_layers)
    mlps = read_mlps(keys, family.mlp, num_layers, hidden)
    residual = hidden if keys.flag("use_residual", True) else 0
    return [
        replace(moes[i], shared_ffn_hidden=residual) if (i + 1) % every == 0 else mlps[i]
        for i in range(num_layers)
    ]


def _arctic_norm(keys: Keys, hidden: int, mixer: Mixer | None, ffn: Ffn | None) -> int:
    """A third norm where the dense network runs beside the experts."""
    return 0 if isinstance(ffn, Mlp) or ffn is None or not ffn.shared_ffn_hidden else hidden


def _bailing(keys: Keys, family: Family) -> Family:
    bias = keys.flag("use_bias", False)
    return replace(
        family,
        attention=replace(
            family.attention, qkv_bias=keys.flag("use_qkv_bias", False) or bias, out_bias=bias
        ),
        mlp=replace(family.mlp, bias=bias),
    )


def _lfm2_moe_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    keys.read_all("use_expert_bias")
    return read_ffns(keys, replace(family, ffns=None), num_layers, hidden)


EXAONE = replace(
    LLAMA, source=transformers("exaone"), attention=replace(LLAMA.attention, kv_heads="required")
)
AFMOE = Family(
    source=transformers("afmoe"),
    num_norms=4,
    attention=AttentionFacts(
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm_if=True,
        head_dim="required",
        output_gate=True,
        windows=periodic(key="global_attn_every_n_layers", default=4),
    ),
    moe=MoeFacts(layers=after_dense, shared="count", router_bias=True),
)

MORE: dict[str, Family] = {
    "apertus": replace(
        LLAMA,
        source=transformers("apertus"),
        attention=replace(LLAMA.attention, qk_norm_if=True),
        mlp=MlpFacts(gated=False),
        extra=_two_scalars,
    ),
    "bitnet": replace(
        LLAMA,
        source=transformers("bitnet"),
        attention=replace(LLAMA.attention, kv_heads="required"),
        mlp=MlpFacts(),
        extra=_sub_norms,
    ),
    "diffllama": replace(
        LLAMA,
        source=transformers("diffllama"),
        mlp=MlpFacts(),
        extra=_lambdas,
    ),
    "exaone": EXAONE,
    "iquestcoder": replace(EXAONE, source=transformers("iquestcoder")),
    "hyperclovax": replace(LLAMA, source=transformers("hyperclovax"), refine=_post_norms),
    "jais2": Family(
        source=transformers("jais2"),
        norm="layernorm",
        attention=AttentionFacts(
            qkv_bias=Flag("attention_bias", True),
            out_bias=Flag("attention_bias", True),
            kv_heads="derived",
        ),
        mlp=MlpFacts(gated=False, bias=Flag("mlp_bias", True)),
    ),
    "jais": replace(
        GPT2,
        source=repository("inceptionai/jais-13b"),
        mlp=MlpFacts(gated=True, bias=True),
        positions=None,
    ),
    "nanochat": replace(
        OLMO,
        source=transformers("nanochat"),
        mlp=MlpFacts(gated=False),
    ),
    "orion": replace(LLAMA, source=repository("OrionStarAI/Orion-14B-Base"), norm="layernorm"),
    "solar": replace(LLAMA, source=repository("upstage/solar-pro-preview-instruct")),
    "mimo": replace(QWEN2, source=repository("XiaomiMiMo/MiMo-7B-Base"), finish=deepseek_mtp),
    "mimo_v2_flash": Family(
        source=transformers("mimo_v2_flash"),
        attention=AttentionFacts(qkv_bias=_BIAS, head_dim="required", own_v_head_dim=True),
        mixers=_mimo_v2_mixers,
        moe=MoeFacts(layers=after_dense),
    ),
    "hunyuan_v1_moe": replace(
        LLAMA,
        source=transformers("hunyuan_v1_moe"),
        attention=AttentionFacts(
            qkv_bias=_BIAS, out_bias=_BIAS, qk_norm_if=True, kv_heads="required"
        ),
        mlp=MlpFacts(),
        ffns=_hunyuan_ffns,
        mixers=_shared_keys,
    ),
    "hunyuan": replace(
        LLAMA,
        source=repository("tencent/Tencent-Hunyuan-Large"),
        tied=True,
        attention=AttentionFacts(
            qkv_bias=_BIAS, out_bias=_BIAS, qk_norm_if=Flag("use_qk_norm", False)
        ),
        mlp=MlpFacts(),
        ffns=_hunyuan_ffns,
        mixers=_shared_keys,
    ),
    "hy_v3": Family(
        source=transformers("hy_v3"),
        attention=AttentionFacts(
            qkv_bias=_BIAS, out_bias=_BIAS, qk_norm_if=True, head_dim="required"
        ),
        mlp=MlpFacts(bias=_MLP_BIAS),
        moe=MoeFacts(layers=after_dense, shared="count", shared_bias=_MLP_BIAS),
    ),
    "solar_open": Family(
        source=transformers("solar_open"),
        attention=AttentionFacts(qkv_bias=_BIAS, head_dim="required"),
        moe=MoeFacts(layers=_dense_first, shared="count"),
    ),
    "sarvam_moe": Family(
        source=transformers("sarvam_moe"),
        attention=AttentionFacts(
            qkv_bias=_BIAS,
            head_dim="required",
            qk_norm_if=Flag("use_qk_norm", True),
        ),
        moe=MoeFacts(layers=after_dense, shared="count"),
    ),
    "sarvam_mla": replace(DEEPSEEK, source=transformers("sarvam_mla")),
    "youtu": replace(DEEPSEEK, source=transformers("youtu"), tied=True, moe=None, finish=None),
    "flex_olmo": replace(
        OLMO2,
        source=transformers("flex_olmo"),
        moe=MoeFacts(layers=all_layers, width="intermediate_size"),
    ),
    "aria_text": replace(
        LLAMA,
        source=transformers("aria_text"),
        moe=MoeFacts(
            layers=all_layers,
            width="intermediate_size",
            shared="count",
            shared_bias=_MLP_BIAS,
        ),
    ),
    "mellum": replace(
        QWEN3,
        source=transformers("mellum"),
        attention=replace(QWEN3.attention, windows=by_layer_types),
        moe=MoeFacts(layers=_dense_first),
    ),
    "afmoe": AFMOE,
    "cohere2_moe": replace(
        COHERE,
        source=transformers("cohere2_moe"),
        attention=replace(
            COHERE.attention, qk_norm_if=False, head_dim="required", windows=periodic(default=4)
        ),
        moe=MoeFacts(layers=_dense_first, width="intermediate_size", shared="count"),
        refine=_cohere2_moe,
    ),
    "bailing_moe": Family(
        source=repository("inclusionAI/Ling-lite"),
        attention=AttentionFacts(kv_heads="required"),
        moe=MoeFacts(layers=after_dense, shared="count"),
        refine=_bailing,
    ),
    "bailing_moe_v2": Family(
        source=repository("inclusionAI/Ling-mini-2.0"),
        attention=AttentionFacts(qk_norm_if=Flag("use_qk_norm", True)),
        moe=MoeFacts(layers=after_dense, shared="count", router_bias=True),
        refine=_bailing,
        finish=deepseek_mtp,
    ),
    "step3_text": Family(
        source=repository("stepfun-ai/step3"), mixers=_step3_mixers, ffns=_step3_ffns
    ),
    "arctic": replace(
        MISTRAL,
        source=repository("Snowflake/snowflake-arctic-base"),
        attention=AttentionFacts(windows=every_layer()),
        ffns=_arctic_ffns,
        extra=_arctic_norm,
    ),
    "lfm2_moe": replace(
        LFM2,
        source=transformers("lfm2_moe"),
        mixers=read_lfm2_mixers,
        ffns=_lfm2_moe_ffns,
        moe=MoeFacts(layers=after_dense),
    ),
    "phi4mm": Family(
        source=repository("microsoft/Phi-4-multimodal-instruct"),
        tied=False,
        attention=AttentionFacts(kv_heads="derived", windows=every_layer()),
    ),
}
