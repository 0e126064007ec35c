"""What others measured or reported, each figure with its source."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from meshplan.learn.expressions import Link

__all__ = ["fact", "source"]

FILE = Path(__file__).parents[1] / "facts.yaml"


@lru_cache(maxsize=1)
def all_facts() -> dict[str, dict[str, Any]]:
    """Every report by its id: ``source``, ``title`` and ``values``."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    facts: dict[str, dict[str, Any]] = yaml.load(FILE.read_text(encoding="utf-8"), loader)
    return facts


def fact(report: str, name: str) -> Any:
    """A figure of a report."""
    return all_facts()[report]["values"][name]


def source(report: str) -> Link:
    """Where a report can be read."""
    entry = all_facts()[report]
    return Link(url=entry["source"], title=entry["title"])
