"""Which values of each degree a plan may take, and which rule forbids the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.app.request import read_plan, read_scenario
from meshplan.app.result import jsonable
from meshplan.inputs.scenario import Scenario
from meshplan.space.axes import axes_of
from meshplan.space.facts import facts_of
from meshplan.space.names import from_text, to_text
from meshplan.space.plan import Framework, Plan, Schedule
from meshplan.space.rules import check_plan
from meshplan.text import has, t

__all__ = ["EDITABLE", "legal_values"]

Json = dict[str, Any]

EDITABLE = ("tp", "pp", "cp", "ep", "etp", "vpp", "schedule", "zero", "micro_batch", "sp")
"""Fields of a plan that a person edits by hand; the others follow."""


def legal_values(request: Mapping[str, Any], lang: str) -> Json:
    """Try every value of every degree in the place of the plan's own.

    Args:
        request: a scenario and ``plan``, the fields that a person set.
        lang: language of the rules.

    Returns:
        By field, ``[{"value", "legal", "why"}]``, and under ``plan`` the completed plan.
    """
    scenario = read_scenario(request)
    given = request.get("plan") or {}
    if isinstance(given, Mapping):
        given = {k: v for k, v in given.items() if v is not None}
    plan = read_plan(scenario, given)
    framework = from_text(Framework, given.get("framework", scenario.frameworks[0]))
    axes = axes_of(facts_of(scenario), framework=framework, pinned={})
    fields: Json = {}
    for name in EDITABLE:
        values = set(axes[name].values[0]) | {int(getattr(plan, name))}
        shown = [_shown(name, value) for value in sorted(values)]
        fields[name] = [
            {"value": value, **_judge(scenario, _with(given, name, value), lang)} for value in shown
        ]
    return {"plan": jsonable(plan), "fields": fields}


def _shown(name: str, value: int) -> Any:
    if name == "schedule":
        return to_text(Schedule(value))
    return bool(value) if name == "sp" else int(value)


def _with(given: Mapping[str, Any], name: str, value: object) -> Json:
    """The fields with one changed; a change of pipeline resets what hangs on it."""
    changed = {**given, name: value}
    if name == "schedule":
        changed.pop("vpp", None)
    if name == "vpp":
        changed.pop("schedule", None)
    if name == "tp" and value == 1:
        changed.pop("sp", None)
    return changed


def _judge(scenario: Scenario, given: Json, lang: str) -> Json:
    plan: Plan = read_plan(scenario, given)
    broken = check_plan(scenario, plan)
    if not broken:
        return {"legal": True, "why": ""}
    code = f"rule.{broken[0].code}"
    return {"legal": False, "why": t(code, lang) if has(code, lang) else broken[0].code}
