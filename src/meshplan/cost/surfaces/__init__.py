"""Tables and constants of the time model, each with its source."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources

from meshplan.provenance import Sourced

__all__ = ["constant", "constants"]


@lru_cache(maxsize=1)
def constants() -> dict[str, Sourced]:
    """All constants of the time model by name."""
    text = (resources.files(__name__) / "constants.json").read_text(encoding="utf-8")
    return {name: Sourced(**entry) for name, entry in json.loads(text).items()}


def constant(name: str) -> float:
    """The value of one constant."""
    return constants()[name].value
