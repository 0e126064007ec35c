"""What others measured or reported, each figure with its source."""

from __future__ import annotations

from typing import Any

from meshplan.learn.expressions import Link
from meshplan.learn.numbers.reports import all_reports

__all__ = ["fact", "source"]


def fact(report: str, name: str) -> Any:
    """A figure of a report."""
    return all_reports()[report]["values"][name]


def source(report: str) -> Link:
    """Where a report can be read."""
    entry = all_reports()[report]
    return Link(url=entry["source"], title=entry["title"])
