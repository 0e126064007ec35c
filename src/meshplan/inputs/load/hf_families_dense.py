"""Families of dense decoders.

Facts are those of the model and configuration classes in Hugging Face Transformers 5.24
(``models/<family>``), or of the code that the model's own repository carries, where a source says
so. Totals computed from them agree with the classes to the last parameter (``tests/golden``).
"""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_family import (
    AttentionFacts,
    Family,
    Flag,
    MlpFacts,
    MoeFacts,
    Positions,
)
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import all_layers
from meshplan.inputs.load.hf_windows import (
    alternating,
    by_layer_types,
    every_layer,
    periodic,
    qwen2_windows,
)

__all__ = ["DENSE", "repository", "transformers"]


def transformers(folder: str) -> str:
    """Name the source of a family that Transformers implements."""
    return f"Hugging Face Transformers 5.24, models/{folder}"


def repository(name: str) -> str:
    """Name the source of a family whose code stands in the model's own repository."""
    return f"{name} on the Hugging Face hub, configuration and modeling files"


_BIAS = Flag("attention_bias", False)
_MLP_BIAS = Flag("mlp_bias", False)

LLAMA = Family(
    source=transformers("llama"),
    attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, kv_heads="derived"),
    mlp=MlpFacts(bias=_MLP_BIAS),
)
MISTRAL = Family(
    source=transformers("mistral"), attention=AttentionFacts(windows=every_layer(4096))
)
QWEN2 = Family(
    source=transformers("qwen2"),
    attention=AttentionFacts(qkv_bias=True, windows=qwen2_windows),
)
QWEN3 = Family(
    source=transformers("qwen3"),
    attention=AttentionFacts(
        qkv_bias=_BIAS, out_bias=_BIAS, qk_norm_if=True, head_dim="required", windows=qwen2_windows
    ),
)
GEMMA = Family(
    source=transformers("gemma"),
    tied=True,
    attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, head_dim="required"),
)
GEMMA2 = replace(
    GEMMA,
    source=transformers("gemma2"),
    num_norms=4,
    attention=replace(GEMMA.attention, windows=alternating),
)
GEMMA3 = replace(
    GEMMA2,
    source=transformers("gemma3"),
    attention=replace(GEMMA.attention, qk_norm_if=True, windows=periodic(default=6)),
)
COHERE = Family(
    source=transformers("cohere"),
    tied=True,
    norm="layernorm_no_bias",
    num_norms=1,
    parallel=True,
    attention=AttentionFacts(
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        kv_heads="derived",
        qk_norm="full",
        qk_norm_if=Flag("use_qk_norm", False),
    ),
)
OLMO = Family(
    source=transformers("olmo"),
    norm="layernorm_no_params",
    attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, kv_heads="derived"),
)
OLMO2 = replace(
    OLMO,
    source=transformers("olmo2"),
    norm="rmsnorm",
    attention=replace(OLMO.attention, qk_norm="full", qk_norm_if=True),
)
GPT2 = Family(
    source=transformers("gpt2"),
    tied=True,
    norm="layernorm",
    attention=AttentionFacts(qkv_bias=True, out_bias=True, kv_heads="same", rotary=False),
    mlp=MlpFacts(gated=False, bias=True, multiple=4),
    positions=Positions(key="n_positions"),
)
GPTJ = Family(
    source=transformers("gptj"),
    norm="layernorm",
    num_norms=1,
    parallel=True,
    head_bias=True,
    attention=AttentionFacts(kv_heads="same"),
    mlp=MlpFacts(gated=False, bias=True, multiple=4),
)
PHI = Family(
    source=transformers("phi"),
    norm="layernorm",
    num_norms=1,
    parallel=True,
    head_bias=True,
    attention=AttentionFacts(
        qkv_bias=True,
        out_bias=True,
        kv_heads="derived",
        qk_norm_if=Flag("qk_layernorm", False),
        qk_norm_bias=True,
    ),
    mlp=MlpFacts(gated=False, bias=True),
)
GLM4 = Family(
    source=transformers("glm4"),
    num_norms=4,
    attention=AttentionFacts(qkv_bias=Flag("attention_bias", False), head_dim="required"),
)
INTERNLM2 = Family(
    source=repository("internlm/internlm2_5-7b"),
    attention=AttentionFacts(qkv_bias=Flag("bias"), out_bias=Flag("bias")),
)


