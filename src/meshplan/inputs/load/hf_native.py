"""``params.json``, as Meta and Mistral ship it beside or instead of ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["from_native", "is_native"]

_SAME = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "max_seq_len": "max_position_embeddings",
    "sliding_window": "sliding_window",
    "max_position_embeddings": "max_position_embeddings",
}


def is_native(config: Mapping[str, Any]) -> bool:
    """Whether an object has the keys of a ``params.json`` rather than of a ``config.json``."""
    return "model_type" not in config and {"dim", "n_layers", "n_heads"} <= config.keys()


def from_native(params: Mapping[str, Any]) -> dict[str, Any]:
    """Say the same in the keys of a ``config.json``.

    Where the inner width is not given (Llama), it is two thirds of four times the width, times
    ``ffn_dim_multiplier``, rounded up to ``multiple_of``; see ``FeedForward`` in the model code
    that Meta published with Llama 2 and 3. A vocabulary of -1 stands for that of a tokenizer and
    counts as missing.
    """
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    rest = dict(params)
    for native, usual in _SAME.items():
        if native in rest:
            config[usual] = rest.pop(native)
    if config.get("vocab_size") == -1:
        del config["vocab_size"]
    if "intermediate_size" not in config:
        width = _inner_width(params)
        if width is not None:
            config["intermediate_size"] = width
            rest.pop("multiple_of", None)
            rest.pop("ffn_dim_multiplier", None)
    experts = rest.pop("moe", None)
    if isinstance(experts, Mapping):
        config |= {"model_type": "mixtral", **experts}
    elif "sliding_window" in config:
        config["model_type"] = "mistral"
    if config["model_type"] != "llama":
        del config["attention_bias"], config["mlp_bias"]
        config.setdefault("sliding_window", None)
    return {**rest, **config}


def _inner_width(params: Mapping[str, Any]) -> int | None:
    dim, multiple = params.get("dim"), params.get("multiple_of")
    factor = params.get("ffn_dim_multiplier")
    factor = 1.0 if factor is None else factor
    for value, kinds in ((dim, int), (multiple, int), (factor, int | float)):
        if isinstance(value, bool) or not isinstance(value, kinds):
            return None
        if not math.isfinite(value) or not 0 < value < 2**24:
            return None
    assert isinstance(dim, int) and isinstance(multiple, int)
    width = int(factor * int(2 * 4 * dim / 3))
    return -(-width // multiple) * multiple
