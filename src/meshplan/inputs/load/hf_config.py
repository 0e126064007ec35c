"""A model from a preset name, a ``config.json``, the folder that holds one, or a hub id."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.load.hf_class_defaults import CLASS_DEFAULTS
from meshplan.inputs.load.hf_decoder import read_decoder
from meshplan.inputs.load.hf_families import (
    family_of,
    has_known_class,
    refuse_type,
    text_type_of,
)
from meshplan.inputs.load.hf_hub import fetch_config
from meshplan.inputs.load.hf_json import read_json_file
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_native import from_native, is_native
from meshplan.inputs.load.hf_nested import TextConfig, find_text_config
from meshplan.inputs.load.hf_vision import vision_parameters
from meshplan.inputs.load.model_presets import (
    find_preset,
    load_preset,
    model_names,
    preset_of_hub_id,
)
from meshplan.inputs.load.opening import is_there
from meshplan.inputs.model import Model
from meshplan.inputs.vocabulary import unknown

__all__ = ["load_model", "model_from_config", "model_names"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_URL = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/\s]+/[^/\s?#]+)(?:[/?#].*)?"
)
_LONGEST_NAME = 4096  # no path is longer on the systems we run on


def load_model(text: str | Path) -> Model:
    """Read a model.

    Tried in this order: a preset name (case, dots and dashes do not matter), a path to a file or
    folder that exists, the hub id of a preset, a hub id that ``huggingface_hub`` fetches. A
    folder with the name of a preset is reached as ``./name``. The address of a model's page on
    the hub counts as its hub id.

    Args:
        text: what the user wrote.

    Returns:
        The model.

    Raises:
        UserError: when nothing goes by that name, or what does cannot be read as a decoder.
    """
    name = _HUB_URL.sub(r"\1", str(text).strip())
    if not name or "\0" in name:
        raise UserError.of("model_name_empty", where="model", value=name[:40])
    if len(name) > _LONGEST_NAME:
        raise unknown("model_unknown", where="model", value=name, names=model_names())
    if isinstance(text, str):
        preset = find_preset(name)
        if preset is not None:
            return _from_preset(preset)
    # unlike Path.expanduser, this leaves a user that does not exist as it is written
    path = Path(os.path.expanduser(name))
    if is_there(path):
        return _from_path(path)
    if _looks_like_path(name):
        raise UserError.of("model_file_missing", where=name, value=name)
    preset = preset_of_hub_id(name)
    if preset is not None:
        return _from_preset(preset)
    if _HUB_ID.fullmatch(name):
        fetched = fetch_config(name)
        config, repeated = read_json_file(fetched)
        return model_from_config(
            config,
            name=name,
            where=f"{name}: config.json",
            source=f"{name} on the hub",
            repeated_keys=repeated,
        )
    raise unknown("model_unknown", where="model", value=name, names=model_names())


def model_from_config(
    config: Mapping[str, Any],
    *,
    name: str,
    where: str = "config.json",
    source: str = "",
    repeated_keys: list[str] | None = None,
) -> Model:
    """Read a model from the contents of a ``config.json``.

    Args:
        config: the parsed object.
        name: what to call the model.
        where: what to call the file in errors.
        source: where the configuration comes from.
        repeated_keys: keys that stood twice in the file.

    Returns:
        The model, with notes on everything that was not read straight from the file.

    Raises:
        UserError: with all that is missing, malformed or contradictory.
    """
    native = is_native(config)
    if native:
        config = from_native(config)
    outer = config.get("model_type")
    if isinstance(outer, str):
        refuse_type(outer, config, where=where)
    text = find_text_config(config, where=where)
    data, inherited = text.data, None
    if text.path and data.get("model_type") is None and not has_known_class(data):
        inherited = text_type_of(outer)
        data = data if inherited is None else {**data, "model_type": inherited}
    family_name, family = family_of(data, where=text.where)
    keys = Keys(data, where=text.where, family=family_name)
    if native:
        keys.note("model_native", "params.json")
    if inherited is not None:
        keys.note("model_default", f"{'.'.join(text.path)}.model_type = {inherited} ({outer})")
    for key in repeated_keys or ():
        keys.note("model_key_repeated", key)
    _note_nesting(keys, text)
    if text.path:
        keys.fill(CLASS_DEFAULTS.get(family_name, {}))
    model = read_decoder(keys, family, name=name, source=source)
    tower = vision_parameters(text.left_out.get("vision_config", {}))
    if tower is None:
        return model
    return replace(model, other_parameters={**model.other_parameters, "vision_config": tower})


def _note_nesting(keys: Keys, text: TextConfig) -> None:
    """Say where the text decoder stood, and what stood beside it."""
    if text.path:
        keys.note("model_nested", ".".join(text.path))
    outside = text.tied_outside
    if outside is not None:
        agrees = keys.data["tie_word_embeddings"] is outside
        code = "model_from_outside" if agrees else "model_ignored"
        keys.note(code, f"tie_word_embeddings = {str(outside).lower()}")
    for part in text.left_out:
        keys.note("model_left_out", part)


@lru_cache(maxsize=16)
def _from_preset(name: str) -> Model:
    """The model of a preset, which is read once: what an app is asked again and again."""
    preset = load_preset(name)
    return model_from_config(preset.config, name=name, where=f"preset {name}", source=preset.source)


def _from_path(path: Path) -> Model:
    file = path
    if path.is_dir():
        named = (path / name for name in ("config.json", "params.json"))
        file = next((f for f in named if f.exists()), path)
        if file is path:
            has_adapter = (path / "adapter_config.json").exists()
            code = "model_folder_adapter" if has_adapter else "model_folder_without_config"
            raise UserError.of(code, where=str(path), value=str(path))
    config, repeated = read_json_file(file)
    usual = file.name in ("config.json", "params.json")
    name = path.resolve().parent.name if usual else file.stem
    if path.is_dir():
        name = path.resolve().name
    model = model_from_config(
        config, name=name or "model", where=file.name, source=str(path), repeated_keys=repeated
    )
    return replace(model, name=name or "model")


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~"))
        or name.endswith((".json", "/"))
        or name.count("/") > 1
        or "\\" in name
    )
