"""The first lines of an answer: what it is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshplan.app.cli.render.blocks import Block, View, paragraph
from meshplan.text import has

__all__ = ["scenario_lines"]

_SAID = ("seq_len", "global_batch", "total_tokens", "deadline_days")


def scenario_lines(result: Mapping[str, Any], view: View) -> Iterator[Block]:
    """Name the model, the cluster, the job and what the search may choose from."""
    scenario = result["scenario"]
    job = scenario["job"]
    yield paragraph(
        view.t(
            "cli.scenario.title",
            model=_name(scenario["model"]),
            cluster=_name(scenario["cluster"]),
            frameworks=", ".join(scenario["frameworks"]),
        ),
        view,
        style="bold",
    )
    tokens = job["seq_len"] * job["global_batch"]
    parts = [
        view.t("cli.scenario.seq_len", seq_len=job["seq_len"]),
        view.t("cli.scenario.batch", batch=job["global_batch"], num_tokens=tokens),
    ]
    if "total_tokens" in job:
        parts.append(view.t("cli.scenario.total", num_tokens=float(job["total_tokens"])))
    if "deadline_days" in job:
        parts.append(view.t("cli.scenario.deadline", days=job["deadline_days"]))
    for key, value in job.items():
        if key not in _SAID:
            code = f"cli.scenario.{key}"
            parts.append(view.t(code, value=value) if has(code, view.lang) else str(value))
    for axis, values in (scenario.get("axes") or {}).items():
        listed = values if isinstance(values, list) else [values]
        said = ", ".join(map(str, listed))
        parts.append(view.t("cli.scenario.axis", axis=view.name("axis", axis), values=said))
    if scenario.get("objective", "fastest") != "fastest":
        code = f"cli.objective.{scenario['objective']}"
        if "deadline_days" not in job and has(f"{code}.open", view.lang):
            code += ".open"
        parts.append(view.t(code) if has(code, view.lang) else scenario["objective"])
    yield paragraph(view.t("cli.separator").join(parts), view, style="dim")


def _name(value: object) -> str:
    """A preset's name, or the name that a written-out model or cluster goes by."""
    if isinstance(value, Mapping):
        record = value.get("record") or {}
        return str(value.get("name") or value.get("base") or record.get("name") or "?")
    return str(value)
