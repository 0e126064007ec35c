"""Models by name: one small file each, with its source, read by the same path as any file.

``presets/models/<name>.json`` holds ``config`` (the keys of the model's own configuration that
say which weights exist), ``source``, ``published`` (the total that its authors state) and ``hub``
(repositories with the same architecture). ``_index.json`` maps hub ids to names, so that a hub id
of a preset needs no network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.inputs.vocabulary import squeeze
from meshplan.record import record

__all__ = ["ModelPreset", "find_preset", "load_preset", "model_names", "preset_of_hub_id"]

_FOLDER = Path(__file__).parents[1] / "presets" / "models"


@record
class ModelPreset:
    """A model of the list.

    Attributes:
        config: its configuration.
        source: where the configuration comes from.
        published_params_b: parameters that its authors state [1e9]; None where they state none.
        published_source: where they state it.
    """

    config: Mapping[str, Any]
    source: str
    published_params_b: float | None
    published_source: str


@cache
def model_names() -> tuple[str, ...]:
    """Names of all presets, in alphabetical order."""
    return tuple(sorted(f.stem for f in _FOLDER.glob("*.json") if not f.name.startswith("_")))


def find_preset(text: str) -> str | None:
    """Name of the preset that a text means, None when it means none.

    Case, blanks, ``-`` and ``_`` never matter; dots matter only where two names differ in them
    alone (``gpt3-1.3b`` and ``gpt3-13b``).
    """
    if "/" in text:
        return None
    for key in (_with_dots, squeeze):
        wanted = key(text)
        found = [name for name in model_names() if key(name) == wanted]
        if len(found) == 1:
            return found[0]
    return None


def _with_dots(text: str) -> str:
    return "".join(c for c in text.lower() if c not in " -_\t")


def preset_of_hub_id(text: str) -> str | None:
    """Name of the preset with the architecture of a hub repository."""
    return _hub_ids().get(text.lower())


def load_preset(name: str) -> ModelPreset:
    """Read one preset."""
    data = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    published = data.get("published", {})
    return ModelPreset(
        config=data["config"],
        source=data["source"],
        published_params_b=published.get("params_b"),
        published_source=published.get("source", ""),
    )


@cache
def _hub_ids() -> dict[str, str]:
    index: dict[str, str] = json.loads((_FOLDER / "_index.json").read_text(encoding="utf-8"))
    return {hub_id.lower(): name for hub_id, name in index.items()}
