"""Read quantities that people write with a unit: ``400 Gb/s``, ``2 TB``, ``5 us``, ``15T``.

A small b is a bit and a large B a byte, as everywhere in networking; because one letter is a
factor of eight, a unit that leaves it open (``400gb/s``, ``400 GBPS``) is refused.
"""

from __future__ import annotations

import re

from meshplan.units import parse_bytes

__all__ = [
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
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3}
_FLOP_RATE = re.compile(_NUMBER + r"([kKMGTP]?)(?:FLOPS|FLOP/s|flop/s|FLOPs|flops|F)?\s*")
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
    return float(match[1]) * _SECONDS.get(match[2], 1.0)


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
