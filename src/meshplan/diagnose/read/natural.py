"""The order of names that people expect."""

from __future__ import annotations

import re

__all__ = ["natural"]


def natural(name: str) -> list[tuple[int, int, str]]:
    """Key of an order in which ``rank2`` comes before ``rank10``."""
    parts = re.split(r"(\d{1,18})", name)
    return [(0, int(p), "") if p.isdigit() and p.isascii() else (1, 0, p) for p in parts]
