"""Predicted against measured: bars of each part of the step, its phases and its collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from meshplan.app.cli.layout import cell_len
from meshplan.app.cli.render.blocks import Block, Cell, View, bar, heading, paragraph, table
from meshplan.units import format_duration, format_memory

__all__ = ["render_calibration", "render_comparison"]

Json = Mapping[str, Any]

_BAR, _SHORTEST_BAR = 24, 8
_BESIDE = 46
"""Cells that names of columns, times and gaps take beside names of parts and bars."""
_SAME = 0.02
"""Parts that differ by less are called the same."""


def render_comparison(found: Json, view: View) -> Iterator[Block]:
    """The step, its parts as pairs of bars, its phases and its large collectives."""
    step = found["step"]
    yield heading(view.t("compared.title", rank=found["rank"]))
    yield paragraph(
        view.t(
            "compared.step",
            predicted_s=step["predicted_s"],
            low_s=found["low_s"],
            high_s=found["high_s"],
            measured_s=step["measured_s"],
            error=step["predicted_s"] / step["measured_s"] - 1.0,
        ),
        view,
        indent=2,
    )
    yield _bars(found["parts"], "compared.part", view)
    if found["phases"]:
        yield Text("  " + view.t("compared.phases"), style="dim")
        yield _bars(found["phases"], "compared.phase", view)
    if found["collectives"]:
        yield Text("  " + view.t("compared.collectives"), style="dim")
        yield _collectives(found["collectives"], view)


def _bars(parts: Sequence[Json], prefix: str, view: View) -> Text:
    """Two bars for each part, on one scale."""
    largest = max(
        (part[key] or 0.0 for part in parts for key in ("predicted_s", "measured_s")), default=0.0
    )
    names = [view.t(f"{prefix}.{part['code']}") for part in parts]
    left = (view.width - _BESIDE - max(cell_len(name) for name in names)) // 2
    width = max(_SHORTEST_BAR, min(_BAR, left))
    rows: list[Sequence[Cell]] = []
    for name, part in zip(names, parts, strict=True):
        predicted, measured = part["predicted_s"], part["measured_s"]
        rows.append(
            (
                name,
                _bar(predicted, largest, "", width),
                _time(predicted),
                _bar(measured, largest, _style(predicted, measured), width),
                _time(measured),
                _difference(predicted, measured),
            )
        )
    titles = ("", "predicted", "", "measured", "", "difference")
    columns = [
        (view.t(f"compared.column.{name}") if name else "", "right" if i in (2, 4, 5) else "left")
        for i, name in enumerate(titles)
    ]
    return table(columns, rows)


def _bar(value: float | None, largest: float, style: str, width: int) -> Text:
    return bar((value or 0.0) / largest if largest > 0 else 0.0, width=width, style=style)


def _time(value: float | None) -> str:
    return "" if value is None else format_duration(value)


def _style(predicted: float | None, measured: float | None) -> str:
    if not predicted or not measured or abs(measured / predicted - 1.0) <= _SAME:
        return ""
    return "yellow" if measured > predicted else "green"


def _difference(predicted: float | None, measured: float | None) -> str:
    """What was measured over what was predicted, in seconds with a sign."""
    if predicted is None or measured is None:
        return ""
    sign = "+" if measured >= predicted else "-"
    return sign + format_duration(abs(measured - predicted))


def _collectives(rows: Sequence[Json], view: View) -> Text:
    titles = ("axis", "kind", "group", "size", "predicted", "measured")
    columns = [
        (view.t(f"compared.column.{name}"), "left" if name in ("axis", "kind") else "right")
        for name in titles
    ]
    return table(
        columns,
        [
            (
                "?" if row["axis"] == "unknown" else row["axis"].upper(),
                row["kind"].replace("_", "-"),
                view.t(
                    "compared.across" if row["crosses_nodes"] else "compared.inside",
                    num=row["group_size"],
                ),
                format_memory(row["message_bytes"]),
                format_duration(row["predicted_s"]),
                format_duration(row["measured_s"]),
            )
            for row in rows
        ],
    )


def render_calibration(found: Json, view: View) -> Iterator[Block]:
    """How far the step was off before and after."""
    text = view.t("compared.calibrated", before=found["before"], after=found["after"])
    yield heading(view.t("compared.title_calibrated"))
    yield paragraph(text, view, indent=2)
