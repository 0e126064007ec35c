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
    "steps_marked",
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
_NO_VALUE = {"?": "look_at", "+": "raise"}
_COPIES = ("Memcpy", "Memset")
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
        "findings": [
            finding_words(finding, lang, whole=not steps_marked(result["run"]))
            for finding in result["findings"]
        ],
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
        said.append(
            t(
                "diagnose.headline",
                lang,
                ranks=_num_ranks(run, lang),
                device=run["device"] or t("diagnose.device_unknown", lang),
                steps=_num_steps(run, lang),
            )
        )
    said += [_log(log, lang) for log in run["logs"]]
    return said + [_metrics(table, lang) for table in run["metrics"]]


def _num_ranks(run: Json, lang: str) -> str:
    """How many ranks there are, of how many where some are missing."""
    num, world = run["num_ranks"], run["world_size"] or run["num_ranks"]
    code = "ranks" if num >= world else "some_ranks"
    return t(f"diagnose.headline.{code}", lang, num_ranks=num, world_size=world)


def _num_steps(run: Json, lang: str) -> str:
    """How many steps there are, and how many of them are steady."""
    if not steps_marked(run):
        return t("diagnose.headline.no_steps", lang)
    steps = max((len(rank["steps"]) for rank in run["ranks"]), default=0)
    steady = max((sum(not s["warm_up"] for s in r["steps"]) for r in run["ranks"]), default=0)
    code = "steady_steps" if 0 < steady < steps else "steps"
    return t(f"diagnose.headline.{code}", lang, all_steps=steps, num_steps=steady)


def steps_marked(run: Json) -> bool:
    """Whether the traces mark steps; else each of them is taken as one."""
    steps = [step for rank in run["ranks"] for step in rank["steps"]]
    return not steps or any(step["name"] != "whole" for step in steps)


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


def finding_words(finding: Json, lang: str, *, whole: bool = False) -> dict[str, str]:
    """One finding: its name, cost, evidence, where it shows, what to do, the gain, how sure.

    What a finding does not say is an empty text.

    Args:
        finding: as ``diagnose`` gives it.
        lang: language.
        whole: traces mark no steps, so that each counts as one.
    """
    gain, action = finding["gain"], finding["action"]
    steps = [t(f"diagnose.action.{action['code']}", lang, **_named(action["numbers"], lang))]
    steps += _changes(action["changes"], lang)
    expected = (
        "" if gain is None else t(f"diagnose.gain.{gain['basis']}", lang, share=gain["share"])
    )
    numbers = _named(finding["numbers"], lang)
    evidence = [t(_of_form("finding", finding, lang), lang, **numbers)]
    evidence += [t(f"diagnose.detail.{code}", lang, **numbers) for code in finding["details"]]
    return {
        "title": t(_of_form("check", finding, lang), lang),
        "cost": _cost(finding, lang, whole=whole),
        "evidence": t("diagnose.and", lang).join(evidence),
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


def _of_form(part: str, finding: Json, lang: str) -> str:
    """Code of a sentence about a finding: of its form where that has one of its own."""
    code = f"diagnose.{part}.{finding['code']}"
    own = f"{code}.{finding['form']}"
    return own if has(own, lang) else code


def nothing_words(result: Json, lang: str) -> str:
    """What is said where there is no finding: all is well, or nothing could be looked at."""
    looked = any(check["state"] == "clear" for check in result["checks"])
    return t("diagnose.nothing" if looked else "diagnose.nothing_checked", lang)


def _cost(finding: Json, lang: str, *, whole: bool) -> str:
    share = finding["cost_share"]
    if share is None:
        return t(f"diagnose.no_cost.{finding['cost_reason']}", lang)
    if share <= 0:
        return t("diagnose.no_cost", lang)
    if finding["cost_s"] is None:
        return t("diagnose.cost", lang, share=share)
    code = "diagnose.cost_whole" if whole else "diagnose.cost_timed"
    return t(code, lang, share=share, cost_s=finding["cost_s"])


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
        names = dict.fromkeys(map(_short, finding["kernels"]))
        said.append(t("diagnose.kernels", lang, kernels=", ".join(list(names)[:_MOST_KERNELS])))
    return t("diagnose.and", lang).join(said)


def _short(kernel: str) -> str:
    """A kernel by its name, without return type, template arguments and parameters."""
    name, kept = kernel.removeprefix("void "), ""
    if not name.startswith(_COPIES):
        depth = 0
        for letter in name:
            depth += letter == "<"
            if depth == 0 and letter == "(" and kept:
                break
            kept += letter if depth == 0 else ""
            depth -= letter == ">"
    kept = kept.strip() or name
    return kept if len(kept) <= _KERNEL_CHARACTERS else f"{kept[: _KERNEL_CHARACTERS - 1]}…"


def _changes(changes: Sequence[Json], lang: str) -> list[str]:
    """Settings to change: values for others, then the flags to add and those to take out."""
    said, add, take_out = [], [], []
    for change in changes:
        option, before, after = change["option"], change["before"], change["after"]
        if not option:
            continue
        if after is None:
            take_out.append(f"{option} {before or ''}".rstrip())
        elif before is None or after == "":
            add.append(f"{option} {after}".rstrip())
        elif after in _NO_VALUE:
            said.append(t(f"diagnose.{_NO_VALUE[after]}", lang, option=option))
        else:
            code = "diagnose.change_to" if before == "" else "diagnose.change"
            said.append(t(code, lang, option=option, before=str(before), after=str(after)))
    said += [t("diagnose.add", lang, option=" ".join(add))] if add else []
    return said + ([t("diagnose.take_out", lang, option=" ".join(take_out))] if take_out else [])


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
