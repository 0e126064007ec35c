"""What a result says in words, the same in the terminal and on the web page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshplan.app.names import plan_text, step_text
from meshplan.text import has, t
from meshplan.units import format_duration, format_memory

__all__ = [
    "flip_text",
    "key_of",
    "quantity_text",
    "remedy_text",
    "room_text",
    "runner_up_texts",
    "say",
    "signed",
    "source_text",
    "switch_texts",
    "unit_text",
]

Json = Mapping[str, Any]

# Numbers of a reason that are codes themselves, and where their names stand.
_NAMED = {"term": "memory", "part": "part", "event": "event", "knob": "axis"}
_CONFIG_OF = re.compile(r"config\.json of (\S+) on the Hugging Face hub")
_MOST_PARTS = 4
_NOTABLE = 0.001


def say(prefix: str, code: str, numbers: Json, lang: str) -> str:
    """Return the sentence of a coded reason; codes and plans among its numbers get their names."""
    full = f"{prefix}.{code}"
    if not has(full, lang):  # a test finds it; a reader still gets the numbers
        return f"{code.replace('_', ' ')}: {dict(numbers)}"
    return t(full, lang, **{key: _named(key, value, lang) for key, value in numbers.items()})


def _named(key: str, value: object, lang: str) -> object:
    if key == "plan" and isinstance(value, Mapping):
        return plan_text(value)
    if key in _NAMED and isinstance(value, str):
        full = f"{_NAMED[key]}.{value}"
        return t(full, lang) if has(full, lang) else value.replace("_", " ")
    return value


def key_of(where: str) -> str:
    """The key at the end of a place, which may have a file and a line in front."""
    return where.rsplit(": ", maxsplit=1)[-1]


def room_text(memory: Json, lang: str) -> str:
    """Say how much memory a plan leaves or lacks, on the device or else on the host."""
    peak, usable = memory["peak_bytes"], memory["usable_bytes"]
    host, capacity = memory["host_bytes"], memory["host_capacity_bytes"]
    if memory["verdict"] == "oom" and host > capacity:
        return t(
            "cli.verdict.over_host" if peak <= usable else "cli.verdict.over_both",
            lang,
            host_bytes=host,
            host_capacity_bytes=capacity,
            rest_bytes=host - capacity,
            too_much_bytes=peak - usable,
            peak_bytes=peak,
            usable_bytes=usable,
        )
    code = "room" if peak <= usable else "over"
    allowance = _allowance_bytes(memory)
    if memory["verdict"] == "tight" and peak > usable:
        code = "only_if"
    return t(
        f"cli.verdict.{code}",
        lang,
        peak_bytes=peak,
        usable_bytes=usable,
        rest_bytes=abs(usable - peak),
        rest=abs(usable - peak) / usable,
        allowance_bytes=allowance,
    )


def _allowance_bytes(memory: Json) -> float:
    """What of the peak is kept for what nobody can predict, such as fragmentation [bytes]."""
    terms = memory["stages"][memory["worst_stage"]]["terms"]
    return float(sum(term["bytes"] for term in terms if term["allowance"]))


def runner_up_texts(result: Json, lang: str) -> Sequence[str]:
    """Say what put the second plan behind the first, and where its step differs."""
    lost = result.get("runner_up")
    if not lost:
        return ()
    slower, plans = lost["slower_fraction"], result["plans"]
    said = t(
        f"decided.{lost['decided_by']}",
        lang,
        plan=plan_text(plans[lost["rank"] - 1]["plan"]),
        best=plan_text(plans[0]["plan"]),
        gap=abs(slower),
        gap_s=abs(lost["slower_s"]),
        sign=t("cli.slower" if slower >= 0 else "cli.faster", lang),
    )
    least = _NOTABLE * plans[0]["step_time_s"]
    parts = sorted(lost["differences"].items(), key=lambda item: -abs(item[1]))[:_MOST_PARTS]
    named = [f"{t(f'part.{part}', lang)} {signed(s)}" for part, s in parts if abs(s) >= least]
    more = t("cli.its_step", lang, parts=t("cli.comma", lang).join(named))
    return (said, more) if named else (said,)


def signed(seconds: float) -> str:
    """Print a difference in time with its sign."""
    return ("+" if seconds > 0 else "-") + format_duration(abs(seconds))


def flip_text(flip: Json, lang: str) -> str:
    """Say what a change of the job or the cluster would change in the choice."""
    plan = flip["plan"]
    outcome = "none_fits" if plan is None else "other"
    if plan and flip["gain"] is None:
        outcome = "no_longer_fits"
    named = ""
    if plan:
        # a plan of the table goes by its name, another one with all that sets it apart
        named = plan_text(plan) if flip["rank"] is not None else _in_full(plan, lang)
    return t(
        f"cli.flip.{outcome}",
        lang,
        change=t(f"cli.change.{flip['change']}", lang),
        before=quantity_text(flip["change"], flip["before"]),
        after=quantity_text(flip["change"], flip["after"]),
        plan=named,
        gain=flip["gain"] or 0.0,
    )


def switch_texts(item: Json, entry: Json, lang: str) -> Sequence[str]:
    """Say what a setting would gain, how to turn it on, and what to know before.

    Args:
        item: the setting.
        entry: the plan without it.
        lang: language.
    """
    same, best = item["same"], item["best"]
    values: dict[str, object] = {
        "name": t(f"switch.name.{item['switch']}", lang),
        "step": step_text(entry["step_time_s"]),
    }
    if same:
        values |= {"same_gain": same["gain"], "same_step": step_text(same["step_time_s"])}
        values |= {"memory": _memory_change(same, lang), "peak_bytes": same["peak_bytes"]}
    if best:
        values |= {"best_gain": best["gain"], "best_step": step_text(best["step_time_s"])}
        values["plan"] = _in_full(best["plan"], lang)
    gains = same and same["gain"] >= _NOTABLE
    outcome = "both" if gains and best else "best" if best else "same" if gains else "fits"
    return (
        t(f"switch.gain.{outcome}", lang, **values),
        t("switch.how", lang, flags=" ".join(item["flags"]), variant=item["variant"]),
        *(t(f"switch.caution.{code}", lang) for code in item["cautions"]),
    )


def _memory_change(same: Json, lang: str) -> str:
    """Say by how much memory differs, where it does notably."""
    saved = same["saved_bytes"]
    if abs(saved) < _NOTABLE * same["peak_bytes"]:
        return ""
    return t(
        "switch.memory.less" if saved > 0 else "switch.memory.more", lang, memory_bytes=abs(saved)
    )


def _in_full(plan: Json, lang: str) -> str:
    """Name a plan with the choices that its short name leaves out."""
    return t(
        "cli.plan_in_full",
        lang,
        plan=plan_text(plan),
        micro_batch=plan["micro_batch"],
        recompute=plan["recompute"],
    )


def source_text(source: str, lang: str) -> str:
    """Say where a formula or a number comes from; titles of documents stay as they are."""
    config = _CONFIG_OF.fullmatch(source)
    if config:
        return t("source.config_json", lang, name=config[1])
    code = "source." + re.sub(r"\W+", "_", source.lower())
    return t(code, lang) if has(code, lang) else source


def unit_text(unit: str, lang: str) -> str:
    """Name a unit that is a word."""
    code = "unit." + re.sub(r"\W+", "_", unit)
    return t(code, lang) if has(code, lang) else unit


def quantity_text(change: str, value: float) -> str:
    """Print what a change is about in its unit."""
    if change == "network_bandwidth":
        return f"{value / 1e9:.4g} GB/s"
    return format_memory(value) if change == "device_memory" else f"{value:,.0f}"


def remedy_text(item: Json, lang: str) -> str:
    """Say what would make it fit, with its price in time."""
    return t(
        f"cli.remedy.{item['kind']}",
        lang,
        changes=_job_changes(item, lang) if item["kind"] == "job" else "",
        before=_listed(item["before"]),
        after=_listed(item["after"]),
        plan=_in_full(item["plan"], lang),
        peak_bytes=item["peak_bytes"],
        step_time=format_duration(item["step_time_s"]),
    )


def _job_changes(item: Json, lang: str) -> str:
    """Each setting of the job that changes, with its value before and after."""
    said = (
        t(f"cli.remedy.job.{name}", lang, before=item["before"][name], after=after)
        for name, after in item["after"].items()
    )
    return t("cli.remedy.job.and", lang).join(said)


def _listed(value: object) -> str:
    return ", ".join(_items(value))


def _items(value: object) -> Iterator[str]:
    match value:
        case Mapping():
            yield from (f"{key}={_listed(item)}" for key, item in value.items())
        case list() | tuple():
            yield from map(str, value)
        case float():
            yield f"{value:.1f}"
        case _:
            yield str(value)
