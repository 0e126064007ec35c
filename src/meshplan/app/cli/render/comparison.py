"""The answer of ``compare``: plans in columns, what differs first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.answer import assumptions
from meshplan.app.cli.render.blocks import Block, View, heading, paragraph, table
from meshplan.app.cli.render.plans import VERDICT_STYLE
from meshplan.app.cli.render.scenario import scenario_lines
from meshplan.app.names import batch_text, percent, plan_text, step_text
from meshplan.units import format_duration, format_memory

__all__ = ["render_compare"]

Json = Mapping[str, Any]
Cell = str | Text


def render_compare(result: Json, view: View) -> Iterator[Block]:
    """Put the plans side by side."""
    yield from scenario_lines(result, view)
    plans: Sequence[Json] = result["plans"]
    best = None if result["best"] is None else result["best"] - 1
    yield Text()
    yield paragraph(_verdict(plans, best, view), view, style="bold")
    for i, entry in enumerate(plans):
        name = plan_text(entry["plan"])
        yield Text(f"  {_letter(i)}  {name}", style="bold" if i == best else "")
    yield heading(view.t("cli.title.compare"))
    yield table(_columns(plans, best), _rows(plans, view), indent=2)
    yield heading(view.t("cli.title.differences"))
    yield table(_columns(plans, best), _part_rows(plans, view), indent=2)
    yield from assumptions(result, view)


def _verdict(plans: Sequence[Json], best: int | None, view: View) -> str:
    if best is None:
        return view.t("cli.compare.none_fits")
    others = [p for i, p in enumerate(plans) if i != best and p["memory"]["verdict"] != "oom"]
    if not others:
        return view.t("cli.compare.only_fits", letter=_letter(best))
    nearest = min(others, key=lambda entry: entry["step_time_s"])
    gain = nearest["step_time_s"] / plans[best]["step_time_s"] - 1.0
    code = "cli.compare.fastest" if gain >= 0 else "cli.compare.surest"
    return view.t(code, letter=_letter(best), gain=abs(gain))


def _letter(index: int) -> str:
    return "ABCD"[index]


def _columns(plans: Sequence[Json], best: int | None) -> list[tuple[str, str]]:
    titles = [_letter(i) + (" *" if i == best else "") for i in range(len(plans))]
    return [("", "left"), *((title, "right") for title in titles)]


def _rows(plans: Sequence[Json], view: View) -> Iterator[list[Cell]]:
    """Plan fields that differ, then the results."""
    fields: list[tuple[str, Callable[[Json], str]]] = [
        ("framework", lambda p: p["plan"]["framework"]),
        ("schedule", lambda p: p["plan"]["schedule"] if p["plan"]["pp"] > 1 else "-"),
        ("batch", lambda p: batch_text(p["plan"])),
        ("recompute", lambda p: p["plan"]["recompute"]),
    ]
    for code, show in fields:
        cells = [show(p) for p in plans]
        if len(set(cells)) > 1:
            yield [view.t(f"cli.column.{code}"), *cells]
    yield [
        view.t("cli.column.memory"),
        *(format_memory(p["memory"]["peak_bytes"]) for p in plans),
    ]
    yield ["", *(_verdict_cell(p["memory"]["verdict"], view) for p in plans)]
    yield [view.t("cli.column.step"), *(step_text(p["step_time_s"]) for p in plans)]
    for end in ("low", "high"):
        ends = (step_text(p["band"][f"{end}_s"]) for p in plans)
        yield [Text("  " + view.t(f"cli.column.band_{end}"), style="dim"), *ends]
    yield ["MFU", *(percent(p["mfu"]) for p in plans)]
    yield ["HFU", *(percent(p["hfu"]) for p in plans)]
    yield [
        view.t("cli.column.tokens_per_s"),
        *(f"{p['tokens_per_s_per_gpu']:,.0f}" for p in plans),
    ]


def _verdict_cell(verdict: str, view: View) -> Text:
    return Text(view.t(f"cli.verdict.{verdict}"), style=VERDICT_STYLE[verdict])


def _part_rows(plans: Sequence[Json], view: View) -> Iterator[list[Cell]]:
    """Seconds of each part in the first plan, and how the others differ from it."""
    parts = plans[0]["time"]
    by_spread = sorted(parts, key=lambda part: -_spread(plans, part))
    for part in by_spread:
        if any(plan["time"][part] > 0 for plan in plans):
            base = plans[0]["time"][part]
            deltas = [_delta(plan["time"][part] - base) for plan in plans[1:]]
            yield [view.name("part", part), format_duration(base) if base else "-", *deltas]
    base = plans[0]["step_time_s"]
    deltas = [_delta(plan["step_time_s"] - base) for plan in plans[1:]]
    yield [Text(view.t("cli.column.step"), style="bold"), format_duration(base), *deltas]


def _spread(plans: Sequence[Json], part: str) -> float:
    values = [float(plan["time"][part]) for plan in plans]
    return max(values) - min(values)


def _delta(seconds: float) -> Cell:
    if seconds == 0:
        return Text("=", style="dim")
    sign, style = ("+", "red") if seconds > 0 else ("-", "green")
    return Text(sign + format_duration(abs(seconds)), style=style)
