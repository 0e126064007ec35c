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
from meshplan.app.names import plan_text
from meshplan.text import has
from meshplan.units import format_bandwidth, format_duration

__all__ = ["render_diagnose"]

Json = Mapping[str, Any]

_BAR = 46
_NOTABLE = 0.001
_MOST_RANKS = 12
_MOST_NOTES = 8
_MOST_ROWS = 8
_STYLES = {"large": "bold red", "medium": "bold yellow", "small": "bold"}
# values of a finding that are codes, and where their names stand
_NAMED = {"cause": "diagnose.cause", "what": "diagnose.what"}


def render_diagnose(result: Json, view: View) -> Iterator[Block]:
    """What was given, where the step goes, what costs time, what could not be told."""
    if "allocation" in result:
        yield from _allocation(result["allocation"], view)
        return
    run = result["run"]
    yield from _headline(result, view)
    yield from _parts(run, view)
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
    run = result["run"]
    if result["plan"] is not None:
        yield Text(plan_text(result["plan"]), style="bold")
    if run["num_ranks"]:
        steps = [len(rank["steps"]) for rank in run["ranks"]]
        steady = [sum(not s["warm_up"] for s in rank["steps"]) for rank in run["ranks"]]
        yield paragraph(
            view.t(
                "diagnose.headline",
                num_ranks=run["num_ranks"],
                world_size=run["world_size"] or run["num_ranks"],
                device=run["device"] or view.t("diagnose.device_unknown"),
                num_steps=max(steady, default=0) or max(steps, default=0),
                all_steps=max(steps, default=0),
            ),
            view,
        )
    for log in run["logs"]:
        seconds, speed = log["step_time_s"], log["tokens_per_s_per_gpu"]
        facts = {"file": log["file"], "framework": log["framework"]}
        if seconds is not None:
            text = view.t("diagnose.headline_log", **facts, step_time_s=seconds)
        elif speed is not None:
            text = view.t("diagnose.headline_speed", **facts, speed=speed)
        else:
            text = view.t("diagnose.headline_bare", **facts)
        yield paragraph(text, view)


def _parts(run: Json, view: View) -> Iterator[Block]:
    if run["step_time_s"] is None:
        return
    yield heading(view.t("diagnose.title.where", step_time_s=run["step_time_s"]))
    shown = [(name, share) for name, share in run["parts"].items() if share > _NOTABLE]
    rows: list[Sequence[Cell]] = [
        (view.t(f"diagnose.part.{name}"), bar(share, width=_BAR), f"{share:.1%}")
        for name, share in sorted(shown, key=lambda item: -item[1])
    ]
    yield table([("", "left"), ("", "left"), ("", "right")], rows)
    if run["efficiency"] is not None:
        yield Text("  " + view.t("diagnose.efficiency", efficiency=run["efficiency"]), style="dim")


def _traffic(run: Json, view: View) -> Iterator[Block]:
    rows = [row for row in run["traffic"] if row["count"] > 0][:_MOST_ROWS]
    if not rows:
        return
    yield heading(view.t("diagnose.title.traffic"))
    titles = ("axis", "kind", "group", "calls", "time", "shown", "bandwidth", "basis")
    columns = [
        (
            view.t(f"diagnose.column.{name}"),
            "left" if name in ("axis", "kind", "basis") else "right",
        )
        for name in titles
    ]
    yield table(
        columns,
        [
            (
                view.t("diagnose.axis.unknown")
                if row["axis"] == "unknown"
                else row["axis"].upper(),
                row["kind"].replace("_", "-"),
                str(row["group_size"] or "?"),
                f"{row['count']:.4g}",
                format_duration(row["total_s"]),
                format_duration(row["exposed_s"]),
                format_bandwidth(row["bus_bytes_per_s"]) if row["bus_bytes_per_s"] else "",
                view.t(f"diagnose.basis.{row['basis']}"),
            )
            for row in rows
        ],
    )


def _findings(result: Json, view: View) -> Iterator[Block]:
    yield heading(view.t("diagnose.title.findings"))
    if not result["findings"]:
        yield paragraph(view.t("diagnose.nothing"), view, indent=2, style="green")
        return
    for number, finding in enumerate(result["findings"], start=1):
        yield _title(number, finding, view)
        yield from bullets(_lines(finding, view), view, mark=" ", indent=3)


