"""Read how settings of a job are turned on in their framework."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import yaml

from meshplan.inputs.load.presets import PRESETS, Loader
from meshplan.inputs.variants import Switch

__all__ = ["least_gain", "switches_of"]


@lru_cache(maxsize=1)
def _preset() -> dict[str, Any]:
    content: dict[str, Any] = yaml.load((PRESETS / "switches.yaml").read_text("utf-8"), Loader)
    return content


@lru_cache(maxsize=8)
def switches_of(framework: str) -> tuple[Switch, ...]:
    """Settings of a job that a framework has, in the order of the preset."""
    return tuple(
        Switch(
            name=name,
            framework=framework,
            flags=tuple(entry["flags"]),
            cautions=tuple(entry.get("cautions", ())),
            source=entry["source"],
        )
        for name, entry in _preset()["switches"].items()
        if entry["framework"] == framework
    )


def least_gain() -> float:
    """Share of a step that a setting has to save to be worth naming [1]."""
    return float(_preset()["least_gain"][0])