def _gpt_bigcode(keys: Keys, family: Family) -> Family:
    """One key-value head with ``multi_query`` (its default), else as many as query heads."""
    if keys.flag("multi_query", True):
        keys.read_all("num_key_value_heads")
        return replace(family, attention=replace(family.attention, kv_heads="single"))
    return family


def _starcoder2(keys: Keys, family: Family) -> Family:
    """One key decides about all biases."""
    bias = keys.flag("use_bias", True)
    return replace(
        family,
        attention=replace(family.attention, qkv_bias=bias, out_bias=bias),
        mlp=replace(family.mlp, bias=bias),
    )


def _parallel_residual(keys: Keys, family: Family) -> Family:
    """Attention and MLP side by side share one norm (StableLM)."""
    if keys.flag("use_parallel_residual", False):
        return replace(family, num_norms=1, parallel=True)
    return family


def _baichuan(keys: Keys, family: Family) -> Family:
    """The 7B rotates and bounds its positions; the 13B has ALiBi and names no bound of its own.

    Source: ``modeling_baichuan.py`` of both repositories; the config of the 13B has only
    ``model_max_length``.
    """
    if keys.has("max_position_embeddings"):
        return family
    keys.note("model_derived", "alibi = true (max_position_embeddings)")
    return replace(family, attention=replace(family.attention, rotary=False))


