"""What stands at the head of every result: versions, the scenario, what was assumed."""

from __future__ import annotations

from typing import Any

from meshplan import __version__
from meshplan.app.result import SCHEMA_VERSION, jsonable
from meshplan.cost.notes import time_assumptions
from meshplan.inputs.load.scenario import plain_scenario
from meshplan.inputs.scenario import Scenario

__all__ = ["document"]

Json = dict[str, Any]


def document(verb: str, scenario: Scenario | None = None) -> Json:
    """The head of a result.

    Args:
        verb: what was asked.
        scenario: for what; its echo is a scenario file that gives the same result.
    """
    head: Json = {
        "schema_version": SCHEMA_VERSION,
        "meshplan_version": __version__,
        "verb": verb,
    }
    if scenario is not None:
        head["scenario"] = jsonable(plain_scenario(scenario))
        head["assumptions"] = _assumptions(scenario)
        head["notes"] = [{"code": c, "value": v} for c, v in scenario.model.notes]
    return head


def _assumptions(scenario: Scenario) -> list[Json]:
    """What nobody said and the answer depends on."""
    assumed = (*scenario.cluster.assumptions, *time_assumptions(scenario))
    return [{"code": code, "value": value} for code, value in assumed]
