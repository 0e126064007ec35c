"""Results in sentences, in the order in which people decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshplan.app.names import plan_text
from meshplan.text import has, t
from meshplan.units import format_duration, format_memory

__all__ = ["problem_words", "words_of"]

Json = dict[str, Any]
_NAMED = {"term": "memory", "part": "part", "event": "event", "knob": "axis"}
_TOPICS = ("memory", "communication", "degrees")
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
        "verdict": _verdict(shown, lang) if shown else "",
        "headline": _headline(result, lang),
        "assumptions": [
            _say("assumed", a["code"], {"value": a["value"]}, lang) for a in result["assumptions"]
        ],
        "notes": [_say("note", n["code"], {"value": n["value"]}, lang) for n in result["notes"]],
    }
    if "reasons" in result:
        words["reasons"] = [
            {
                "topic": t(f"cli.topic.{topic}", lang),
                "said": [
                    _say("reason", r["code"], r["numbers"], lang)
                    for r in result["reasons"]
                    if r["topic"] == topic
                ],
            }
            for topic in _TOPICS
        ]
    words["runner_up"] = _runner_up(result, lang)
    words["flips"] = [_flip(flip, lang) for flip in result.get("flips", ())]
    words["remedies"] = [_remedy(item, lang) for item in result.get("remedies", ())]
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
        values = {**problem["numbers"], "where": problem["where"], "value": problem["value"]}
        values = {**values, "allowed": allowed}
        message, hint = (
            t(f"{kind}.{problem['code']}", lang, **values) for kind in ("error", "hint")
        )
        said.append({**problem, "message": message, "hint": hint})
    return said


def _say(prefix: str, code: str, numbers: Mapping[str, Any], lang: str) -> str:
    named = {
        key: t(f"{_NAMED[key]}.{value}", lang)
        if key in _NAMED and has(f"{_NAMED[key]}.{value}", lang)
        else value
        for key, value in numbers.items()
    }
    if isinstance(numbers.get("plan"), Mapping):
        named["plan"] = plan_text(numbers["plan"])
    full = f"{prefix}.{code}"
    return t(full, lang, **named) if has(full, lang) else code


def _verdict(entry: Mapping[str, Any], lang: str) -> str:
    memory = entry["memory"]
    rest = memory["usable_bytes"] - memory["peak_bytes"]
    return t(
        "cli.verdict.over" if rest < 0 else "cli.verdict.room",
        lang,
        peak_bytes=memory["peak_bytes"],
        usable_bytes=memory["usable_bytes"],
        rest_bytes=abs(rest),
        rest=abs(rest) / memory["usable_bytes"],
    )


def _headline(result: Mapping[str, Any], lang: str) -> str:
    plans = result["plans"]
    if not plans:
        return t("cli.verdict.nothing_fits", lang)
    verdict = plans[0]["memory"]["verdict"]
    return t(f"web.headline.{verdict}", lang, plan=plan_text(plans[0]["plan"]))


def _runner_up(result: Mapping[str, Any], lang: str) -> str:
    lost = result.get("runner_up")
    if not lost:
        return ""
    slower = lost["slower_fraction"]
    said = t(
        f"decided.{lost['decided_by']}",
        lang,
        plan=plan_text(result["plans"][lost["rank"] - 1]["plan"]),
        best=plan_text(result["plans"][0]["plan"]),
        gap=abs(slower),
        gap_s=abs(lost["slower_s"]),
        sign=t("cli.slower" if slower >= 0 else "cli.faster", lang),
    )
    parts = sorted(lost["differences"].items(), key=lambda item: -abs(item[1]))[:3]
    named = t("cli.comma", lang).join(
        f"{t(f'part.{part}', lang)} {'+' if s > 0 else '−'}{format_duration(abs(s))}"
        for part, s in parts
        if abs(s) > 1e-3 * result["plans"][0]["step_time_s"]
    )
    gap = "" if lang == "zh" else " "
    more = t("cli.its_step", lang, parts=named) if named else ""
    return said + (gap + more[0].upper() + more[1:] if more else "")


def _flip(flip: Mapping[str, Any], lang: str) -> str:
    outcome = "none_fits" if flip["plan"] is None else "other"
    if flip["plan"] and flip["gain"] is None:
        outcome = "no_longer_fits"
    return t(
        f"cli.flip.{outcome}",
        lang,
        change=t(f"cli.change.{flip['change']}", lang),
        before=_quantity(flip["change"], flip["before"]),
        after=_quantity(flip["change"], flip["after"]),
        plan=plan_text(flip["plan"]) if flip["plan"] else "",
        gain=flip["gain"] or 0.0,
    )


def _quantity(change: str, value: float) -> str:
    if change == "network_bandwidth":
        return f"{value / 1e9:.4g} GB/s"
    return format_memory(value) if change == "device_memory" else f"{value:,.0f}"


def _remedy(item: Mapping[str, Any], lang: str) -> str:
    return t(
        f"cli.remedy.{item['kind']}",
        lang,
        before=_listed(item["before"]),
        after=_listed(item["after"]),
        plan=plan_text(item["plan"]),
        peak_bytes=item["peak_bytes"],
        step_time=format_duration(item["step_time_s"]),
    )


def _listed(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_listed(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _refused(result: Mapping[str, Any], lang: str) -> list[Json]:
    rules = list(result.get("rejected", {}).items())[:_MOST_RULES]
    return [
        {"count": count, "rule": t(f"rule.{rule}", lang) if has(f"rule.{rule}", lang) else rule}
        for rule, count in rules
    ]
