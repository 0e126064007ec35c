"""Bytes, seconds and FLOP: constants, parsing and printing.

GiB is 2**30 bytes and is what memory prints in; GB is 1e9 bytes and is what bandwidth prints in.
The two never mix. Names elsewhere carry their unit as a suffix: ``_bytes``, ``_s``, ``_flop``,
``_bytes_per_s``, ``_flop_per_s``.
"""

from __future__ import annotations

import re

__all__ = [
    "BF16_BYTES",
    "FP32_BYTES",
    "GB",
    "GIB",
    "MIB",
    "TERA",
    "format_bandwidth",
    "format_count",
    "format_duration",
    "format_memory",
    "parse_bytes",
]

MIB = 2**20
GIB = 2**30
GB = 10**9
TERA = 10**12

BF16_BYTES = 2.0
FP32_BYTES = 4.0

_BYTE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str) -> float:
    """Read a size such as ``"80 GB"`` or ``"12.94 GiB"``.

    Returns:
        The size [bytes].

    Raises:
        ValueError: when the text is no number followed by a unit.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?\d+)?)\s*([A-Za-z]+)\s*", text)
    if match is None or match[2].lower() not in _BYTE_UNITS:
        raise ValueError(text)
    return float(match[1]) * _BYTE_UNITS[match[2].lower()]


def format_memory(num_bytes: float, *, digits: int = 1) -> str:
    """Print a memory size in GiB, or MiB when it is small."""
    if abs(num_bytes) >= GIB / 10 or num_bytes == 0:
        return f"{num_bytes / GIB:.{digits}f} GiB"
    return f"{num_bytes / MIB:.{digits}f} MiB"


def format_bandwidth(bytes_per_s: float) -> str:
    """Print a bandwidth in GB/s (1e9 bytes)."""
    return f"{bytes_per_s / GB:.4g} GB/s"


def format_count(count: float) -> str:
    """Print a count with k, M, B or T."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= scale:
            return f"{count / scale:.4g}{suffix}"
    return f"{count:.4g}"


def format_duration(seconds: float) -> str:
    """Print a duration in the unit that suits it, from microseconds to days.

    Up to ten minutes it is in seconds, so that steps and their bands read in one unit.
    """
    for least, scale, suffix in (
        (2 * 86400.0, 86400.0, "d"),
        (2 * 3600.0, 3600.0, "h"),
        (600.0, 60.0, "min"),
    ):
        if abs(seconds) >= least:
            return f"{seconds / scale:.3g} {suffix}"
    for scale, suffix in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= 0.9995 * scale:  # three digits of less round up to the next unit
            return f"{seconds / scale:.3g} {suffix}"
    return f"{seconds * 1e6:.3g} us"
