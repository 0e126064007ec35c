"""Memory of each pipeline stage against what a device can really use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from meshplan.app.cli.layout import cell_len
from meshplan.app.cli.render.blocks import EMPTY, LIMIT, Block, View, paragraph, stacked_bar, table
from meshplan.app.names import percent
from meshplan.units import format_memory

__all__ = ["GROUPS", "group_of", "memory_bars", "memory_terms"]

Stage = Mapping[str, Any]

# Glyphs differ, not only colours: the picture must read without colour too.
GROUPS = {
    "weights": ("█", "blue"),
    "gradients": ("▓", "cyan"),
    "optimizer": ("▒", "magenta"),
    "activations": ("░", "green"),
    "other": ("-", "yellow"),
}
_MEMBERS = {
    "weights": ("weights", "weight_copies", "gathered", "loading"),
    "gradients": (
        "gradients",
        "autograd_gradients",
        "replica_buckets",
        "unsharded_gradients",
        "placeholders",
        "reduced",
        "step_gradients",
        "head_gradient",
        "embedding_gradient",
    ),
    "optimizer": ("optimizer", "optimizer_temporaries"),
    "other": (
        "workspace",
        "imbalance",
        "fragmentation",
        "communicators",
        "user_buffers",
        "graph_pool",
    ),
}
_GROUP_OF = {code: group for group, codes in _MEMBERS.items() for code in codes}
_NOT_BARS = 36
_MOST_STAGES = 8
_MOST_TERMS, _LEAST = 10, 0.005


def group_of(code: str) -> str:
    """Sort a line of the breakdown into one of the groups that bars show.

    What is no state and no overhead is an activation.
    """
    return _GROUP_OF.get(code, "activations")


def memory_bars(entry: Mapping[str, Any], view: View) -> list[Block]:
    """Draw each stage as a bar; many stages are cut down to those that differ most."""
    memory = entry["memory"]
    usable = memory["usable_bytes"]
    stages: Sequence[Stage] = memory["stages"]
    longest = max(usable, *(stage["peak_bytes"] for stage in stages))
    width = max(12, min(60, view.width - _NOT_BARS))
    rows: list[Sequence[str | Text]] = []
    previous = -1
    for stage in _chosen(stages, memory["worst_stage"]):
        if stage["stage"] > previous + 1:
            rows.append((Text("...", style="dim"), "", "", ""))
        previous = stage["stage"]
        rows.append(_bar_row(stage, view, longest=longest, usable=usable, width=width))
    blocks: list[Block] = [
        table([("", "left"), ("", "left"), ("", "right"), ("", "right")], rows),
        _legend(stages, view, over=longest > usable),
    ]
    return blocks


def _chosen(stages: Sequence[Stage], worst: int) -> list[Stage]:
    """All stages, or the first ones, the last one and the worst one."""
    if len(stages) <= _MOST_STAGES:
        return list(stages)
    kept = {0, 1, 2, 3, worst, len(stages) - 2, len(stages) - 1}
    return [stage for stage in stages if stage["stage"] in kept]


def _bar_row(
    stage: Stage, view: View, *, longest: float, usable: float, width: int
) -> Sequence[str | Text]:
    sizes = dict.fromkeys(GROUPS, 0.0)
    for term in stage["terms"]:
        sizes[group_of(term["code"])] += term["bytes"]
    segments = [(sizes[name] / longest, *GROUPS[name]) for name in GROUPS]
    peak = stage["peak_bytes"]
    style = "red" if peak > usable else ""
    return (
        view.t("cli.memory.stage", stage=stage["stage"]),
        stacked_bar(segments, width=width, mark=usable / longest if longest > usable else None),
        Text(format_memory(peak), style=style),
        Text(percent(peak / usable, digits=0), style=style or "dim"),
    )


def _legend(stages: Sequence[Stage], view: View, *, over: bool) -> Text:
    used = {group_of(term["code"]) for stage in stages for term in stage["terms"]}
    items = [(*look, f"cli.memory.{name}") for name, look in GROUPS.items() if name in used]
    items.append(
        (LIMIT, "bold red", "cli.memory.limit") if over else (EMPTY, "dim", "cli.memory.free")
    )
    text, reach = Text(), 0
    for glyph, style, code in items:
        entry = Text.assemble((glyph, style), (f" {view.t(code)}", "dim"))
        length = cell_len(entry.plain)
        if not reach or reach + 3 + length > view.width:
            text.append("\n  " if reach else "  ")
            reach = 2
        else:
            text.append("   ")
            reach += 3
        text.append_text(entry)
        reach += length
    return text


def memory_terms(entry: Mapping[str, Any], view: View) -> list[Block]:
    """List what is alive at the peak of the worst stage, largest first."""
    memory = entry["memory"]
    stage = memory["stages"][memory["worst_stage"]]
    peak = stage["peak_bytes"]
    title = view.t(
        "cli.memory.worst",
        stage=stage["stage"],
        event=view.name("event", stage["peak_event"]),
    )
    terms = sorted(stage["terms"], key=lambda term: -term["bytes"])
    shown = [term for term in terms[:_MOST_TERMS] if term["bytes"] >= _LEAST * peak]
    rows = [_term_row(view.name("memory", term["code"]), term["bytes"], peak) for term in shown]
    rest = [term for term in terms[len(shown) :] if term["bytes"] > 0]
    if rest:
        name = view.t("cli.memory.rest", count=len(rest))
        rows.append(_term_row(name, sum(term["bytes"] for term in rest), peak))
    return [
        paragraph(title, view, indent=2),
        table(
            [("", "left"), ("", "right"), ("", "right")],
            rows,
            indent=4,
            flexible=0,
            width=view.width,
        ),
    ]


def _term_row(name: str, num_bytes: float, peak: float) -> Sequence[str | Text]:
    share = Text(percent(num_bytes / peak), style="dim")
    return (name, format_memory(num_bytes, digits=2), share)
