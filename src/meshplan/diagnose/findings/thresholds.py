"""From which value on something is a finding; the values stand in ``presets/findings.yaml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

__all__ = ["preset", "threshold"]

_PRESETS = Path(__file__).parent.parent / "presets"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def preset(name: str) -> dict[str, Any]:
    """Return one file of the presets."""
    content: dict[str, Any] = yaml.load((_PRESETS / name).read_text("utf-8"), Loader=_LOADER)
    return content


def threshold(name: str) -> float:
    """Return one threshold."""
    return float(preset("findings.yaml")[name]["value"])
