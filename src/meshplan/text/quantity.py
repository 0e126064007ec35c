"""Numbers in sentences: the name of a value says its unit, and the unit says how it prints.

A sentence that mentions ``{peak_bytes}`` prints ``61.2 GiB``, ``{step_time_s}`` prints ``13.2 s``,
``{link_bytes_per_s}`` prints ``450 GB/s``, ``{num_tokens}`` prints ``8.389M``, ``{lost_fraction}``
prints ``12 %``. A sentence that states a format of its own, as ``{mfu:.1%}``, gets the bare number.
A name that nobody could read is cut in its middle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from meshplan.units import (
    TERA,
    format_bandwidth,
    format_count,
    format_duration,
    format_memory,
)

__all__ = ["dress", "dress_all", "one_of_many", "plain_number"]


class _Dressed:
    """A number that prints with its unit unless told how."""

    shown: str

    def __format__(self, spec: str) -> str:
        return super().__format__(spec) if spec else self.shown

    def __str__(self) -> str:
        return self.shown


class _Quantity(_Dressed, float):
    pass


class _Whole(_Dressed, int):
    pass


def plain_number(value: float) -> str:
    """Print a number without a unit: four significant digits, whole numbers in full."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) < 1e15):
        return str(int(value))
    return f"{value:.4g}"


def _shown(name: str, value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    # the longest unit first: bytes_per_s also ends in _s
    if name.endswith("_bytes_per_s"):
        return format_bandwidth(value)
    if name.endswith("_flop_per_s"):
        return f"{value / TERA:.4g} TFLOP/s"
    if name.endswith("_bytes"):
        return format_memory(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return format_duration(value)
    if name.endswith("_fraction"):
        return f"{value:.0%}"
    if name.endswith(("_tokens", "_params", "_parameters")):
        return format_count(value)
    return plain_number(value)


# Longer than any path or option that a person means; lists have commas, and Chinese no blanks.
_ENDLESS = re.compile(r"[^\s,\u3000-\u9fff\uff00-\uffef]{201,}")
_HEAD, _TAIL = 120, 40


def _cut(text: str) -> str:
    return _ENDLESS.sub(lambda word: f"{word[0][:_HEAD]}...{word[0][-_TAIL:]}", text)


def dress(name: str, value: object) -> Any:
    """Return what a sentence is filled with for a value of that name."""
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        number = _Whole(value) if isinstance(value, int) else _Quantity(value)
        number.shown = _shown(name, value)
        return number
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return ", ".join(str(dress(name, item)) for item in value)
    return value


# Nouns that sentences put behind a number, in the plural.
_COUNTED = (
    "GPUs",
    "chunks",
    "columns",
    "combinations",
    "days",
    "events",
    "files",
    "kernels",
    "layers",
    "machines",
    "micro-batches",
    "nodes",
    "pieces",
    "plans",
    "ranks",
    "replicas",
    "rounds",
    "rows",
    "rules",
    "sequences",
    "smaller ones",
    "stages",
    "steps",
    "tokens",
)
# Words whose number is a name: "tp 1 stages" speaks of stages at tp 1.
_NUMBERED = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "level", "rank", "stage", "step")
_ONE = re.compile(rf"(?:\b([A-Za-z]+) )?(?<![\w.,:/*x-])1 ({'|'.join(_COUNTED)})\b")


def one_of_many(text: str) -> str:
    """Put nouns behind a bare 1 in the singular: ``1 GPUs`` becomes ``1 GPU``."""

    def singular(found: re.Match[str]) -> str:
        if (found[1] or "").lower() in _NUMBERED:
            return found[0]
        return found[0][: -len(found[2])] + re.sub(r"(?<=ch)es$|s$", "", found[2])

    return _ONE.sub(singular, text)


def dress_all(values: Mapping[str, object]) -> dict[str, Any]:
    """Dress every value by its name."""
    return {name: dress(name, value) for name, value in values.items()}
