"""A plan as a file: scenario, result, trace of the predicted step, offline report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from meshplan.app import service
from meshplan.app.encode import to_json
from meshplan.app.judge import judge
from meshplan.app.names import plan_text
from meshplan.app.request import read_plan, read_scenario
from meshplan.app.result import plan_json
from meshplan.app.web.scene import scene, words_on
from meshplan.app.web.svg import svg_of
from meshplan.app.web.words import words_of
from meshplan.cost.schedule.actions import Kind
from meshplan.explanation.scenes import MECHANISMS, MODES, build_scene
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.inputs.load.profile_file import is_text, read_profile
from meshplan.inputs.load.scenario import dump_scenario
from meshplan.record import record
from meshplan.text import t
from meshplan.units import format_duration, format_memory

__all__ = ["EXPORTS", "Export", "trace"]

Request = dict[str, Any]
_STEPS_PER_S = 8_000_000
_KIND_NAME = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward (inputs)",
    Kind.BACKWARD_WEIGHT: "backward (weights)",
}


@record
class Export:
    """One kind of file.

    Attributes:
        file_name: what it is called.
        media_type: what it is.
        make: from a request and a language to its text.
    """

    file_name: str
    media_type: str
    make: Callable[[Request, str], str]


def _facts(request: Request) -> PlanFacts:
    scenario = read_scenario(request)
    plan = read_plan(scenario, request.get("plan") or {})
    judge(scenario, plan)
    return PlanFacts(scenario, plan)


def _yaml(request: Request, lang: str) -> str:
    """A scenario file that pins the plan, so that ``meshplan estimate FILE`` judges it again."""
    plan = service.estimate(request, with_remedies=False)["plans"][0]["plan"]
    derived = ("framework", "dp", "dp_shard", "num_micro_batches", "recompute_layers")
    pinned = {k: [v] for k, v in plan.items() if k not in derived and v not in ([], None)}
    values = {k: v for k, v in request.items() if k != "plan"}
    values |= {"frameworks": [plan["framework"]], "axes": pinned}
    profile = values.get("profile")
    if isinstance(profile, str) and is_text(profile):
        values["profile"] = dict(read_profile(profile))
    read_scenario(values)
    return dump_scenario(values)


def _json(request: Request, lang: str) -> str:
    return to_json(service.estimate(request)) + "\n"


def trace(facts: PlanFacts) -> dict[str, Any]:
    """The predicted step as a trace in the format of Chrome, which Perfetto opens.

    One process per pipeline stage, one slice per action, and the parts of the step on a track of
    their own; times in microseconds [1]_.

    References:
        .. [1] Trace Event Format; Perfetto, "Visualizing external trace formats", and
           src/trace_processor/importers/json/json_trace_tokenizer.cc.
    """
    events: list[dict[str, Any]] = []
    for slot in facts.slots:
        events.append(
            {
                "ph": "X",
                "pid": slot.device + 1,
                "tid": slot.device + 1,
                "cat": "pipeline",
                "name": f"{_KIND_NAME[slot.kind]} {slot.micro_batch}",
                **_when(slot.start_s, slot.end_s),
                "args": {"virtual_stage": slot.virtual_stage, "micro_batch": slot.micro_batch},
            }
        )
    parts = facts.plan.pp + 1
    begin = 0.0
    for part, seconds in facts.parts.items():
        if seconds > 0:
            slice_ = {"ph": "X", "pid": parts, "tid": parts, "cat": "part", "name": part}
            events.append({**slice_, **_when(begin, begin + seconds)})
            begin += seconds
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    named = [f"pipeline stage {device}" for device in range(facts.plan.pp)] + ["parts of a step"]
    # Perfetto keeps 0 for the idle process, and thinks of a thread id as one thread
    events = [e for track, name in enumerate(named, start=1) for e in _track(track, name)] + events
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {
            "plan": plan_text(_plan_json(facts)),
            "micro_batches_shown": facts.shown_micro_batches,
            "micro_batches": facts.plan.num_micro_batches,
        },
    }


def _when(start_s: float, end_s: float) -> dict[str, float]:
    """Begin and length of a slice [us], in steps of 125 ns.

    Perfetto turns both into whole nanoseconds, some versions by rounding and some by cutting, and
    drops a slice that then begins before the one ahead of it has ended. Eighths of a microsecond
    come out exact either way, so that what touches does not overlap.
    """
    start, end = (round(at_s * _STEPS_PER_S) for at_s in (start_s, end_s))
    return {"ts": start * 1e6 / _STEPS_PER_S, "dur": (end - start) * 1e6 / _STEPS_PER_S}


def _track(number: int, name: str) -> list[dict[str, Any]]:
    """Name a process with its only thread, and put it in its place."""
    place = {"ph": "M", "pid": number, "tid": number, "ts": 0}
    return [
        {**place, "name": "process_name", "args": {"name": name}},
        {**place, "name": "process_sort_index", "args": {"sort_index": number}},
        {**place, "name": "thread_name", "args": {"name": name}},
    ]


def _plan_json(facts: PlanFacts) -> dict[str, Any]:
    return plan_json(facts.plan)


def _trace(request: Request, lang: str) -> str:
    return json.dumps(trace(_facts(request)))


_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.6 system-ui, "Noto Sans CJK SC", sans-serif; max-width: 1000px;
  margin: 40px auto; padding: 0 20px }
h1 { font-size: 24px } h2 { font-size: 18px; margin-top: 36px }
th, td { padding: 4px 16px 4px 0; text-align: left; font-variant-numeric: tabular-nums }
svg { width: 100%; height: auto } figure { margin: 16px 0 28px } figcaption { opacity: .8 }
"""


