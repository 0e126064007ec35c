"""Why this plan: reasons in their order, what was refused, what lost, what would change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import Block, View, bullets, heading, paragraph, table
from meshplan.app.names import batch_text, plan_text, step_text
from meshplan.app.sentences import flip_text, remedy_text, runner_up_texts, switch_texts
from meshplan.text import has
from meshplan.units import format_duration, format_memory

__all__ = ["flips", "reasons", "refused", "remedies", "runner_up", "switches"]

Json = Mapping[str, Any]

_TOPICS = ("memory", "communication", "degrees")
_WIDE, _NARROW = 120, 76
_ON_A_NARROW_SCREEN = (0, 1, 4, 5, 6)


def reasons(items: Iterable[Json], view: View, *, best: Json) -> list[Block]:
    """State the reasons in the order of every decision: memory, communication, degrees.

    Args:
        items: the reasons.
        view: language and width.
        best: the entry of the plan that they speak of.
    """
    listed = list(items)
    blocks: list[Block] = []
    for topic in _TOPICS:
        about = [reason for reason in listed if reason["topic"] == topic]
        others = [reason for reason in about if reason["code"].startswith("best_with")]
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
            blocks.append(_best_with(others, view, best=best))
    return [heading(view.t("cli.title.why")), *blocks] if blocks else []


def _best_with(items: Sequence[Json], view: View, *, best: Json) -> Block:
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
    groups = _by_plan(items)
    plans = [group[0]["numbers"]["plan"] for group in groups]
    named = Counter(plan_text(plan) for plan in (best["plan"], *plans))
    shared = {name for name, count in named.items() if count > 1}
    rows = [_other(group, view, step_time_s=best["step_time_s"], shared=shared) for group in groups]
    kept = list(range(len(columns)) if view.width >= _WIDE else _ON_A_NARROW_SCREEN)
    kept = [i for i in kept if view.width >= _NARROW or i < len(columns) - 1]
    columns = [columns[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    return table(columns, rows, indent=4, flexible=1, width=view.width)


def _by_plan(items: Iterable[Json]) -> list[list[Json]]:
    """Put reasons together that name the same plan."""
    groups: list[list[Json]] = []
    for reason in items:
        for group in groups:
            if group[0]["numbers"]["plan"] == reason["numbers"]["plan"]:
                group.append(reason)
                break
        else:
            groups.append([reason])
    return groups


def _other(
    group: Sequence[Json], view: View, *, step_time_s: float, shared: Collection[str]
) -> list[str]:
    """One row: the degrees that lead to a plan, and what it costs or gains.

    A name that plans share tells their micro-batches and recompute too.
    """
    numbers = group[0]["numbers"]
    plan = numbers["plan"]
    name = plan_text(plan)
    if name in shared:
        more = (batch_text(plan),) if view.width >= _WIDE else (batch_text(plan), plan["recompute"])
        name = view.t("cli.comma").join((name, *more))
    seconds = numbers["step_time_s"] - step_time_s
    sign = "+" if seconds > 0 else "-"
    names = [f"{view.name('axis', r['numbers']['knob'])} {r['numbers']['after']}" for r in group]
    return [
        view.t("cli.comma").join(names),
        name,
        plan["recompute"],
        format_memory(numbers["peak_bytes"]),
        step_text(numbers["step_time_s"]),
        f"{seconds / step_time_s:+.1%}",
        view.t(
            f"cli.best_with.{group[0]['code'].removeprefix('best_with_')}",
            part=view.name("part", numbers["part"]),
            part_s=sign + format_duration(numbers["part_s"]),
        ),
    ]


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
    columns = [("", "right"), ("", "left")]
    rows = [(f"{count:,}", _rule_name(rule, view)) for rule, count in rules[:most]]
    blocks.append(paragraph(view.t("cli.refused"), view, indent=2))
    blocks.append(table(columns, rows, indent=4, flexible=1, width=view.width))
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
    said = runner_up_texts(result, view.lang)
    if not said:
        return []
    title = heading(view.t("cli.title.runner_up"))
    return [title, *(paragraph(text, view, indent=2) for text in said)]


def switches(items: Iterable[Json], view: View, *, best: Json) -> list[Block]:
    """Say which settings of the framework the plan would gain from.

    Args:
        items: the settings, the most first.
        view: language and width.
        best: the entry of the plan that they were tried on.
    """
    blocks: list[Block] = []
    for item in items:
        claim, *more = switch_texts(item, best, view.lang)
        blocks += bullets([claim], view)
        blocks += [paragraph(text, view, indent=4, style="dim") for text in more]
    return [heading(view.t("cli.title.switches")), *blocks] if blocks else []


def flips(items: Iterable[Json], view: View) -> list[Block]:
    """Say which changes of the job or cluster would change the choice."""
    sentences = [flip_text(flip, view.lang) for flip in items]
    if not sentences:
        return []
    return [heading(view.t("cli.title.flips")), *bullets(sentences, view)]


def remedies(
    items: Iterable[Json], view: View, *, title: str = "cli.title.remedies"
) -> list[Block]:
    """Say what would make it fit, or be in time, each with its price in time."""
    sentences = [remedy_text(item, view.lang) for item in items]
    if not sentences:
        return [heading(view.t(title)), paragraph(view.t("cli.no_remedy"), view)]
    return [heading(view.t(title)), *bullets(sentences, view)]
