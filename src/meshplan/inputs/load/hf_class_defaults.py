"""Sizes that a composite configuration leaves to the class of its text decoder.

Transformers writes of a nested configuration only what differs from its class, so that the
published files of Gemma 3, PaliGemma or LLaVA state some sizes and leave out others.

References:
    1. ``configuration_*.py`` of these families in Hugging Face Transformers 5.24.0; compared with
       built classes in ``tests/golden/test_model_classes.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CLASS_DEFAULTS"]

_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_GEMMA2 = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
CLASS_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8},
    "gemma": {
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
    },
    "gemma2": _GEMMA2,
    "gemma3_text": {**_GEMMA2, "vocab_size": 262208},
}
"""By ``model_type``: counts and widths."""
