"""Numbers and lists of ranks from what a tool wrote, which may be text or nonsense."""

from __future__ import annotations

import math
import re
import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["can_be_time", "escaped", "integer", "number", "ranks_of", "shown_name", "shown_text"]

_MOST_RANKS = 1 << 20
_LONGEST_NAME = 120
# controls, directions of writing, line ends, halves of pairs, private use
_UNSEEN = frozenset(("Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"))


def shown_name(path: Path) -> str:
    """Name of a file as it may be shown on a terminal and in a page."""
    return shown_text(path.name or str(path))


def shown_text(text: str) -> str:
    """Text with everything escaped that would not be seen as it is, and not too long."""
    seen = escaped(text)
    return seen if len(seen) <= _LONGEST_NAME else f"{seen[: _LONGEST_NAME - 3]}..."


def escaped(text: str) -> str:
    """Text with everything escaped that would not be seen as it is, or acts on a terminal."""
    return "".join(
        c if unicodedata.category(c) not in _UNSEEN else f"\\u{ord(c):04x}" for c in text
    )


def number(value: object, *, otherwise: float | None = None) -> float | None:
    """A finite number; None where there is none."""
    if type(value) is float and -math.inf < value < math.inf:
        return value
    if value is None:
        return otherwise
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def can_be_time(
    start_us: npt.NDArray[np.float64], duration_us: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Whether a profiler can have meant these: it counts nanoseconds in 64 bits, and forward.

    Args:
        start_us: starts [us], NaN where there is none, ``(n,)``.
        duration_us: durations [us], ``(n,)``.

    Returns:
        A verdict for each, ``(n,)``.
    """
    longest = np.maximum(np.abs(start_us), duration_us)
    return np.isfinite(longest) & (duration_us >= 0) & (longest < 2**63 / 1e3)


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
