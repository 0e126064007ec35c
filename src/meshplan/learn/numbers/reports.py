"""Reports of others as ``facts.yaml`` holds them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

__all__ = ["all_reports"]

FILE = Path(__file__).parents[1] / "facts.yaml"


@lru_cache(maxsize=1)
def all_reports() -> dict[str, dict[str, Any]]:
    """Every report by its id: ``source``, ``title`` and ``values``."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reports: dict[str, dict[str, Any]] = yaml.load(FILE.read_text(encoding="utf-8"), loader)
    return reports
