"""What hardware can be: bounds of the figures of devices and clusters."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import yaml

from meshplan.errors import UserError
from meshplan.inputs.load.fields import Kind
from meshplan.inputs.load.presets import PRESETS, Loader
from meshplan.inputs.load.quantity import (
    parse_bandwidth,
    parse_duration,
    parse_flop_rate,
    parse_memory,
)
from meshplan.inputs.vocabulary import shown

__all__ = ["Figure", "bounded", "check_bounds"]

Figure = Literal["device_memory", "memory_bandwidth", "peak", "link", "latency", "host_memory"]

_PARSERS: dict[Figure, Callable[[str], float]] = {
    "device_memory": parse_memory,
    "memory_bandwidth": parse_bandwidth,
    "peak": parse_flop_rate,
    "link": parse_bandwidth,
    "latency": parse_duration,
    "host_memory": parse_memory,
}


def bounded(kind: Kind, figure: Figure, *, unit: float = 1.0) -> Kind:
    """A kind of value that is refused where no hardware can be so.

    Args:
        kind: reads the value.
        figure: what it is a figure of.
        unit: what the value is counted in [bytes, bytes/s, flop/s or s].
    """

    def read(value: Any, where: str) -> float:
        found: float = kind.read(value, where)
        check_bounds(figure, unit * found, where=where, value=value)
        return found

    return Kind(read=read, schema=kind.schema)


def check_bounds(figure: Figure, found: float, *, where: str, value: object) -> None:
    """Refuse a figure that no hardware has.

    Args:
        figure: what it is a figure of.
        found: its size [bytes, bytes/s, flop/s or s].
        where: its place.
        value: how the user wrote it.

    Raises:
        UserError: ``beyond_hardware``.
    """
    least, most = _bounds()[figure]["least"]["value"], _bounds()[figure]["most"]["value"]
    parse = _PARSERS[figure]
    if not parse(least) <= found <= parse(most):
        raise UserError.of(
            "beyond_hardware", where=where, value=shown(value), least=least, most=most
        )


@lru_cache(maxsize=1)
def _bounds() -> dict[Figure, Any]:
    content = yaml.load((PRESETS / "bounds.yaml").read_text("utf-8"), Loader)
    found: dict[Figure, Any] = content["bounds"]
    return found