def _title(number: int, finding: Json, view: View) -> Text:
    share = finding["cost_share"]
    cost = view.t("diagnose.no_cost") if share is None else view.t("diagnose.cost", share=share)
    title = Text(f"  {number}. ")
    title.append(view.t(f"diagnose.check.{finding['code']}"), style=_STYLES[finding["severity"]])
    title.append(f"   {cost}")
    return title


def _lines(finding: Json, view: View) -> Iterator[str]:
    """Evidence, ranks and kernels, what to do, what that brings, and how sure it is."""
    numbers = {
        key: view.t(f"{_NAMED[key]}.{value}") if key in _NAMED else value
        for key, value in finding["numbers"].items()
    }
    yield view.t(f"diagnose.finding.{finding['code']}", **numbers)
    where = []
    if finding["ranks"]:
        where.append(view.t("diagnose.ranks", ranks=_ranks(finding["ranks"])))
    if finding["kernels"]:
        kernels = ", ".join(name[:60] for name in finding["kernels"][:2])
        where.append(view.t("diagnose.kernels", kernels=kernels))
    if where:
        yield "; ".join(where)
    action = finding["action"]
    named = {
        key: view.t(f"{_NAMED[key]}.{value}") if key in _NAMED else value
        for key, value in action["numbers"].items()
    }
    steps = [view.t(f"diagnose.action.{action['code']}", **named)]
    steps += [_change(change, view) for change in action["changes"] if change["option"]]
    yield view.t("diagnose.next", text="; ".join(steps))
    gain = finding["gain"]
    if gain is not None:
        text = view.t(f"diagnose.gain.{gain['basis']}", share=gain["share"])
        yield view.t("diagnose.expected", text=text)
    yield view.t(
        "diagnose.certain",
        confidence=view.t(f"diagnose.confidence.{finding['confidence']}"),
        reason=view.t(f"diagnose.reason.{finding['reason']}"),
    )


def _change(change: Json, view: View) -> str:
    if change["after"] in ("", "+"):
        return view.t("diagnose.look_at", option=change["option"])
    known = change["before"] not in ("", None)
    code = "diagnose.change" if known else "diagnose.change_to"
    return view.t(
        code, option=change["option"], before=str(change["before"]), after=str(change["after"])
    )


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks as ranges: ``0-3, 8``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    more = ["..."] if len(texts) > _MOST_RANKS else []
    return ", ".join(texts[:_MOST_RANKS] + more)


def _rule_of_thumb(result: Json, view: View) -> Iterator[Block]:
    rule = result["rule_of_thumb"]
    if rule is None:
        return
    yield heading(view.t("diagnose.title.rule"))
    sentences = []
    for found in rule["findings"]:
        text = view.t(f"finding.{found['code']}", **found["numbers"])
        if found["action"]:
            text += "; " + view.t(f"action.{found['action']}", **found["numbers"])
        sentences.append(text)
    yield from bullets(sentences, view)


def _checks(result: Json, view: View) -> Iterator[Block]:
    opened = [check for check in result["checks"] if check["state"] == "open"]
    if opened:
        yield heading(view.t("diagnose.title.open"))
        yield from bullets((_open_check(check, view) for check in opened), view)
    clear = [
        view.t(f"diagnose.check.{c['code']}") for c in result["checks"] if c["state"] == "clear"
    ]
    if clear:
        yield heading(view.t("diagnose.title.clear"))
        yield paragraph("; ".join(clear), view, indent=2, style="dim")


def _open_check(check: Json, view: View) -> str:
    name = view.t(f"diagnose.check.{check['code']}")
    return f"{name}: {view.t('diagnose.open.' + check['reason'])}"


def _notes(run: Json, view: View) -> Iterator[Block]:
    notes = run["notes"]
    if not notes:
        return
    sentences: dict[str, None] = {}
    for note in notes:
        code = f"diagnose.note.{note['code']}"
        text = (
            view.t(code, **note["numbers"])
            if has(code, view.lang)
            else note["code"].replace("_", " ")
        )
        where = f"{note['where']}: " if note["where"] else ""
        sentences[where + text] = None
    shown = list(sentences)
    yield heading(view.t("diagnose.title.notes"))
    more = [f"... (+{len(shown) - _MOST_NOTES})"] if len(shown) > _MOST_NOTES else []
    yield from bullets(shown[:_MOST_NOTES] + more, view)


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
