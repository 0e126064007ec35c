"""The answers of ``plan`` and ``estimate``: verdict first, then the numbers, then why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from meshplan.app.cli.render import why
from meshplan.app.cli.render.blocks import Block, View, bullets, heading, paragraph
from meshplan.app.cli.render.memory import memory_bars, memory_terms
from meshplan.app.cli.render.plans import (
    days_text,
    headline_facts,
    plans_table,
    sizes,
    verdict_text,
)
from meshplan.app.cli.render.scenario import scenario_lines
from meshplan.app.cli.render.step import step_bars
from meshplan.app.names import plan_text, step_text
from meshplan.app.sentences import room_text

__all__ = ["assumptions", "one_plan", "render_estimate", "render_plan"]

Json = Mapping[str, Any]


def render_plan(result: Json, view: View) -> Iterator[Block]:
    """Show the best plans and why the first one is first."""
    yield from scenario_lines(result, view)
    plans = result["plans"]
    if not plans:
        yield from _nothing_fits(result, view)
        return
    best = plans[0]
    yield Text()
    yield _verdict_of_best(result, view)
    yield heading(_title(result, view))
    yield plans_table(plans, view)
    steps = [entry["step_time_s"] for entry in plans]
    if result["scenario"]["objective"] == "fastest" and steps != sorted(steps):
        yield paragraph(view.t("cli.order"), view, indent=2, style="dim")
    yield from sizes(result, view)
    yield from one_plan(best, view)
    yield from why.reasons(result["reasons"], view, best=best)
    yield from why.switches(result["switches"], view, best=best)
    yield from why.runner_up(result, view)
    yield from why.flips(result["flips"], view)
    yield from why.refused(result, view)
    yield from assumptions(result, view)


def render_estimate(result: Json, view: View) -> Iterator[Block]:
    """Judge one plan."""
    yield from scenario_lines(result, view)
    entry = result["plans"][0]
    yield Text()
    yield Text(plan_text(entry["plan"]), style="bold")
    yield _with_deadline(verdict_text(entry, view), entry, result, view)
    yield from one_plan(entry, view)
    yield from why.reasons(result["reasons"], view, best=entry)
    yield from why.switches(result["switches"], view, best=entry)
    if entry["memory"]["verdict"] != "fits":
        yield from why.remedies(result["remedies"], view)
    yield from assumptions(result, view)


def one_plan(entry: Json, view: View) -> Iterator[Block]:
    """Show efficiency, memory and time of one plan."""
    yield from headline_facts(entry, view)
    memory = entry["memory"]
    yield heading(view.t("cli.title.memory", usable_bytes=memory["usable_bytes"]))
    yield from memory_bars(entry, view)
    yield from memory_terms(entry, view)
    yield heading(view.t("cli.title.step", step=step_text(entry["step_time_s"])))
    yield from step_bars(entry, view)


def _title(result: Json, view: View) -> str:
    count = len(result["plans"])
    if result["scenario"]["objective"] == "pareto":
        return view.t("cli.title.pareto", count=count)
    return view.t("cli.title.plans" if count > 1 else "cli.title.plans_one", count=count)


def _verdict_of_best(result: Json, view: View) -> Text:
    best = result["plans"][0]
    text = verdict_text(best, view)
    code = "cli.best" if result["scenario"]["objective"] == "fastest" else "cli.best_on"
    said = view.t(code, plan=plan_text(best["plan"]), num_gpus=best["num_gpus"])
    text.append("\n" + said, style="bold")
    if best["options"]:
        options = shlex.join(best["options"])
        text.append("\n" + view.t("cli.again", options=options), style="dim")
    return _with_deadline(text, best, result, view)


def _with_deadline(text: Text, entry: Json, result: Json, view: View) -> Text:
    """Say beside the verdict that a deadline is missed."""
    run = entry["run"]
    if run and run["meets_deadline"] is False:
        deadline = result["scenario"]["job"]["deadline_days"]
        late = view.t(
            "cli.verdict.late", days=days_text(run["days"]), deadline_days=days_text(deadline)
        )
        text.append("\n" + late, style="bold red")
        text.append("\n" + _gpus_in_time(entry, view))
    return text


def _gpus_in_time(entry: Json, view: View) -> str:
    """Say how many GPUs at least would be in time."""
    least = entry["run"]["gpus_in_time"]
    return view.t("cli.verdict.late_gpus", least=f"{least:,}", now=entry["num_gpus"])


def _nothing_fits(result: Json, view: View) -> Iterator[Block]:
    """Say how far off the closest plan is, and what would make something fit."""
    yield Text()
    closest = result.get("closest")
    late = bool(closest and closest["run"] and closest["run"]["meets_deadline"] is False)
    if closest and late and closest["memory"]["verdict"] != "oom":
        yield Text(view.t("cli.verdict.too_late"), style="bold red")
        plan, days = plan_text(closest["plan"]), closest["days"]
        yield paragraph(
            view.t("cli.closest_late", plan=plan, num_gpus=closest["num_gpus"], days=days), view
        )
        if all(remedy["kind"] != "num_gpus" for remedy in result["remedies"]):
            yield paragraph(_gpus_in_time(closest, view), view)
        yield from why.remedies(result["remedies"], view, title="cli.title.remedies_late")
        yield from assumptions(result, view)
        return
    yield Text(view.t("cli.verdict.nothing_fits"), style="bold red")
    if closest:
        memory = closest["memory"]
        room = room_text(memory, view.lang)
        yield paragraph(view.t("cli.closest", plan=plan_text(closest["plan"]), room=room), view)
        yield heading(view.t("cli.title.memory", usable_bytes=memory["usable_bytes"]))
        yield from memory_bars(closest, view)
        yield from memory_terms(closest, view)
    yield from why.remedies(result["remedies"], view)
    yield from why.refused(result, view)
    yield from assumptions(result, view)


def assumptions(result: Json, view: View) -> Iterator[Block]:
    """List what nobody said and the answer depends on."""
    items = [view.say("assumed", a["code"], {"value": a["value"]}) for a in result["assumptions"]]
    notes = [view.say("note", note["code"], {"value": note["value"]}) for note in result["notes"]]
    for title, sentences in (("assumptions", items), ("notes", notes)):
        if sentences:
            yield heading(view.t(f"cli.title.{title}"))
            yield from bullets(sentences, view)
