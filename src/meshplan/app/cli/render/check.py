"""The answer of ``check``: legal or not, fits or not, what is off, what would help."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from meshplan.app.cli.complaints import describe
from meshplan.app.cli.render import why
from meshplan.app.cli.render.answer import assumptions
from meshplan.app.cli.render.blocks import Block, View, bullets, heading, paragraph
from meshplan.app.cli.render.memory import memory_bars
from meshplan.app.cli.render.plans import headline_facts, verdict_text
from meshplan.app.cli.render.scenario import scenario_lines
from meshplan.app.cli.render.step import step_bars
from meshplan.app.names import batch_text, percent, plan_text, step_text
from meshplan.errors import Problem

__all__ = ["render_check"]

Json = Mapping[str, Any]

_LINE = re.compile(r":\d+$")


def render_check(result: Json, view: View) -> Iterator[Block]:
    """Verdict first, then numbers, then what is off and what would help."""
    yield from scenario_lines(result, view)
    plan = result["plan"]
    yield Text()
    yield Text(f"{plan_text(plan)}, {batch_text(plan)}", style="bold")
    if result["unknown"]:
        names = ", ".join(f"{u['option']} ({u['where']})" for u in result["unknown"])
        yield paragraph(view.t("check.unknown", names=names), view)
    if not result["legal"]:
        yield from _illegal(result, view)
        return
    entry = result["plans"][0]
    yield Text(view.t("check.legal", framework=result["config"]), style="green")
    yield verdict_text(entry, view)
    yield from headline_facts(entry, view)
    memory = entry["memory"]
    yield heading(view.t("cli.title.memory", usable_bytes=memory["usable_bytes"]))
    yield from memory_bars(entry, view)
    yield heading(view.t("cli.title.step", step=step_text(entry["step_time_s"])))
    yield from step_bars(entry, view)
    yield from _findings(result, view)
    yield from _changes(result, view)
    if memory["verdict"] != "fits":
        yield from why.remedies(result["remedies"], view)
    yield from assumptions(result, view)


def _illegal(result: Json, view: View) -> Iterator[Block]:
    yield Text(view.t("check.illegal", framework=result["config"]), style="bold red")
    sentences = []
    for problem in result["problems"]:
        said = describe(
            Problem(
                code=problem["code"],
                where=problem["where"],
                value=problem["value"],
                allowed=tuple(problem["allowed"] or ()),
                numbers=problem["numbers"],
            ),
            view.lang,
        )
        allowed = f" ({view.t('cli.allowed')} {said['allowed']})" if said["allowed"] else ""
        # the line that a person would change; a bare name of a field says nothing new
        new = _LINE.search(problem["where"]) and problem["where"] not in said["message"]
        line = f"{problem['where']}: " if new else ""
        sentences.append(f"{line}{said['message']}{allowed}; {said['hint']} [{problem['source']}]")
    yield from bullets(sentences, view)
    near = result["nearest"]
    if near is not None:
        yield paragraph(
            view.t(
                "check.nearest_pipeline" if near["plan"]["pp"] > 1 else "check.nearest",
                schedule=near["plan"]["schedule"],
                plan=plan_text(near["plan"]),
                batch=batch_text(near["plan"]),
                recompute=near["plan"]["recompute"],
                step_time=step_text(near["step_time_s"]),
                mfu=percent(near["mfu"]),
            ),
            view,
        )
    if result["findings"]:
        yield from _findings(result, view)


def _value(value: object, view: View) -> str:
    """The value of a plan field; switches in words."""
    if isinstance(value, bool):
        return view.t("check.on" if value else "check.off")
    return str(value)


def _gain(fraction: float, now: Json, view: View) -> str:
    """What a change saves of the step; what is slower may make the plan fit that does not now."""
    if fraction < 0.0:
        fits = now["memory"]["verdict"] == "fits"
        code = "check.more_time" if fits else "check.more_time_fits"
        return view.t(code, share=percent(-fraction))
    return view.t("check.less_time", share=percent(fraction))


def _best(best: Json, now: Json, view: View) -> str:
    """The plan that ``plan`` puts first; it may be this one, or surer instead of faster."""
    if best["plan"] == now["plan"]:
        return view.t("check.best_is_this")
    gain = 1.0 - best["step_time_s"] / now["step_time_s"]
    surer = gain < 0.0 and now["memory"]["verdict"] == "fits"
    return view.t(
        "check.best_surer" if surer else "check.best",
        plan=plan_text(best["plan"]),
        batch=batch_text(best["plan"]),
        recompute=best["plan"]["recompute"],
        step_time=step_text(best["step_time_s"]),
        gain=_gain(gain, now, view),
    )


def _findings(result: Json, view: View) -> Iterator[Block]:
    yield heading(view.t("check.title.findings"))
    sentences = [
        view.say("check.finding", found["code"], found["numbers"]) for found in result["findings"]
    ]
    yield from bullets(sentences or [view.t("check.nothing_off")], view)


def _changes(result: Json, view: View) -> Iterator[Block]:
    sentences = []
    for change in result["changes"]:
        usable = result["plans"][0]["memory"]["usable_bytes"]
        knob = view.name("axis", change["knob"])
        sentences.append(
            view.t(
                "check.change_tight" if change["peak_bytes"] > usable else "check.change",
                knob=knob,
                before=_value(change["before"], view),
                after=_value(change["after"], view),
                gain=_gain(change["gain_fraction"], result["plans"][0], view),
                step_time=step_text(change["step_time_s"]),
                peak_bytes=change["peak_bytes"],
            )
        )
    if result["best"] is not None:
        sentences.append(_best(result["best"], result["plans"][0], view))
    if sentences:
        yield heading(view.t("check.title.changes"))
        yield from bullets(sentences, view)
