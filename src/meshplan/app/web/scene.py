"""A scene as JSON with its words, for one plan of a request."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from meshplan.app.judge import judge
from meshplan.app.request import read_plan, read_scenario
from meshplan.app.result import jsonable
from meshplan.app.web.wrap import wrapped
from meshplan.errors import ProblemList, UserError
from meshplan.explanation.scenes import (
    ALGORITHMS,
    MECHANISMS,
    MODES,
    NARROW,
    WIDE,
    Label,
    Mark,
    Scene,
    WhatIf,
    build_scene,
)
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import amount
from meshplan.inputs.load.fields import Field, count, read_fields
from meshplan.space.names import from_text, to_text
from meshplan.space.plan import Schedule
from meshplan.text import LANGUAGES, has, t

__all__ = ["scene", "words_on"]

Json = dict[str, Any]

_MOST_STAGES, _MOST_MICRO_BATCHES, _MOST_LAYERS = 64, 512, 4096
_MOST_KEPT = 4
_WHAT_IF = (
    Field(name="pp", kind=count(most=_MOST_STAGES)),
    Field(name="num_micro_batches", kind=count(most=_MOST_MICRO_BATCHES)),
    Field(name="num_layers", kind=count(most=_MOST_LAYERS)),
)
_NAMED = {
    "part": "part",
    "second": "part",
    "term": "memory",
    "tier": "scene.tier",
    "fabric": "scene.fabric",
}
_MICRO = re.compile(r"(?<=\d )us\b")  # terminals may lack the letter, pages do not
_GROUPED = 1000  # from here on digits stand in groups, as in the tables of the page
_PLACES = ("rank", "node", "first", "last", "stage", "virtual_stage", "micro_batch")
_PAPERS = {"wide": WIDE, "narrow": NARROW}
_kept: OrderedDict[str, PlanFacts] = OrderedDict()


def scene(request: Mapping[str, Any]) -> Json:
    """Build a scene.

    Args:
        request: a scenario and ``plan``, with ``mechanism``, ``mode``, ``lang``, ``paper``
            (``wide`` or ``narrow``) and, for the timetable, ``what_if``.

    Raises:
        UserError: for a plan that is not legal, and for names that there are none of.
    """
    asked = dict(request)
    mechanism = _choice(asked.pop("mechanism", ""), "mechanism", MECHANISMS)
    mode = _choice(asked.pop("mode", ""), "mode", MODES)
    paper = _PAPERS[_choice(asked.pop("paper", "wide"), "paper", tuple(_PAPERS))]
    lang = asked.pop("lang", "en")
    what_if = _what_if(asked.pop("what_if", None) or {})
    made = build_scene(_facts(asked), mechanism=mechanism, mode=mode, what_if=what_if, paper=paper)
    return words_on(made, lang if lang in LANGUAGES else "en")


def _facts(asked: Mapping[str, Any]) -> PlanFacts:
    """What the last few plans gave; the scenes of one plan share their numbers."""
    key = repr(sorted(asked.items()))
    found = _kept.get(key)
    if found is None:
        scenario = read_scenario(asked)
        plan = read_plan(scenario, asked.get("plan") or {})
        judge(scenario, plan)
        found = PlanFacts(scenario, plan)
        _kept[key] = found
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return found


def _choice(value: object, where: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        shown = str(value)[:80]
        raise UserError.of("unknown_choice", where=where, value=shown, allowed=allowed)
    return str(value)


def _what_if(given: object) -> WhatIf:
    if not isinstance(given, Mapping):
        raise UserError.of("web_bad_request", where="what_if")
    problems = ProblemList()
    words = ("schedule", "algorithm")
    counts = {k: v for k, v in given.items() if k not in words and v not in (None, "", 0)}
    read = read_fields(counts, _WHAT_IF, where="what_if", problems=problems)
    problems.raise_if_any()
    schedule, algorithm = given.get("schedule"), given.get("algorithm")
    if schedule:
        names = tuple(to_text(each) for each in Schedule)
        read["schedule"] = from_text(Schedule, _choice(schedule, "what_if.schedule", names))
    if algorithm:
        read["algorithm"] = _choice(algorithm, "what_if.algorithm", ALGORITHMS)
    return WhatIf(**read)


def words_on(made: Scene, lang: str) -> Json:
    """A scene as JSON, its labels in words; what is not set is left out."""
    result: Json = _plain(replace(made, caption=Label(), beats=()), lang)
    numbers = _named(made.caption.numbers, lang)
    code = made.caption.code
    result["caption"] = {
        view: t(f"scene.{view}.{code}", lang, **numbers) for view in ("field", "kitchen")
    }
    result["beats"] = [[round(b.at_s, 4), _said(b.said, lang)] for b in made.beats]
    result["facts"] = jsonable(made.facts)
    return result


def _plain(value: object, lang: str) -> Any:
    if isinstance(value, Label):
        return _said(value, lang)
    if isinstance(value, Mark) and value.label and value.room:
        said = wrapped(_said(value.label, lang), room=value.room, tone=value.tone)
        value = replace(value, label=Label(literal=said), room=0.0)
    if is_dataclass(value) and not isinstance(value, type):
        items = ((f.name, f.default, getattr(value, f.name)) for f in fields(value))
        return {name: _plain(item, lang) for name, default, item in items if item != default}
    if isinstance(value, tuple):
        return [_plain(item, lang) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item, lang) for key, item in value.items()}
    return round(value, 6) if isinstance(value, float) and abs(value) < 1e6 else value


def _said(label: Label, lang: str) -> str:
    if not label.code:
        return _MICRO.sub("µs", label.literal)
    code = label.code.removeprefix("../") if label.code.startswith("../") else f"scene.{label.code}"
    return _MICRO.sub("µs", t(code, lang, **_named(label.numbers, lang)))


def _named(numbers: Mapping[str, object], lang: str) -> dict[str, object]:
    """Codes among the numbers get their names, small messages their digits."""
    named = {
        key: amount(value) if key.endswith("_bytes") and isinstance(value, int | float) else value
        for key, value in numbers.items()
    }
    for key, value in named.items():
        if isinstance(value, tuple):
            named[key] = t("web.enumeration", lang).join(value)
        elif type(value) is int and value >= _GROUPED and key not in _PLACES:
            named[key] = f"{value:,}"
    for key, prefix in _NAMED.items():
        value = named.get(key)
        if isinstance(value, str) and has(f"{prefix}.{value}", lang):
            named[key] = t(f"{prefix}.{value}", lang)
    return named
