"""The model that options describe, as a record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshplan.check.records import Setting
from meshplan.errors import ProblemList
from meshplan.inputs.model import Attention, Ffn, LatentAttention, Layer, Mixer, Mlp, Model, Moe

__all__ = ["differences", "model_of"]

_NEEDED = ("num_layers", "hidden", "num_heads")
# Rows of the vocabulary behind a kind of tokenizer (megatron/core/tokenizers).
_VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "Llama2Tokenizer": 32000,
}


def model_of(
    said: Mapping[str, Setting], *, name: str, seq_len: int, problems: ProblemList
) -> Model | None:
    """Make a model from the dimensions in a config; None, with the reasons, when some lack."""
    given: dict[str, Any] = {key: setting.value for key, setting in said.items()}
    tokenizer = _VOCABULARIES.get(str(given.get("tokenizer")))
    if "vocab" not in given and tokenizer is not None:
        given["vocab"] = tokenizer
    if unread := said.get("unread"):
        problems.add("check_model_unread", where=unread.where, value=unread.spelled)
        return None
    missing = [key for key in (*_NEEDED, "vocab") if key not in given]
    if missing:
        problems.add("check_model_missing", where=name, value=", ".join(missing))
        return None
    hidden, layers = int(given["hidden"]), int(given["num_layers"])
    mixer = _mixer(given)
    rms = given.get("norm") == "RMSNorm"
    learned = given.get("positions", "learned_absolute") == "learned_absolute"
    whole = replace(mixer, window_size=None) if isinstance(mixer, Attention) else mixer
    blocks = [
        Layer(mixer=mixer if inside else whole, ffn=_ffn(given, routed=routed), num_norms=2)
        for inside, routed in zip(_windowed(given, layers), _routed(given, layers), strict=True)
    ]
    return Model(
        name=name.replace("\\", "/").rsplit("/", 1)[-1],
        family="config",
        hidden=hidden,
        vocab=int(given["vocab"]),
        layers=tuple(blocks),
        tied_embeddings=not given.get("untied"),
        head_bias=False,
        embedding_dim=hidden,
        num_positions=int(given.get("num_positions", seq_len)) if learned else 0,
        norm="rmsnorm" if rms else "layernorm",
        embedding_norm=False,
        final_norm=True,
        max_seq_len=0,
        mtp_layers=tuple(blocks[-1:] * int(given.get("num_mtp_layers", 0))),
        source=name,
    )


def _mixer(given: Mapping[str, Any]) -> Mixer:
    heads = int(given["num_heads"])
    if given.get("latent"):
        return LatentAttention(
            num_heads=heads,
            q_lora_rank=given.get("q_lora_rank"),
            kv_lora_rank=int(given.get("kv_lora_rank", 512)),
            qk_nope_head_dim=int(given.get("qk_nope_head_dim", 128)),
            qk_rope_head_dim=int(given.get("qk_rope_head_dim", 64)),
            v_head_dim=int(given.get("v_head_dim", 128)),
            bias=False,
        )
    width = int(given.get("head_dim") or int(given["hidden"]) // heads)
    window = given.get("window_size")
    return Attention(
        num_heads=heads,
        num_kv_heads=int(given.get("num_kv_heads", heads)),
        head_dim=width,
        v_head_dim=width,
        window_size=None if window is None else int(window) + 1,
        qkv_bias=bool(given.get("qkv_bias", given.get("bias", True))),
        out_bias=bool(given.get("bias", True)),
        qk_norm="head" if given.get("qk_norm") else "none",
        sinks=given.get("softmax") == "learnable",
        rotary=given.get("positions") in ("rope", "yarn", "mrope"),
    )


def _ffn(given: Mapping[str, Any], *, routed: bool) -> Ffn:
    gated = bool(given.get("gated"))
    activation = "silu" if gated else str(given.get("activation", "gelu"))
    hidden = int(given["hidden"])
    # 4 h, of which a gated network gets two thirds (megatron/training/arguments.py)
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    width = int(given.get("ffn_hidden", usual))
    bias = bool(given.get("bias", True))
    if not routed:
        return Mlp(ffn_hidden=width, gated=gated, bias=bias, activation=activation)
    return Moe(
        num_experts=int(given["num_experts"]),
        top_k=int(given.get("top_k", 2)),
        expert_ffn_hidden=int(given.get("expert_ffn_hidden", width)),
        gated=gated,
        bias=bias,
        activation=activation,
        shared_ffn_hidden=int(given.get("shared_ffn_hidden", 0)),
        shared_gate=False,
        router_bias=False,
    )


def _routed(given: Mapping[str, Any], layers: int) -> list[bool]:
    """Which layers route to experts, by ``--moe-layer-freq``: ``2`` or ``([0]*3+[1]*58)``."""
    if int(given.get("num_experts") or 1) == 1:
        # what Megatron-DeepSpeed's scripts say for none
        return [False] * layers
    pattern = str(given.get("moe_layers", "1")).strip()
    if pattern.isdecimal() and 0 < int(pattern) < 10**6:
        return [i % int(pattern) == 0 for i in range(layers)]
    return _pattern(pattern, layers)


def _windowed(given: Mapping[str, Any], layers: int) -> list[bool]:
    """Which layers see a window alone, by ``--window-attn-skip-freq``; every fourth not for 4."""
    pattern = str(given.get("window_layers", "")).strip()
    if pattern.isdecimal() and 0 < int(pattern) < 10**6:
        return [(i + 1) % int(pattern) != 0 for i in range(layers)]
    return _pattern(pattern, layers)


def _pattern(text: str, layers: int) -> list[bool]:
    """A list such as ``([0]*3+[1]*58)``; every layer where it is none of that many."""
    pattern = re.sub(r"\s", "", text)
    flags: list[bool] = []
    for items, count in re.findall(r"\[([01,]+)\](?:\*(\d{1,5}))?", pattern):
        flags += [item == "1" for item in items.split(",") if item] * int(count or 1)
        if len(flags) > 100_000:
            break
    if again := re.search(r"\)\*(\d{1,5})$", pattern):
        flags = flags[: 100_000 // max(1, int(again[1]))] * int(again[1])
    return flags if len(flags) == layers else [True] * layers


def differences(said: Mapping[str, Setting], model: Model, *, problems: ProblemList) -> None:
    """Note where a config and the model that was named beside it disagree."""
    mixer = next((m for layer in model.layers for m in layer.mixers), None)
    facts = {
        "num_layers": model.num_layers,
        "hidden": model.hidden,
        "num_heads": getattr(mixer, "num_heads", None),
        "num_kv_heads": getattr(mixer, "num_kv_heads", None),
    }
    for name, fact in facts.items():
        setting = said.get(name)
        if setting is not None and fact is not None and setting.value != fact:
            problems.add(
                "check_contradiction",
                where=setting.where,
                value=setting.value,
                option=setting.spelled,
                other=model.name,
                other_value=fact,
            )
