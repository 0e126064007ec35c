"""The activation that a family has where its configuration does not name one."""

from __future__ import annotations

__all__ = ["default_activation"]

# Key and default of the configuration class of each family in Hugging Face Transformers 5.24,
# models/*/configuration_*.py. A family without one there has no entry.
_FAMILIES: dict[tuple[str, str], str] = {
    ("hidden_act", "silu"): """
        afmoe aria_text bamba cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3
        deepseek_v32 deepseek_v4 diffllama dots1 ernie4_5 ernie4_5_moe exaone exaone4
        exaone_moe falcon_h1 flex_olmo glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa
        gpt_oss granite granitemoe granitemoehybrid granitemoeshared helium
        hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jamba
        kimi_linear llama llama4_text longcat_flash mellum mimo_v2_flash minicpm3
        minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral
        mllama_text_model olmo olmo2 olmo3 olmoe phi3 phimoe qwen2 qwen2_moe qwen3
        qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next sarvam_mla sarvam_moe
        seed_oss smollm3 solar_open stablelm youtu
    """,
    ("hidden_act", "gelu_pytorch_tanh"): "gemma starcoder2",
    ("hidden_activation", "gelu_pytorch_tanh"): """
        gemma2 gemma3_text gemma3n_text gemma4_text recurrent_gemma vaultgemma
    """,
    ("hidden_act", "gelu_new"): "phi",
    ("hidden_act", "relu2"): "arcee bitnet jais2 nanochat nemotron persimmon",
    ("activation_function", "gelu_new"): "codegen gpt2 gpt_neo gptj",
    ("activation_function", "gelu_pytorch_tanh"): "gpt_bigcode",
    ("hidden_act", "gelu"): "biogpt gpt_neox zamba zamba2",
    ("hidden_act", "xielu"): "apertus",
    ("activation", "gelu"): "falcon",
    ("activation_function", "relu"): "opt",
    ("activation_function", "gelu"): "xglm",
    ("mlp_hidden_act", "relu2"): "nemotron_h",
}
_DEFAULTS = {
    family: default for default, families in _FAMILIES.items() for family in families.split()
}


def default_activation(family: str) -> tuple[str, str] | None:
    """Key and value that the configuration class of a family fills in; None where it has none.

    Args:
        family: ``model_type``.
    """
    return _DEFAULTS.get(family)
