"""The answer of ``explain``: formulas with their numbers filled in, and where these come from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.text import Text

from meshplan.app.cli.layout import wrap
from meshplan.app.cli.render.answer import assumptions
from meshplan.app.cli.render.blocks import Block, View, bullets, heading, paragraph, table
from meshplan.app.cli.render.plans import verdict_text
from meshplan.app.cli.render.scenario import scenario_lines
from meshplan.app.names import percent, plan_text
from meshplan.app.sentences import source_text, unit_text
from meshplan.units import TERA, format_bandwidth, format_count, format_duration, format_memory

__all__ = ["amount", "render_explain"]

Json = Mapping[str, Any]

_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_SHOWN_AREAS = ("device", "network")


def render_explain(result: Json, view: View) -> Iterator[Block]:
    """Show formula after formula, in the order parameters, memory, time, efficiency."""
    yield from scenario_lines(result, view)
    entry = result["plans"][0]
    yield Text()
    yield Text(plan_text(entry["plan"]), style="bold")
    yield verdict_text(entry, view)
    for group, formulas in groupby(result["formulas"], key=lambda f: f["group"]):
        yield heading(view.t(f"cli.group.{group}"))
        for formula in formulas:
            yield from _formula(formula, view)
    yield from _constants(result["constants"], view)
    yield from assumptions(result, view)


def _formula(formula: Json, view: View) -> Iterator[Block]:
    subject = view.t("cli.comma").join(
        _about(key, value, view) for key, value in formula["subject"].items()
    )
    title = Text("  " + view.name("formula", formula["code"]))
    if subject:
        title.append(f" ({subject})", style="dim")
    yield title
    yield from _equation(formula["expression"], view)
    yield from _equation(_filled(formula), view)
    result = Text("    = ")
    result.append(amount(formula["result"], formula["unit"], view), style="bold")
    yield result
    sources = (
        [view.t("cli.source", source=source_text(formula["source"], view.lang))]
        if formula["source"]
        else []
    )
    sources += [_sourced(value, view) for value in formula["values"] if value["source"]]
    for source in sources:
        yield paragraph(source, view, indent=6, style="dim")


def _about(key: str, value: object, view: View) -> str:
    """Name what a formula is about: a stage, an axis, an event."""
    if key == "event":
        return view.name("event", str(value))
    if key == "stage":
        return view.t("cli.memory.stage", stage=value)
    if key == "axis":
        return str(value).upper()
    return f"{view.name('axis', key)} {value}"


def _equation(text: str, view: View) -> Iterator[Block]:
    lines = wrap(text, max(30, view.width - 6))
    yield Text("    = " + "\n      ".join(lines))


def _filled(formula: Json) -> str:
    """The expression with short numbers in place of its symbols; names of functions stay."""
    numbers = {value["symbol"]: _short(value["value"]) for value in formula["values"]}
    return _SYMBOL.sub(lambda m: numbers.get(m.group(), m.group()), formula["expression"])


def _short(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    text = f"{value:.5g}"
    return text.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def _sourced(value: Json, view: View) -> str:
    return view.t(
        "cli.value_source",
        symbol=value["symbol"],
        amount=amount(value["value"], value["unit"], view),
        kind=view.t(f"cli.kind.{value['kind']}"),
        source=source_text(value["source"], view.lang),
    )


def amount(value: float, unit: str, view: View) -> str:
    """Print a number with its unit, in the unit that people use for it."""
    match unit:
        case "bytes":
            return format_memory(value, digits=2)
        case "bytes/s":
            return format_bandwidth(value)
        case "flop/s":
            return f"{value / TERA:.4g} TFLOP/s"
        case "s":
            return format_duration(value)
        case "1":
            return percent(value)
        case "flop":
            return f"{value:.4g} FLOP"
        case "":
            return format_count(value) if abs(value) >= 1e6 else f"{value:.6g}"
    return f"{format_count(value)} {unit_text(unit, view.lang)}"


def _constants(constants: Sequence[Json], view: View) -> Iterator[Block]:
    """List the constants of the hardware, and count those of the models with their kinds."""
    yield heading(view.t("cli.title.constants"))
    shown = [c for c in constants if c["area"] in _SHOWN_AREAS]
    rows = [
        (
            c["name"],
            amount(c["value"], c["unit"], view),
            Text(view.t(f"cli.kind.{c['kind']}"), "dim"),
        )
        for c in shown
    ]
    yield table([("", "left"), ("", "right"), ("", "left")], rows)
    counts = []
    for area in dict.fromkeys(c["area"] for c in constants if c["area"] not in _SHOWN_AREAS):
        kinds = Counter(c["kind"] for c in constants if c["area"] == area)
        listed = view.t("cli.comma").join(
            f"{count} {view.t(f'cli.kind.{kind}')}" for kind, count in kinds.most_common()
        )
        counts.append(view.t("cli.constants_of", area=view.t(f"cli.area.{area}"), kinds=listed))
    yield from bullets(counts, view)
    yield paragraph(view.t("cli.constants_json"), view, indent=2, style="dim")
