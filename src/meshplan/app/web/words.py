"""Results in sentences, in the order in which people decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshplan.app.names import plan_text
from meshplan.app.sentences import (
    flip_text,
    key_of,
    remedy_text,
    room_text,
    runner_up_texts,
    say,
    switch_texts,
)
from meshplan.text import has, t

__all__ = ["problem_words", "words_of"]

Json = dict[str, Any]
_TOPICS = ("memory", "communication", "degrees")
_LABELS = {
    "job.precision": "web.precision",
    "job.seq_len": "web.seq_len",
    "job.global_batch": "web.global_batch",
    "job.total_tokens": "web.tokens",
    "job.deadline_days": "web.deadline",
    "cluster.usd_per_gpu_hour": "web.price",
    "frameworks": "web.framework",
    "objective": "web.objective",
}
_MOST_RULES, _MOST_LISTED = 8, 12


def words_of(result: Mapping[str, Any], lang: str) -> Json:
    """All that a result says in words.

    Args:
        result: of ``plan``, ``estimate`` or ``compare``.
        lang: language.
    """
    plans = result["plans"]
    shown = plans[0] if plans else result.get("closest")
    words: Json = {
        "names": [plan_text(entry["plan"]) for entry in plans],
        "closest": "" if plans or not shown else plan_text(shown["plan"]),
        "verdict": room_text(shown["memory"], lang) if shown else "",
        "headline": _headline(result, lang),
        "assumptions": [
            say("assumed", a["code"], {"value": a["value"]}, lang) for a in result["assumptions"]
        ],
        "notes": [say("note", n["code"], {"value": n["value"]}, lang) for n in result["notes"]],
    }
    if "reasons" in result:
        words["reasons"] = [
            {
                "topic": t(f"cli.topic.{topic}", lang),
                "said": [
                    say("reason", r["code"], r["numbers"], lang)
                    for r in result["reasons"]
                    if r["topic"] == topic
                ],
            }
            for topic in _TOPICS
        ]
    words["runner_up"] = _runner_up(result, lang)
    words["switches"] = [_switch(item, plans[0], lang) for item in result.get("switches", ())]
    words["flips"] = [flip_text(flip, lang) for flip in result.get("flips", ())]
    words["remedies"] = [remedy_text(item, lang) for item in result.get("remedies", ())]
    words["refused"] = _refused(result, lang)
    return words


def problem_words(problems: Iterable[Mapping[str, Any]], lang: str) -> list[Json]:
    """Problems with their sentence and hint."""
    said = []
    for problem in problems:
        allowed = ", ".join(problem["allowed"][:_MOST_LISTED])
        if problem["code"] == "no_legal_plan":
            rules = (f"rule.{name}" for name in problem["allowed"])
            allowed = "; ".join(t(rule, lang) for rule in rules if has(rule, lang))
        where = _label(problem["where"], lang)
        values = {"key": key_of(where), **problem["numbers"], "where": where}
        values["value"] = problem["value"]
        values = {**values, "allowed": allowed}
        own = f"web.hint.{problem['code']}"  # where other hints speak of a terminal
        hint = own if has(own, lang) else f"hint.{problem['code']}"
        message, hint = (t(code, lang, **values) for code in (f"error.{problem['code']}", hint))
        said.append({**problem, "message": message, "hint": hint})
    return said


def _label(where: str, lang: str) -> str:
    """What a field is called in the form, where it has one."""
    return t(_LABELS[where], lang) if where in _LABELS else where


def _headline(result: Mapping[str, Any], lang: str) -> str:
    plans = result["plans"]
    if not plans:
        return t("web.headline.none", lang)
    verdict = plans[0]["memory"]["verdict"]
    return t(f"web.headline.{verdict}", lang, plan=plan_text(plans[0]["plan"]))


def _runner_up(result: Mapping[str, Any], lang: str) -> str:
    said, *more = runner_up_texts(result, lang) or ("",)
    gap = "" if lang == "zh" else " "
    return said + "".join(gap + rest[0].upper() + rest[1:] for rest in more)


def _switch(item: Json, entry: Json, lang: str) -> Json:
    """What a setting gains; how to plan with it needs no words where a click does."""
    said, _, *cautions = switch_texts(item, entry, lang)
    return {
        "said": said,
        "flags": item["flags"],
        "cautions": cautions,
        "name": item["switch"],
        "variant": item["variant"],
    }


def _refused(result: Mapping[str, Any], lang: str) -> list[Json]:
    rules = list(result.get("rejected", {}).items())[:_MOST_RULES]
    return [
        {"count": count, "rule": t(f"rule.{rule}", lang) if has(f"rule.{rule}", lang) else rule}
        for rule, count in rules
    ]
