"""Read quantities that people write with a unit: ``400 Gb/s``, ``2 TB``, ``5 us``, ``15T``.

A small b is a bit and a large B a byte, as everywhere in networking; because one letter is a
factor of eight, a unit that leaves it open (``400gb/s``, ``400 GBPS``) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from meshplan.units import parse_bytes

__all__ = [
    "bandwidth_text",
    "duration_text",
    "flop_rate_text",
    "memory_text",
    "parse_bandwidth",
    "parse_duration",
    "parse_flop_rate",
    "parse_memory",
    "parse_tokens",
]

_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*"
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BANDWIDTH = re.compile(
    _NUMBER + r"(Ki|Mi|Gi|Ti|[kKMGT]?)(bits?|b|bytes?|B)(?:/s|ps|/sec|/second)\s*"
)
_DURATION = re.compile(_NUMBER + r"(ns|us|µs|μs|ms|s|sec|seconds?)\s*")
_EXPONENTS = {"ns": -9, "us": -6, "µs": -6, "μs": -6, "ms": -3}
_FLOP_RATE = re.compile(_NUMBER + r"([kKMGTP]?)(?:FLOPS|FLOP/s|flop/s|FLOPs|flops)\s*")
_TOKENS = re.compile(_NUMBER + r"([kKmMbBgGtT]?)(?:\s*tokens?)?\s*")
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def parse_bandwidth(text: str) -> float:
    """Read a rate such as ``400 Gb/s``, ``400Gbps``, ``50 GB/s`` or ``46 GiB/s``.

    Returns:
        The rate [bytes/s].

    Raises:
        ValueError: when the text is no number followed by such a unit.
    """
    match = _BANDWIDTH.fullmatch(text)
    if match is None:
        raise ValueError(text)
    number, scale, what = float(match[1]), match[2], match[3]
    bytes_per_unit = 1.0 if what[0] == "B" or what.startswith("byte") else 0.125
    return number * (_BINARY.get(scale) or _SCALES[scale]) * bytes_per_unit


def parse_memory(text: str) -> float:
    """Read a size such as ``80 GiB`` or ``2 TB`` [bytes].

    Raises:
        ValueError: when the text is no size, or writes a bit (``Gb``) where a byte is meant.
    """
    if re.search(r"[kMGTi]b\s*$", text):
        raise ValueError(text)
    return parse_bytes(text)


def parse_duration(text: str) -> float:
    """Read a short time such as ``5 us`` or ``0.6 ms`` [s].

    Raises:
        ValueError: when the text is no number followed by such a unit.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    # decimally, so that 0.6 us becomes 6e-7 and not its neighbour
    return float(Decimal(match[1]).scaleb(_EXPONENTS.get(match[2], 0)))


def parse_flop_rate(text: str) -> float:
    """Read a rate such as ``989.4 TFLOP/s`` or ``2.5 PFLOPS`` [flop/s].

    Raises:
        ValueError: when the text is no number followed by such a unit.
    """
    match = _FLOP_RATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _SCALES[match[2]]


def parse_tokens(text: str) -> float:
    """Read a count such as ``15T``, ``300B tokens`` or ``1.4e12``.

    Raises:
        ValueError: when the text is no such count.
    """
    match = _TOKENS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _COUNTS[match[2].lower()]


def _exact(
    value: float, forms: tuple[tuple[float, str], ...], parse: Callable[[str], float]
) -> str:
    """The shortest text that reads back as exactly the value."""
    for scale, unit in forms:
        text = f"{value / scale:.10g} {unit}"
        if 0.1 <= value / scale < 1e6 and parse(text) == value:
            return text
    return f"{value!r} {forms[-1][1]}"


def bandwidth_text(value: float) -> str:
    """Write a rate [bytes/s] so that ``parse_bandwidth`` reads back exactly the same."""
    return _exact(value, ((1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")), parse_bandwidth)


def memory_text(value: float) -> str:
    """Write a size [bytes] so that ``parse_memory`` reads back exactly the same."""
    forms = ((2.0**30, "GiB"), (2.0**20, "MiB"), (1e9, "GB"), (1.0, "B"))
    return _exact(value, forms, parse_memory)


def duration_text(value: float) -> str:
    """Write a short time [s] so that ``parse_duration`` reads back exactly the same."""
    return _exact(value, ((1e-6, "us"), (1e-3, "ms"), (1.0, "s")), parse_duration)


def flop_rate_text(value: float) -> str:
    """Write a rate [flop/s] so that ``parse_flop_rate`` reads back exactly the same."""
    return _exact(value, ((1e12, "TFLOP/s"), (1.0, "FLOP/s")), parse_flop_rate)
