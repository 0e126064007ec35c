"""The model that options describe, as a record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from meshplan.check.hybrid import blocks_of, read_pattern
from meshplan.check.records import Setting
from meshplan.errors import ProblemList
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.model_presets import find_preset, preset_of_hub_id
from meshplan.inputs.model import Attention, Ffn, LatentAttention, Layer, Mixer, Mlp, Model, Moe

__all__ = ["differences", "model_of"]

_NEEDED = ("num_layers", "hidden", "num_heads")
_HYBRID = ("hidden", "num_heads")
_MOST_LAYERS = 100_000
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
    owner = _owner(str(given.get("tokenizer_model", "")))
    if tokenizer is None and owner is not None:
        tokenizer = owner.vocab
    if "vocab" not in given and tokenizer is not None:
        given["vocab"] = tokenizer
    if unread := said.get("unread"):
        problems.add("check_model_unread", where=unread.where, value=unread.spelled)
        return None
    needed = _HYBRID if "pattern" in given else _NEEDED
    missing = [key for key in (*needed, "vocab") if key not in given]
    if missing:
        problems.add("check_model_missing", where=name, value=", ".join(missing))
        return None
    hidden = int(given["hidden"])
    rms = given.get("norm") == "RMSNorm"
    learned = given.get("positions", "learned_absolute") == "learned_absolute"
    blocks, further = _blocks(given, said)
    made = Model(
        name=name.replace("\\", "/").rsplit("/", 1)[-1],
        family="config",
        hidden=hidden,
        vocab=int(given["vocab"]),
        layers=blocks,
        tied_embeddings=not given.get("untied"),
        head_bias=False,
        embedding_dim=hidden,
        num_positions=int(given.get("num_positions", seq_len)) if learned else 0,
        norm="rmsnorm" if rms else "layernorm",
        embedding_norm=False,
        final_norm=True,
        max_seq_len=0,
        mtp_layers=further,
        source=name,
    )
    return owner if owner is not None and _alike(made, owner) else made


def _owner(tokenizer: str) -> Model | None:
    """The model that a tokenizer belongs to, by its hub id or the name of its folder."""
    for name in (tokenizer, tokenizer.rstrip("/").rsplit("/", 1)[-1]):
        preset = find_preset(name) or preset_of_hub_id(name)
        if name and preset is not None:
            return load_model(preset)
    return None


def _alike(made: Model, known: Model) -> bool:
    """Whether options describe a model that is known."""
    fields = ("hidden", "vocab", "layers", "tied_embeddings", "norm", "num_positions", "mtp_layers")
    return all(getattr(made, name) == getattr(known, name) for name in fields)


def _blocks(
    given: Mapping[str, Any], said: Mapping[str, Setting]
) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """The blocks of the decoder, and those that predict further tokens."""
    mixer = _mixer(given)
    if "pattern" not in given:
        layers = int(given["num_layers"])
        wide = replace(mixer, window_size=None) if isinstance(mixer, Attention) else mixer
        blocks = tuple(
            Layer(mixer=mixer if near else wide, ffn=_ffn(given, routed=routed), num_norms=2)
            for routed, near in zip(_routed(given, layers), _windowed(given, layers), strict=True)
        )
        return blocks, blocks[-1:] * int(given.get("num_mtp_layers", 0))
    stages, further = read_pattern(str(given["pattern"]), where=said["pattern"].where)
    make = partial(
        blocks_of,
        given=given,
        attention=mixer,
        dense=_ffn(given, routed=False),
        routed=_ffn(given, routed=True) if "num_experts" in given else None,
    )
    return make(stages), make(further)


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
        output_gate=bool(given.get("output_gate")),
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
        shared_gate=bool(given.get("shared_gate")),
        # the router has one where other layers have (megatron/core/transformer/moe/router.py)
        router_bias=bias,
        latent_dim=int(given.get("latent_dim", 0)),
    )


def _routed(given: Mapping[str, Any], layers: int) -> list[bool]:
    """Which layers route to experts, by ``--moe-layer-freq``: ``2`` or ``([0]*3+[1]*58)``."""
    if int(given.get("num_experts") or 1) == 1:
        # what Megatron-DeepSpeed's scripts say for none
        return [False] * layers
    pattern = str(given.get("moe_layers", "1")).strip()
    if pattern.isdecimal() and 0 < int(pattern) < 10**6:
        return [i % int(pattern) == 0 for i in range(layers)]
    return _listed(pattern, layers)


def _windowed(given: Mapping[str, Any], layers: int) -> list[bool]:
    """Which layers have a window, by ``--window-attn-skip-freq``: each N-th has none, or a list."""
    pattern = re.sub(r"\s", "", str(given.get("window_layers", "")))
    if pattern.isdecimal() and 0 < int(pattern) < 10**6:
        return [i % int(pattern) != 0 for i in range(1, layers + 1)]
    return _listed(pattern, layers)


def _listed(pattern: str, layers: int) -> list[bool]:
    """A list as Megatron-LM's arguments write it; all layers where it is no list of theirs."""
    whole = re.fullmatch(r"\((.*)\)(?:\*(\d{1,5}))?", pattern)
    inner, times = (whole[1], int(whole[2] or 1)) if whole else (pattern, 1)
    flags: list[bool] = []
    for items, count in re.findall(r"\[([01,]+)\](?:\*(\d{1,5}))?", inner):
        flags += [item == "1" for item in items.split(",") if item] * int(count or 1)
        if len(flags) > _MOST_LAYERS:
            break
    flags *= min(times, _MOST_LAYERS // max(len(flags), 1))
    return flags if len(flags) == layers else [True] * layers


def differences(said: Mapping[str, Setting], model: Model, *, problems: ProblemList) -> None:
    """Note where a config and the model that was named beside it disagree."""
    mixers = [m for layer in model.layers for m in layer.mixers]
    softmax = (m for m in mixers if isinstance(m, Attention | LatentAttention))
    mixer = next(softmax, None)
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
