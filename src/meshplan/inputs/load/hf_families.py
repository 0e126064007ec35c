"""All families, and how a configuration names its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.load.hf_families_blocks import BLOCKS
from meshplan.inputs.load.hf_families_deepseek4 import DEEPSEEK4
from meshplan.inputs.load.hf_families_dense import DENSE
from meshplan.inputs.load.hf_families_gemma import GEMMA
from meshplan.inputs.load.hf_families_hybrid import HYBRID
from meshplan.inputs.load.hf_families_minimax3 import MINIMAX3
from meshplan.inputs.load.hf_families_moe import MOE
from meshplan.inputs.load.hf_families_more import MORE
from meshplan.inputs.load.hf_families_mosaic import MOSAIC
from meshplan.inputs.load.hf_families_own import OWN
from meshplan.inputs.load.hf_family import Family
from meshplan.inputs.load.hf_generic import GENERIC
from meshplan.inputs.vocabulary import squeeze

__all__ = ["FAMILIES", "family_of", "has_known_class", "refuse_type", "text_type_of"]

FAMILIES: dict[str, Family] = {
    **DENSE,
    **MOE,
    **HYBRID,
    **MORE,
    **OWN,
    **MOSAIC,
    **BLOCKS,
    **GEMMA,
    **DEEPSEEK4,
    **MINIMAX3,
}

_BY_LOWER_CASE = {name.lower(): name for name in FAMILIES}
# Names under which the same decoder goes: text parts of composite models, renamed copies.
_SAME: dict[str, str] = {
    "codellama": "llama",
    "llava_llama": "llama",
    "vipllava": "llama",
    "mplug_owl2": "llama",
    "skywork": "llama",
    "xverse": "llama",
    "aquila": "llama",
    "telechat2": "llama",
    "idefics3_text": "llama",
    "smolvlm_text": "llama",
    "voxtral_text": "llama",
    "emu3_text_model": "llama",
    "llava_mistral": "mistral",
    "mixtral_text": "mixtral",
    "pixtral_text": "mistral",
    "llava_qwen": "qwen2",
    "llava_qwen2": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_asr_text": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified_text": "gemma4_text",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "glm46v_text": "glm4",
    "chatglm4": "chatglm",
    "phi3_v": "phi3",
    "phi4_multimodal": "phi3",
    "phi4mm": "phi3",
    "phi-moe": "phimoe",
    "kimi_vl": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "granitemoe_swa": "granitemoeshared",
    "granite_swa": "granite",
    "mpt_text": "mpt",
    "seed_oss_text": "seed_oss",
    "ernie4_5_vl_moe_text": "ernie4_5_moe",
    "internlmxcomposer2": "internlm2",
    "step3": "step3_text",
    "step3_vl": "step3_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "minimax-text-01": "minimax_text_01",
    "minimaxtext01": "minimax_text_01",
    "lfm2_vl_text": "lfm2",
    "grok1": "grok-1",
}

# What composite models take for their text decoder when its section states no type.
_TEXT_OF = {
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "fuyu": "persimmon",
    "got_ocr2": "qwen2",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "smolvlm": "llama",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}

# Not decoder-only language models.
_ENCODERS = frozenset(
    {
        "albert",
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "canine",
        "convbert",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "ernie_m",
        "esm",
        "eurobert",
        "flaubert",
        "fnet",
        "funnel",
        "ibert",
        "jina_bert",
        "layoutlm",
        "layoutlmv2",
        "layoutlmv3",
        "longformer",
        "luke",
        "megatron-bert",
        "mobilebert",
        "modernbert",
        "mpnet",
        "mra",
        "neobert",
        "new",
        "nezha",
        "nomic_bert",
        "nystromformer",
        "qdqbert",
        "reformer",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "splinter",
        "squeezebert",
        "tapas",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xlnet",
        "xmod",
        "yoso",
        "clip",
        "siglip",
        "siglip2",
        "vit",
        "dinov2",
        "wav2vec2",
        "hubert",
        "wavlm",
        "sam",
    }
)
_ENCODER_DECODERS = frozenset(
    {
        "bart",
        "barthez",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "encoder-decoder",
        "fsmt",
        "led",
        "longt5",
        "m2m_100",
        "marian",
        "mbart",
        "mt5",
        "mvp",
        "nllb",
        "nllb-moe",
        "pegasus",
        "pegasus_x",
        "plbart",
        "prophetnet",
        "seamless_m4t",
        "switch_transformers",
        "t5",
        "t5gemma",
        "t5gemma2",
        "udop",
        "umt5",
        "whisper",
        "moonshine",
        "florence2",
        "pix2struct",
        "vision-encoder-decoder",
        "speech-encoder-decoder",
        "byt5",
    }
)
# Decoders whose mixers this program does not know.
_UNKNOWN_MIXERS = frozenset(
    {
        "rwkv",
        "rwkv4",
        "rwkv5",
        "rwkv6",
        "rwkv7",
        "rwkv6qwen2",
        "xlstm",
        "blt",
        "jetmoe",
        "retnet",
        "stripedhyena",
        "evo",
        "hyena",
        "griffin",
        "ttt",
        "bigbird_gpt",
        "ctrl",
        "cpmant",
        "reformer_lm",
        "openai-gpt",
        "moshi",
        "doge",
        "hgrn",
        "gla",
        "delta_net",
        "mega",
        "zaya",
        "hrm_text",
        "inkling_text",
        "inkling2_text",
        "lara_mini",
    }
)


def family_of(config: Mapping[str, Any], *, where: str) -> tuple[str, Family]:
    """Name a configuration's family: by ``model_type``, else by ``architectures``.

    Returns:
        The name to mention, and the facts; the generic ones for a type that nobody here knows.

    Raises:
        UserError: for encoders, encoder-decoders, and mixers that are not modelled.
    """
    given = config.get("model_type")
    if given is not None and not isinstance(given, str):
        raise UserError.of("model_key_not_name", where=f"{where}: model_type", value=given)
    name = given or ""
    refuse_type(name, config, where=where)
    found = _known(name) or _by_architecture(config, where=where) or _by_keys(config)
    if found is None:
        return name or "generic", GENERIC
    return found, FAMILIES[found]


def has_known_class(config: Mapping[str, Any]) -> bool:
    """Whether ``architectures`` names the class of a family."""
    return _by_architecture(config, where="") is not None


def text_type_of(outer: object) -> str | None:
    """Type of the text decoder of a composite model whose section for it states none."""
    if not isinstance(outer, str):
        return None
    return _TEXT_OF.get(outer) or _known(outer)


def _known(name: str) -> str | None:
    if name in FAMILIES:
        return name
    same = _SAME.get(name.lower(), _BY_LOWER_CASE.get(name.lower(), ""))
    return same if same in FAMILIES else None


def refuse_type(name: str, config: Mapping[str, Any], *, where: str) -> None:
    """Refuse what is no decoder-only language model, or mixes tokens in a way not modelled."""
    here = f"{where}: model_type"
    if name in _ENCODER_DECODERS or config.get("is_encoder_decoder") is True:
        raise UserError.of("model_encoder_decoder", where=here, value=name)
    if name in _ENCODERS:
        raise UserError.of("model_encoder", where=here, value=name)
    if name in _UNKNOWN_MIXERS:
        raise UserError.of("model_mixer_unknown", where=here, value=name)
    if config.get("add_cross_attention") is True:
        raise UserError.of(
            "model_encoder_decoder", where=f"{where}: add_cross_attention", value=True
        )


_CLASS = re.compile(
    r"(ForCausalLM|LMHeadModel|ForConditionalGeneration|ForSequenceClassification|"
    r"ForTokenClassification|ForQuestionAnswering|PreTrainedModel|Model)$"
)
_CLASSES = {
    "llavallama": "llama",
    "llavamistral": "mistral",
    "llavaqwen": "qwen2",
    "llavaqwen2": "qwen2",
    "rw": "RefinedWebModel",
    "aquila": "llama",
    "xverse": "llama",
    "skywork": "llama",
    "gpt2lm": "gpt2",
    "bunnyllama": "llama",
    "internlmxcomposer2": "internlm2",
}


def _by_architecture(config: Mapping[str, Any], *, where: str) -> str | None:
    """The family whose name the class of the model carries."""
    classes = config.get("architectures")
    if not isinstance(classes, list) or not classes or not isinstance(classes[0], str):
        return None
    bare = squeeze(_CLASS.sub("", classes[0]))
    if bare in _CLASSES:
        return _CLASSES[bare]
    for name in FAMILIES:
        if bare in (squeeze(name), squeeze(name.removesuffix("_text"))):
            return name
    for encoder in _ENCODERS | _ENCODER_DECODERS:
        if bare == squeeze(encoder):
            refuse_type(encoder, {}, where=where)
    return None


def _by_keys(config: Mapping[str, Any]) -> str | None:
    """Families that state no type but have keys that nobody else has."""
    if {"emb_size", "widening_factor", "key_size", "num_q_heads"} <= config.keys():
        return "grok-1"
    return None