DENSE: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "ministral": replace(
        MISTRAL,
        source=transformers("ministral"),
        attention=AttentionFacts(windows=by_layer_types),
    ),
    "ministral3": replace(
        MISTRAL,
        source=transformers("ministral3"),
        attention=AttentionFacts(head_dim="required", windows=by_layer_types),
    ),
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "vaultgemma": replace(GEMMA2, source=transformers("vaultgemma"), num_norms=2),
    "phi": PHI,
    "phi-msft": replace(
        PHI,
        source=repository("microsoft/phi-2"),
        mlp=MlpFacts(gated=False, bias=True, multiple=4),
        attention=replace(PHI.attention, qk_norm_if=False),
    ),
    "phi3": Family(
        source=transformers("phi3"),
        attention=AttentionFacts(kv_heads="derived", windows=every_layer()),
    ),
    "cohere": COHERE,
    "cohere2": replace(
        COHERE,
        source=transformers("cohere2"),
        attention=replace(
            COHERE.attention, qk_norm_if=False, head_dim="required", windows=periodic(default=4)
        ),
    ),
    "olmo": OLMO,
    "olmo2": OLMO2,
    "olmo3": replace(
        OLMO2,
        source=transformers("olmo3"),
        attention=replace(OLMO2.attention, windows=periodic(default=4)),
    ),
    "granite": replace(LLAMA, source=transformers("granite")),
    "cwm": replace(
        LLAMA,
        source=transformers("cwm"),
        attention=AttentionFacts(head_dim="required", windows=by_layer_types),
    ),
    "helium": replace(
        LLAMA,
        source=transformers("helium"),
        attention=AttentionFacts(qkv_bias=_BIAS, head_dim="required"),
    ),
    "smollm3": replace(
        LLAMA,
        source=transformers("smollm3"),
        tied=True,
        attention=AttentionFacts(
            qkv_bias=_BIAS, out_bias=_BIAS, windows=by_layer_types, unrotated_every=4
        ),
    ),
    "seed_oss": replace(
        LLAMA,
        source=transformers("seed_oss"),
        attention=AttentionFacts(
            qkv_bias=Flag("attention_bias", True),
            out_bias=Flag("attention_out_bias", False),
            head_dim="required",
        ),
    ),
    "arcee": replace(
        LLAMA, source=transformers("arcee"), mlp=MlpFacts(gated=False, bias=_MLP_BIAS)
    ),
    "nemotron": Family(
        source=transformers("nemotron"),
        norm="layernorm",
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS),
        mlp=MlpFacts(gated=False, bias=_MLP_BIAS),
    ),
    "stablelm": Family(
        source=transformers("stablelm"),
        norm="layernorm",
        attention=AttentionFacts(
            qkv_bias=Flag("use_qkv_bias", False),
            qk_norm="full",
            qk_norm_if=Flag("qk_layernorm", False),
        ),
        refine=_parallel_residual,
    ),
    "stablelm_epoch": Family(
        source=repository("stabilityai/stablelm-3b-4e1t"),
        norm="layernorm",
        attention=AttentionFacts(qkv_bias=Flag("use_qkv_bias", False)),
    ),
    "starcoder2": Family(
        source=transformers("starcoder2"),
        tied=True,
        norm="layernorm",
        attention=AttentionFacts(windows=every_layer()),
        mlp=MlpFacts(gated=False),
        refine=_starcoder2,
    ),
    "gpt2": GPT2,
    "gpt-sw3": replace(GPT2, source=transformers("gpt_sw3")),
    "gpt_bigcode": replace(GPT2, source=transformers("gpt_bigcode"), refine=_gpt_bigcode),
    "gptj": GPTJ,
    "codegen": replace(GPTJ, source=transformers("codegen")),
    "gpt_neox": Family(
        source=transformers("gpt_neox"),
        norm="layernorm",
        parallel=Flag("use_parallel_residual", True),
        attention=AttentionFacts(
            qkv_bias=Flag("attention_bias", True),
            out_bias=Flag("attention_bias", True),
            kv_heads="same",
        ),
        mlp=MlpFacts(gated=False, bias=True),
    ),
    "persimmon": Family(
        source=transformers("persimmon"),
        norm="layernorm",
        attention=AttentionFacts(
            qkv_bias=True,
            out_bias=True,
            kv_heads="same",
            qk_norm_if=Flag("qk_layernorm", True),
            qk_norm_bias=True,
        ),
        mlp=MlpFacts(gated=False, bias=True),
    ),
    "glm": replace(GLM4, source=transformers("glm"), num_norms=2),
    "glm4": GLM4,
    "exaone4": Family(
        source=transformers("exaone4"),
        attention=AttentionFacts(qk_norm_if=True, windows=periodic()),
    ),
    "hunyuan_v1_dense": Family(
        source=transformers("hunyuan_v1_dense"),
        attention=AttentionFacts(qkv_bias=_BIAS, out_bias=_BIAS, qk_norm_if=True),
    ),
    "ernie4_5": Family(
        source=transformers("ernie4_5"),
        tied=True,
        attention=AttentionFacts(
            qkv_bias=Flag("use_bias", False), out_bias=Flag("use_bias", False)
        ),
        mlp=MlpFacts(bias=Flag("use_bias", False)),
    ),
    "internlm": Family(
        source=repository("internlm/internlm-20b"),
        attention=AttentionFacts(qkv_bias=Flag("bias"), out_bias=Flag("bias"), kv_heads="same"),
    ),
    "internlm2": INTERNLM2,
    "internlm3": Family(
        source=transformers("internlm3"),
        attention=AttentionFacts(qkv_bias=Flag("qkv_bias", False), out_bias=Flag("bias", False)),
        mlp=MlpFacts(bias=Flag("bias", False)),
    ),
    "baichuan": Family(
        source=repository("baichuan-inc/Baichuan2-7B-Base"),
        attention=AttentionFacts(kv_heads="same"),
        refine=_baichuan,
    ),
    "Yi": replace(LLAMA, source=repository("01-ai/Yi-34B"), attention=AttentionFacts()),
    "minicpm": replace(
        LLAMA,
        source=repository("openbmb/MiniCPM-2B-sft-bf16"),
        tied=True,
        moe=MoeFacts(layers=all_layers, width="intermediate_size", optional=True),
    ),
}