def _report(request: Request, lang: str) -> str:
    """One HTML file with the verdict, the numbers, the reasons and every scene, no script."""
    result = service.estimate(request)
    entry, words = result["plans"][0], words_of(result, lang)
    facts = _facts(request)
    parts = [f"<h1>{escape(words['headline'])}</h1>", f"<p>{escape(words['verdict'])}</p>"]
    parts.append(_rows(_numbers(entry, lang)))
    for topic in words["reasons"]:
        if topic["said"]:
            items = "".join(f"<li>{escape(said)}</li>" for said in topic["said"])
            parts.append(f"<h2>{escape(topic['topic'])}</h2><ul>{items}</ul>")
    for mechanism in MECHANISMS:
        parts.append(f"<h2>{escape(t(f'web.mechanism.{mechanism}', lang))}</h2>")
        for mode in MODES:
            made = words_on(build_scene(facts, mechanism=mechanism, mode=mode), lang)
            name = t(f"web.mode.{mode}", lang)
            caption = escape(f"{name}: {made['caption']['field']}")
            parts.append(f"<figure>{svg_of(made)}<figcaption>{caption}</figcaption></figure>")
    listed = "".join(f"<li>{escape(said)}</li>" for said in words["assumptions"])
    parts.append(f"<h2>{escape(t('cli.title.assumptions', lang))}</h2><ul>{listed}</ul>")
    title = escape(f"meshplan: {words['names'][0]}")
    return (
        f'<!doctype html><html lang="{lang}"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _numbers(entry: Mapping[str, Any], lang: str) -> list[tuple[str, str]]:
    rows = [
        (t("cli.column.memory", lang), format_memory(entry["memory"]["peak_bytes"])),
        (t("cli.column.step", lang), format_duration(entry["step_time_s"])),
        ("MFU", f"{entry['mfu']:.1%}"),
    ]
    shown = ((part, s) for part, s in entry["time"].items() if s > 1e-4 * entry["step_time_s"])
    return rows + [(t(f"part.{part}", lang), format_duration(s)) for part, s in shown]


def _rows(rows: list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table>{cells}</table>"


def _svg(request: Request, lang: str) -> str:
    """One scene at a moment."""
    moment = request.pop("at", None)
    made = scene({**request, "lang": lang})
    return svg_of(made, at_s=float(moment) if isinstance(moment, int | float) else None)


EXPORTS: Mapping[str, Export] = {
    "yaml": Export(file_name="scenario.yaml", media_type="application/yaml", make=_yaml),
    "json": Export(file_name="plan.json", media_type="application/json", make=_json),
    "trace": Export(file_name="trace.json", media_type="application/json", make=_trace),
    "svg": Export(file_name="scene.svg", media_type="image/svg+xml", make=_svg),
    "report": Export(file_name="report.html", media_type="text/html", make=_report),
}
