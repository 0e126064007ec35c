"""Numbers and lists of ranks from what a tool wrote, which may be text or nonsense."""

from __future__ import annotations

import math
import re

__all__ = ["integer", "number", "ranks_of"]

_MOST_RANKS = 1 << 20


def number(value: object, *, otherwise: float | None = None) -> float | None:
    """A finite number; None where there is none."""
    if value is None:
        return otherwise
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def integer(value: object) -> int:
    """A whole number; -1 where there is none."""
    if type(value) is int and -(2**62) < value < 2**62:
        return value
    found = number(value)
    return -1 if found is None or abs(found) >= 2**62 else int(found)


def ranks_of(value: object) -> tuple[int, ...]:
    """Ranks from a list or from its text; a text that was shortened names no ranks."""
    if isinstance(value, list):
        return tuple(integer(v) for v in value[:_MOST_RANKS])
    if isinstance(value, str) and "..." not in value:
        return tuple(int(n) for n in re.findall(r"\d{1,9}", value)[:_MOST_RANKS])
    return ()
