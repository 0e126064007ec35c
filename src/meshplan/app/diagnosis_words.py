"""What ``diagnose`` says in words, the same in the terminal and on the web page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.app.names import plan_text
from meshplan.text import has, t
from meshplan.units import format_bandwidth, format_duration

__all__ = [
    "TRAFFIC_COLUMNS",
    "check_words",
    "diagnosis_words",
    "finding_words",
    "headline_words",
    "note_words",
    "nothing_words",
    "rule_words",
    "traffic_words",
]

Json = Mapping[str, Any]

TRAFFIC_COLUMNS = ("axis", "kind", "group", "calls", "time", "shown", "bandwidth", "basis")
"""Columns of :func:`traffic_words`; ``diagnose.column.<name>`` is the title of each."""

_MOST_RANKS = 12
_MOST_KERNELS = 2
_MOST_NOTES = 8
_MOST_TRAFFIC = 8
_KERNEL_CHARACTERS = 60
# figures of GPU metrics that the headline says
_SAMPLED = ("utilization", "sm_active", "tensor_active", "sm_clock_hz", "power_w", "temperature_c")
# values of a finding that are codes, and where their names stand
_NAMED = {
    "cause": "diagnose.cause",
    "what": "diagnose.what",
    "axis": "diagnose.axis",
    "kind": "diagnose.kind",
    "figure": "diagnose.figure",
    "fabric": "diagnose.fabric",
    "way": "diagnose.way",
}


def diagnosis_words(result: Json, lang: str) -> dict[str, Any]:
    """All that a result of ``diagnose`` says in words.

    Args:
        result: of ``diagnose``, not of an allocation.
        lang: language.
    """
    return {
        "headline": headline_words(result, lang),
        "parts": {name: t(f"diagnose.part.{name}", lang) for name in result["run"]["parts"]},
        "traffic": traffic_words(result["run"], lang),
        "findings": [finding_words(finding, lang) for finding in result["findings"]],
        "nothing": nothing_words(result, lang),
        "rule_of_thumb": rule_words(result, lang),
        **check_words(result, lang),
        "notes": note_words(result["run"], lang),
    }


def headline_words(result: Json, lang: str) -> list[str]:
    """What was read: the plan, the ranks and steps, each log."""
    run = result["run"]
    said = [] if result["plan"] is None else [plan_text(result["plan"])]
    if run["num_ranks"]:
        steps = [len(rank["steps"]) for rank in run["ranks"]]
        steady = [sum(not s["warm_up"] for s in rank["steps"]) for rank in run["ranks"]]
        said.append(
            t(
                "diagnose.headline",
                lang,
                num_ranks=run["num_ranks"],
                world_size=run["world_size"] or run["num_ranks"],
                device=run["device"] or t("diagnose.device_unknown", lang),
                num_steps=max(steady, default=0) or max(steps, default=0),
                all_steps=max(steps, default=0),
            )
        )
    said += [_log(log, lang) for log in run["logs"]]
    return said + [_metrics(table, lang) for table in run["metrics"]]


def _metrics(table: Json, lang: str) -> str:
    """One table of metrics: how many GPUs, and the least and most of their usual figures."""
    said = [t("diagnose.headline_metrics", lang, file=table["file"], num_gpus=len(table["gpus"]))]
    for name in _SAMPLED:
        means = [g["figures"][name]["mean"] for g in table["gpus"] if name in g["figures"]]
        if means:
            low, high = min(means), max(means)
            mhz = {"low_mhz": low / 1e6, "high_mhz": high / 1e6}
            said.append(t(f"diagnose.sampled.{name}", lang, low=low, high=high, **mhz))
    return t("diagnose.and", lang).join(said)


def _log(log: Json, lang: str) -> str:
    seconds, speed = log["step_time_s"], log["tokens_per_s_per_gpu"]
    facts = {"file": log["file"], "framework": log["framework"]}
    if seconds is not None:
        return t("diagnose.headline_log", lang, **facts, step_time_s=seconds)
    if speed is not None:
        return t("diagnose.headline_speed", lang, **facts, speed=speed)
    return t("diagnose.headline_bare", lang, **facts)


def traffic_words(run: Json, lang: str) -> list[list[str]]:
    """The largest rows of the traffic, in columns."""
    rows = [row for row in run["traffic"] if row["count"] > 0][:_MOST_TRAFFIC]
    return [
        [
            t("diagnose.axis.unknown", lang) if row["axis"] == "unknown" else row["axis"].upper(),
            row["kind"].replace("_", "-"),
            str(row["group_size"] or "?"),
            f"{row['count']:.4g}",
            format_duration(row["total_s"]),
            format_duration(row["exposed_s"]),
            format_bandwidth(row["bus_bytes_per_s"]) if row["bus_bytes_per_s"] else "",
            t(f"diagnose.basis.{row['basis']}", lang),
        ]
        for row in rows
    ]


def finding_words(finding: Json, lang: str) -> dict[str, str]:
    """One finding: its name, cost, evidence, where it shows, what to do, the gain, how sure.

    What a finding does not say is an empty text.
    """
    gain, action = finding["gain"], finding["action"]
    steps = [t(f"diagnose.action.{action['code']}", lang, **_named(action["numbers"], lang))]
    steps += [_change(change, lang) for change in action["changes"] if change["option"]]
    expected = (
        "" if gain is None else t(f"diagnose.gain.{gain['basis']}", lang, share=gain["share"])
    )
    return {
        "title": t(f"diagnose.check.{finding['code']}", lang),
        "cost": _cost(finding, lang),
        "evidence": t(_evidence(finding, lang), lang, **_named(finding["numbers"], lang)),
        "where": _where(finding, lang),
        "next": t("diagnose.next", lang, text=t("diagnose.and", lang).join(steps)),
        "expected": expected and t("diagnose.expected", lang, text=expected),
        "certain": t(
            "diagnose.certain",
            lang,
            confidence=t(f"diagnose.confidence.{finding['confidence']}", lang),
            reason=t(f"diagnose.reason.{finding['reason']}", lang),
        ),
    }


def _evidence(finding: Json, lang: str) -> str:
    """Code of the sentence of a finding."""
    form = f".{finding['form']}" if finding["form"] else ""
    return f"diagnose.finding.{finding['code']}{form}"


def nothing_words(result: Json, lang: str) -> str:
    """What is said where there is no finding: all is well, or nothing could be looked at."""
    looked = any(check["state"] == "clear" for check in result["checks"])
    return t("diagnose.nothing" if looked else "diagnose.nothing_checked", lang)


def _cost(finding: Json, lang: str) -> str:
    share = finding["cost_share"]
    if share is None:
        return t(f"diagnose.no_cost.{finding['cost_reason']}", lang)
    if share <= 0:
        return t("diagnose.no_cost", lang)
    if finding["cost_s"] is None:
        return t("diagnose.cost", lang, share=share)
    return t("diagnose.cost_timed", lang, share=share, cost_s=finding["cost_s"])


def _named(numbers: Json, lang: str) -> dict[str, object]:
    return {
        key: t(f"{_NAMED[key]}.{value}", lang) if key in _NAMED else value
        for key, value in numbers.items()
    }


def _where(finding: Json, lang: str) -> str:
    said = []
    if finding["ranks"]:
        code = "diagnose.rank" if len(finding["ranks"]) == 1 else "diagnose.ranks"
        said.append(t(code, lang, ranks=_ranks(finding["ranks"])))
    if finding["kernels"]:
        names = (name[:_KERNEL_CHARACTERS] for name in finding["kernels"][:_MOST_KERNELS])
        said.append(t("diagnose.kernels", lang, kernels=", ".join(names)))
    return t("diagnose.and", lang).join(said)


def _change(change: Json, lang: str) -> str:
    if change["after"] in ("", "+"):
        return t("diagnose.look_at", lang, option=change["option"])
    known = change["before"] not in ("", None)
    code = "diagnose.change" if known else "diagnose.change_to"
    before, after = str(change["before"]), str(change["after"])
    return t(code, lang, option=change["option"], before=before, after=after)


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


def rule_words(result: Json, lang: str) -> list[str]:
    """What the rule of thumb says of a utilisation."""
    rule = result["rule_of_thumb"]
    said = []
    for found in rule["findings"] if rule is not None else ():
        text = t(f"finding.{found['code']}", lang, **found["numbers"])
        if found["action"]:
            text += t("diagnose.and", lang) + t(
                f"action.{found['action']}", lang, **found["numbers"]
            )
        said.append(text)
    return said


def check_words(result: Json, lang: str) -> dict[str, list[str]]:
    """What could not be told (``open``) and what was checked with nothing found (``clear``)."""
    said: dict[str, list[str]] = {"open": [], "clear": []}
    for check in result["checks"]:
        name = t(f"diagnose.look.{check['code']}", lang)
        if check["state"] == "open":
            reason = t(f"diagnose.open.{check['reason']}", lang)
            said["open"].append(t("diagnose.of", lang, name=name, text=reason))
        elif check["state"] == "clear":
            said["clear"].append(name)
    return said


def note_words(run: Json, lang: str) -> list[str]:
    """What was noticed of the files, each sentence once."""
    sentences: dict[str, None] = {}
    for note in run["notes"]:
        text = _note(note, lang)
        sentences[text] = None
    shown = list(sentences)
    more = [f"... (+{len(shown) - _MOST_NOTES})"] if len(shown) > _MOST_NOTES else []
    return shown[:_MOST_NOTES] + more


def _note(note: Json, lang: str) -> str:
    """One note; of a file that was not read, the sentence of its error."""
    numbers, code = note["numbers"], f"diagnose.note.{note['code']}"
    if note["code"] == "file_not_read" and has(f"error.{numbers['error']}", lang):
        said = t(f"error.{numbers['error']}", lang, where=note["where"], **numbers)
        return t("diagnose.note.file_not_read", lang, text=said)
    text = t(code, lang, **numbers) if has(code, lang) else note["code"].replace("_", " ")
    return t("diagnose.of", lang, name=note["where"], text=text) if note["where"] else text
