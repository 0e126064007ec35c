"""Why this plan: reasons in their order, what was refused, what lost, what would change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import Block, View, bullets, heading, paragraph, table
from meshplan.app.names import plan_text, step_text
from meshplan.text import has
from meshplan.units import format_duration, format_memory

__all__ = ["flips", "lost_step", "reasons", "refused", "remedies", "runner_up", "signed"]

Json = Mapping[str, Any]

_TOPICS = ("memory", "communication", "degrees")
_MOST_PARTS = 4
_WIDE = 120
_NOTABLE = 0.001


def reasons(items: Iterable[Json], view: View, *, step_time_s: float) -> list[Block]:
    """State the reasons in the order of every decision: memory, communication, degrees."""
    listed = list(items)
    blocks: list[Block] = []
    for topic in _TOPICS:
        about = [reason for reason in listed if reason["topic"] == topic]
        others = [reason for reason in about if "plan" in reason["numbers"]]
        sentences = [
            view.say("reason", reason["code"], reason["numbers"])
            for reason in about
            if reason not in others
        ]
        title = view.t("cli.topic.best_with" if others else f"cli.topic.{topic}")
        if about:
            blocks.append(Text("  " + title, style="bold dim"))
            blocks += bullets(sentences, view, indent=4)
        if others:
            blocks.append(_best_with(others, view, step_time_s=step_time_s))
    return [heading(view.t("cli.title.why")), *blocks] if blocks else []


def _best_with(items: Sequence[Json], view: View, *, step_time_s: float) -> Block:
    """Lay out the best plan with each other degree, and what it costs or gains."""
    columns = [
        (view.t("cli.column.degree"), "left"),
        (view.t("cli.column.plan"), "left"),
        (view.t("cli.column.recompute"), "left"),
        (view.t("cli.column.memory"), "right"),
        (view.t("cli.column.step"), "right"),
        ("", "right"),
        (view.t("cli.column.changes_most"), "left"),
    ]
    rows: list[list[str]] = []
    for reason in items:
        numbers = reason["numbers"]
        change = numbers["step_time_s"] / step_time_s - 1.0
        verdict = reason["code"].removeprefix("best_with_")
        part = view.name("part", numbers["part"])
        rows.append(
            [
                f"{view.name('axis', numbers['knob'])} {numbers['after']}",
                plan_text(numbers["plan"]),
                numbers["plan"]["recompute"],
                format_memory(numbers["peak_bytes"]),
                step_text(numbers["step_time_s"]),
                f"{change:+.1%}",
                view.t(f"cli.best_with.{verdict}", part=part, part_s=numbers["part_s"]),
            ]
        )
    if view.width < _WIDE:
        keep = (0, 1, 4, 5, 6)
        columns = [columns[i] for i in keep]
        rows = [[row[i] for i in keep] for row in rows]
    return table(columns, rows, indent=4, flexible=1, width=view.width)


def refused(result: Json, view: View, *, most: int = 8) -> list[Block]:
    """Count what was looked at, and list which rules refused how many, most first."""
    searched = result["searched"]
    blocks: list[Block] = [
        heading(view.t("cli.title.searched")),
        paragraph(view.t("cli.searched", **_counts(searched)), view, indent=2),
    ]
    rules = sorted(result["rejected"].items(), key=lambda item: -item[1])
    if not rules:
        return blocks
    rows = [(f"{count:,}", _rule_name(rule, view)) for rule, count in rules[:most]]
    blocks.append(paragraph(view.t("cli.refused"), view, indent=2))
    blocks.append(table([("", "right"), ("", "left")], rows, indent=4))
    if len(rules) > most:
        rest = sum(count for _, count in rules[most:])
        more = view.t("cli.refused_more", count=len(rules) - most, total=f"{rest:,}")
        blocks.append(Text("    " + more, style="dim"))
    return blocks


def _counts(searched: Json) -> dict[str, object]:
    shown: dict[str, object] = {
        name: f"{value:,}" for name, value in searched.items() if name.startswith("num_")
    }
    return {**shown, "elapsed_s": searched["elapsed_s"]}


def _rule_name(rule: str, view: View) -> str:
    return view.name("rule", rule) if has(f"rule.{rule}", view.lang) else rule


def runner_up(result: Json, view: View) -> list[Block]:
    """Say what put the second plan behind the first, and where its step differs."""
    lost = result["runner_up"]
    if not lost:
        return []
    slower = lost["slower_fraction"]
    text = view.t(
        f"decided.{lost['decided_by']}",
        plan=plan_text(result["plans"][lost["rank"] - 1]["plan"]),
        best=plan_text(result["plans"][0]["plan"]),
        gap=abs(slower),
        gap_s=abs(lost["slower_s"]),
        sign=view.t("cli.slower" if slower >= 0 else "cli.faster"),
    )
    parts = sorted(lost["differences"].items(), key=lambda item: -abs(item[1]))
    notable = [item for item in parts[:_MOST_PARTS] if abs(item[1]) >= _NOTABLE * lost_step(result)]
    blocks: list[Block] = [
        heading(view.t("cli.title.runner_up")),
        paragraph(text, view, indent=2),
    ]
    if notable:
        named = (f"{view.name('part', part)} {signed(seconds)}" for part, seconds in notable)
        rest = view.t("cli.its_step", parts=view.t("cli.comma").join(named))
        blocks.append(paragraph(rest, view, indent=2))
    return blocks


def lost_step(result: Json) -> float:
    """Step time of the best plan, against which differences are notable or not [s]."""
    return float(result["plans"][0]["step_time_s"])


def signed(seconds: float) -> str:
    """Print a difference in time with its sign."""
    return ("+" if seconds > 0 else "-") + format_duration(abs(seconds))


def flips(items: Iterable[Json], view: View) -> list[Block]:
    """Say which changes of the job or cluster would change the choice."""
    sentences = []
    for flip in items:
        outcome = "none_fits" if flip["plan"] is None else "other"
        if flip["plan"] and flip["gain"] is None:
            outcome = "no_longer_fits"
        sentences.append(
            view.t(
                f"cli.flip.{outcome}",
                change=view.t(f"cli.change.{flip['change']}"),
                before=_quantity(flip["change"], flip["before"]),
                after=_quantity(flip["change"], flip["after"]),
                plan=plan_text(flip["plan"]) if flip["plan"] else "",
                gain=flip["gain"] or 0.0,
            )
        )
    if not sentences:
        return []
    return [heading(view.t("cli.title.flips")), *bullets(sentences, view)]


def _quantity(change: str, value: float) -> str:
    if change == "network_bandwidth":
        return f"{value / 1e9:.4g} GB/s"
    return format_memory(value) if change == "device_memory" else f"{value:,.0f}"


def remedies(items: Iterable[Json], view: View) -> list[Block]:
    """Say what would make it fit, each with its price in time."""
    sentences = [
        view.t(
            f"cli.remedy.{item['kind']}",
            before=_listed(item["before"]),
            after=_listed(item["after"]),
            plan=plan_text(item["plan"]),
            peak_bytes=item["peak_bytes"],
            step_time=format_duration(item["step_time_s"]),
        )
        for item in items
    ]
    if not sentences:
        return [heading(view.t("cli.title.remedies")), paragraph(view.t("cli.no_remedy"), view)]
    return [heading(view.t("cli.title.remedies")), *bullets(sentences, view)]


def _listed(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_listed(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value)
