"""The parts of a step as bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import Block, View, bar, table
from meshplan.app.names import percent
from meshplan.units import format_duration

__all__ = ["step_bars"]

_STYLE = {"compute_s": "green", "recompute_s": "yellow", "bubble_s": "magenta"}
_NOT_BARS = 44
_LEAST = 1e-5
"""Parts below this share of the step are left out: rounding, not time."""


def step_bars(entry: Mapping[str, Any], view: View) -> list[Block]:
    """Draw the parts of the step that take any time, longest first."""
    total_s = entry["step_time_s"]
    parts = sorted(entry["time"].items(), key=lambda item: -item[1])
    width = max(10, min(50, view.width - _NOT_BARS))
    rows = [
        (
            view.name("part", code),
            bar(seconds / total_s, width=width, style=_STYLE.get(code, "blue")),
            format_duration(seconds),
            Text(percent(seconds / total_s), style="dim"),
        )
        for code, seconds in parts
        if seconds > _LEAST * total_s
    ]
    return [table([("", "left"), ("", "left"), ("", "right"), ("", "right")], rows)]
