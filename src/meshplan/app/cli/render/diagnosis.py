"""The answer of ``diagnose``: where the step goes, what costs time, what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import (
    Block,
    Cell,
    View,
    bar,
    bullets,
    heading,
    paragraph,
    table,
)
from meshplan.app.cli.render.compared import render_calibration, render_comparison
from meshplan.app.diagnosis_words import (
    TRAFFIC_COLUMNS,
    check_words,
    finding_words,
    headline_words,
    note_words,
    nothing_words,
    rule_words,
    steps_marked,
    traffic_words,
)
from meshplan.units import format_duration

__all__ = ["render_diagnose"]

Json = Mapping[str, Any]

_BAR = 46
_NOTABLE = 0.001
_MOST_TIMERS = 12
_LEFT = ("axis", "kind", "basis")
_STYLES = {"large": "bold red", "medium": "bold yellow", "small": "bold"}


def render_diagnose(result: Json, view: View) -> Iterator[Block]:
    """What was given, where the step goes, what costs time, what could not be told."""
    if "allocation" in result:
        yield from _allocation(result["allocation"], view)
        return
    run = result["run"]
    yield from _headline(result, view)
    yield from _parts(run, view)
    yield from _timers(run, view)
    yield from _traffic(run, view)
    if result["comparison"] is not None:
        yield from render_comparison(result["comparison"], view)
    yield from _findings(result, view)
    yield from _rule_of_thumb(result, view)
    yield from _checks(result, view)
    yield from _notes(run, view)
    if "calibration" in result:
        yield from render_calibration(result["calibration"], view)


def _headline(result: Json, view: View) -> Iterator[Block]:
    plan, *rest = headline_words(result, view.lang) or ("",)
    if result["plan"] is not None:
        yield Text(plan, style="bold")
    else:
        rest = [plan, *rest] if plan else rest
    yield from (paragraph(text, view) for text in rest)


def _parts(run: Json, view: View) -> Iterator[Block]:
    if run["step_time_s"] is None:
        return
    title = "where" if steps_marked(run) else "whole"
    yield heading(view.t(f"diagnose.title.{title}", step_time_s=run["step_time_s"]))
    shown = [(name, share) for name, share in run["parts"].items() if share > _NOTABLE]
    step_s = run["step_time_s"]
    rows: list[Sequence[Cell]] = [
        (
            view.t(f"diagnose.part.{name}"),
            bar(share, width=_BAR),
            format_duration(share * step_s),
            f"{share:.1%}",
        )
        for name, share in sorted(shown, key=lambda item: -item[1])
    ]
    yield table([("", "left"), ("", "left"), ("", "right"), ("", "right")], rows)
    if run["efficiency"] is not None:
        yield Text("  " + view.t("diagnose.efficiency", efficiency=run["efficiency"]), style="dim")


def _timers(run: Json, view: View) -> Iterator[Block]:
    """What the timers of each log say that has some."""
    for log in run["logs"]:
        step_s = log["step_time_s"]
        timers = {n: s for n, s in log["timers_s"].items() if step_s and s / step_s > _NOTABLE}
        if not timers:
            continue
        yield heading(view.t("diagnose.title.timers", file=log["file"], step_time_s=step_s))
        rows: list[Sequence[Cell]] = [
            (name, bar(min(s / step_s, 1.0), width=_BAR), format_duration(s), f"{s / step_s:.1%}")
            for name, s in sorted(timers.items(), key=lambda item: -item[1])[:_MOST_TIMERS]
        ]
        yield table([("", "left"), ("", "left"), ("", "right"), ("", "right")], rows)


def _traffic(run: Json, view: View) -> Iterator[Block]:
    rows = traffic_words(run, view.lang)
    if not rows:
        return
    yield heading(view.t("diagnose.title.traffic"))
    columns = [
        (view.t(f"diagnose.column.{name}"), "left" if name in _LEFT else "right")
        for name in TRAFFIC_COLUMNS
    ]
    yield table(columns, rows)


def _findings(result: Json, view: View) -> Iterator[Block]:
    yield heading(view.t("diagnose.title.findings"))
    if not result["findings"]:
        looked = any(check["state"] == "clear" for check in result["checks"])
        said = nothing_words(result, view.lang)
        yield paragraph(said, view, indent=2, style="green" if looked else "")
        return
    for number, finding in enumerate(result["findings"], start=1):
        words = finding_words(finding, view.lang, whole=not steps_marked(result["run"]))
        title = Text(f"  {number}. ")
        title.append(words["title"], style=_STYLES[finding["severity"]])
        title.append(f"   {words['cost']}")
        yield title
        lines = (words[name] for name in ("evidence", "where", "next", "expected", "certain"))
        yield from bullets((line for line in lines if line), view, mark=" ", indent=3)


def _rule_of_thumb(result: Json, view: View) -> Iterator[Block]:
    if result["rule_of_thumb"] is not None:
        yield heading(view.t("diagnose.title.rule"))
        yield from bullets(rule_words(result, view.lang), view)


def _checks(result: Json, view: View) -> Iterator[Block]:
    words = check_words(result, view.lang)
    if words["open"]:
        yield heading(view.t("diagnose.title.open"))
        yield from bullets(words["open"], view)
    if words["clear"]:
        yield heading(view.t("diagnose.title.clear"))
        yield paragraph(view.t("diagnose.and").join(words["clear"]), view, indent=2, style="dim")


def _notes(run: Json, view: View) -> Iterator[Block]:
    said = note_words(run, view.lang)
    if said:
        yield heading(view.t("diagnose.title.notes"))
        yield from bullets(said, view)


def _allocation(found: Json, view: View) -> Iterator[Block]:
    yield Text(view.t("diagnose.allocation.title", size_bytes=found["num_bytes"]), style="bold")
    if not found["candidates"]:
        yield paragraph(view.t("diagnose.allocation.none"), view, indent=2)
        return
    rows: list[Sequence[Cell]] = []
    for one in found["candidates"]:
        shape = " x ".join(str(n) for n in one["shape"])
        when = "" if one["micro_batch"] is None else f"micro-batch {one['micro_batch']}"
        name = view.name("tensor", one["code"])
        rows.append((name, f"{shape} x {one['element_bytes']} B", f"{one['error']:+.2%}", when))
    names = ("tensor", "shape", "off", "when")
    columns = [(view.t(f"diagnose.allocation.{n}"), "left") for n in names]
    yield table(columns, rows)
