"""The table of plans and the headline numbers of one plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import Block, View, facts, heading, table
from meshplan.app.names import batch_text, percent, plan_text, step_text
from meshplan.app.sentences import room_text
from meshplan.units import format_count, format_memory

__all__ = [
    "VERDICT_STYLE",
    "days_text",
    "headline_facts",
    "plans_table",
    "sizes",
    "verdict_text",
]

Entry = Mapping[str, Any]

VERDICT_STYLE = {"fits": "green", "tight": "yellow", "oom": "red"}

_WIDE, _WIDEST = 100, 124
_NOTABLE = 1.1


def plans_table(entries: Sequence[Entry], view: View) -> Text:
    """Lay out the plans, best first; a narrow terminal gets fewer columns."""
    several = len({entry["plan"]["framework"] for entry in entries}) > 1
    sizes = len({entry["num_gpus"] for entry in entries}) > 1
    columns: list[tuple[str, str]] = [("#", "left")]
    if sizes:
        columns.append((view.t("cli.column.gpus"), "right"))
    if several:
        columns.append((view.t("cli.column.framework"), "left"))
    columns.append((view.t("cli.column.plan"), "left"))
    if view.width >= _WIDE:
        columns += [(view.t("cli.column.schedule"), "left"), (view.t("cli.column.batch"), "right")]
    columns += [
        (view.t("cli.column.recompute"), "left"),
        (view.t("cli.column.memory"), "right"),
        (view.t("cli.column.step"), "right"),
    ]
    if view.width >= _WIDEST:
        columns.append((view.t("cli.column.band"), "right"))
    columns.append(("MFU", "right"))
    causal = any(_mask_counts(entry) for entry in entries)
    if causal:
        columns.append((view.t("cli.column.mfu_causal"), "right"))
    if view.width >= _WIDE:
        columns.append((view.t("cli.column.tokens_per_s"), "right"))
    columns += [(view.t(f"cli.column.{name}"), "right") for name in _run_columns(entries, view)]
    rows = [_row(entry, view, several=several, sizes=sizes, causal=causal) for entry in entries]
    for row, entry in zip(rows, entries, strict=True):
        row += [_RUN[name](entry["run"]) for name in _run_columns(entries, view)]
    return table(columns, rows, flexible=1 + sizes + several, width=view.width)


_RUN: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "days": lambda run: f"{run['days']:.1f}",
    "cost": lambda run: f"${run['cost_usd']:,.0f}",
}


def _run_columns(entries: Sequence[Entry], view: View) -> list[str]:
    """What of the whole run a wide table shows, where there is a token budget."""
    run = entries[0].get("run")
    if not run or view.width < _WIDE:
        return []
    return ["days"] if run["cost_usd"] is None else ["days", "cost"]


def sizes(result: Mapping[str, Any], view: View) -> list[Block]:
    """List the cluster sizes that were looked at, where the objective looks at several."""
    tried = result["sizes"]
    if len(tried) < 2:
        return []
    columns = [
        (view.t("cli.column.gpus"), "right"),
        (view.t("cli.column.step_slow"), "right"),
    ]
    rows = [
        [
            str(size["num_gpus"]),
            step_text(size["value_s"]) if size["fits"] else view.t("cli.no_plan"),
        ]
        for size in tried
    ]
    if any(size["days"] is not None for size in tried):
        columns.append((view.t("cli.column.days"), "right"))
        for row, size in zip(rows, tried, strict=True):
            row.append("" if size["days"] is None else f"{size['days']:,.1f}")
    return [heading(view.t("cli.title.sizes")), table(columns, rows)]


def _mask_counts(entry: Entry) -> bool:
    """Whether attention is so much of the work that MFU depends on how it is counted."""
    return bool(entry["mfu"] > _NOTABLE * entry["mfu_causal"])


def _row(entry: Entry, view: View, *, several: bool, sizes: bool, causal: bool) -> list[str | Text]:
    plan, memory = entry["plan"], entry["memory"]
    cells: list[str | Text] = [str(entry["rank"])]
    if sizes:
        cells.append(str(entry["num_gpus"]))
    if several:
        cells.append(plan["framework"])
    cells.append(Text(plan_text(plan), style="bold" if entry["rank"] == 1 else ""))
    if view.width >= _WIDE:
        cells += [plan["schedule"] if plan["pp"] > 1 else "-", batch_text(plan)]
    cells += [
        plan["recompute"],
        Text(format_memory(memory["peak_bytes"]), style=VERDICT_STYLE[memory["verdict"]]),
        step_text(entry["step_time_s"]),
    ]
    if view.width >= _WIDEST:
        band = entry["band"]
        cells.append(f"{step_text(band['low_s'])} - {step_text(band['high_s'])}")
    cells.append(percent(entry["mfu"]))
    if causal:
        cells.append(percent(entry["mfu_causal"]))
    if view.width >= _WIDE:
        cells.append(f"{entry['tokens_per_s_per_gpu']:,.0f}")
    return cells


def verdict_text(entry: Entry, view: View) -> Text:
    """Say in words whether a plan fits, and how much room is left."""
    memory = entry["memory"]
    verdict = memory["verdict"]
    text = Text()
    text.append(view.t(f"cli.verdict.{verdict}"), style=f"bold {VERDICT_STYLE[verdict]}")
    text.append(view.t("cli.colon"))
    text.append(room_text(memory, view.lang))
    return text


def headline_facts(entry: Entry, view: View) -> list[Block]:
    """List step time, efficiency, throughput, and what the whole run takes, under their title."""
    oom = entry["memory"]["verdict"] == "oom"
    title = heading(view.t("cli.title.numbers_oom" if oom else "cli.title.numbers"))
    band = entry["band"]
    pairs = [
        (
            view.t("cli.fact.step_time"),
            view.t(
                "cli.fact.step_time_band",
                step=step_text(entry["step_time_s"]),
                low=step_text(band["low_s"]),
                high=step_text(band["high_s"]),
            ),
        ),
        (
            view.t("cli.fact.mfu"),
            view.t("cli.fact.mfu_both", mfu=entry["mfu"], mfu_causal=entry["mfu_causal"]),
        ),
        (view.t("cli.fact.hfu"), percent(entry["hfu"])),
        (
            view.t("cli.fact.throughput"),
            view.t(
                "cli.fact.tokens_per_s",
                per_gpu=f"{entry['tokens_per_s_per_gpu']:,.0f}",
                total=format_count(entry["tokens_per_s"]),
            ),
        ),
    ]
    run = entry.get("run")
    if run:
        pairs.append(
            (
                view.t("cli.fact.run"),
                view.t(
                    "cli.fact.days",
                    days=run["days"],
                    gpu_hours=format_count(run["gpu_hours"]),
                    steps=format_count(run["num_steps"]),
                ),
            )
        )
        if run["cost_usd"] is not None:
            pairs.append((view.t("cli.fact.cost"), f"${run['cost_usd']:,.0f}"))
        if run["meets_deadline"] is not None:
            code = "met" if run["meets_deadline"] else "missed"
            slow = run["days"] * entry["band"]["high_s"] / entry["step_time_s"]
            said = view.t(f"cli.deadline.{code}", days=days_text(slow))
            pairs.append((view.t("cli.fact.deadline"), said))
    return [title, facts(pairs, view)]


def days_text(days: float) -> str:
    """Days in plain digits: a missed deadline can be years away."""
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"
