"""Find the text decoder in a configuration, and its family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.load.hf_class_defaults import CLASS_DEFAULTS
from meshplan.inputs.load.hf_names import ALIASES
from meshplan.record import record

__all__ = ["TextConfig", "find_text_config"]

# Where composite configurations keep their text decoder, the most specific first.
_SECTIONS = (
    "thinker_config",
    "text_config",
    "language_config",
    "llm_config",
    "language_model_config",
    "text_model_config",
    "llm",
    "decoder_config",
)
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
# Parts of composite models that are not the text decoder.
_OTHER_PARTS = (
    "vision_config",
    "audio_config",
    "speech_config",
    "visual",
    "vit_config",
    "vision_tower_config",
    "talker_config",
    "code2wav_config",
    "token2wav_config",
    "projector_config",
    "perceiver_config",
    "aligner_config",
    "gen_vision_config",
    "audio_encoder_config",
    "vq_config",
    "img_processor",
    "vision_model_config",
)


@record
class TextConfig:
    """The part of a configuration that describes the text decoder.

    Attributes:
        data: its keys, with the top level's ``tie_word_embeddings`` where it has none itself.
        where: what to call it in errors.
        path: the sections that lead to it; empty at the top level.
        left_out: sections that describe something else, by name.
        tied_outside: ``tie_word_embeddings`` of an outer level, None where none states it.
    """

    data: Mapping[str, Any]
    where: str
    path: tuple[str, ...]
    left_out: Mapping[str, Mapping[str, Any]]
    tied_outside: Any = None


def find_text_config(config: Mapping[str, Any], *, where: str) -> TextConfig:
    """Find the part of a configuration that describes the text decoder.

    Raises:
        UserError: when a section that should hold it is no object, or nothing here has a size.
    """
    data, path = config, []
    left_out: dict[str, Mapping[str, Any]] = {}
    tied: Any = None
    while True:
        left_out |= {k: data[k] for k in _OTHER_PARTS if isinstance(data.get(k), Mapping)}
        name = next((key for key in _SECTIONS if data.get(key) is not None), None)
        if name is None:
            break
        inner = data[name]
        if not isinstance(inner, Mapping):
            raise UserError.of("model_key_not_object", where=f"{where}: {name}", value=inner)
        if not _has_sizes(inner) and not _nested(inner) and _has_sizes(data):
            break  # flat composites repeat their sizes at the top
        path.append(name)
        tied = data.get("tie_word_embeddings", tied)
        data = inner
    if path and data.get("tie_word_embeddings") is None and tied is not None:
        data = {**data, "tie_word_embeddings": tied}
    if not _has_sizes(data) and not (path and data.get("model_type") in CLASS_DEFAULTS):
        raise UserError.of("model_not_a_config", where=where, allowed=_SIZES)
    full = f"{where}: {'.'.join(path)}" if path else where
    return TextConfig(
        data=data,
        where=full,
        path=tuple(path),
        left_out=left_out,
        tied_outside=tied,
    )


def _has_sizes(data: Mapping[str, Any]) -> bool:
    return any(
        data.get(name) is not None for key in _SIZES for name in (key, *ALIASES.get(key, ()))
    )


def _nested(data: Mapping[str, Any]) -> bool:
    return any(isinstance(data.get(key), Mapping) for key in _SECTIONS)
