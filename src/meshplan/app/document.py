"""What stands at the head of every result: versions, the scenario, what was assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshplan import __version__
from meshplan.app.encode import SCHEMA_VERSION
from meshplan.app.request import Request
from meshplan.app.result import jsonable
from meshplan.app.usual import USUAL, can_train
from meshplan.cost.notes import time_assumptions
from meshplan.inputs.load.profile import (
    filled_numbers,
    foreign_blocks,
    framework_of_variant,
    has_runs,
    idle_switches,
    profile_of,
    uncovered_kinds,
)
from meshplan.inputs.load.scenario import STORES_SCORES, plain_scenario
from meshplan.inputs.load.switches import switches_undone
from meshplan.inputs.load.vendors import framework_notes
from meshplan.inputs.scenario import Scenario

__all__ = ["document"]

Json = dict[str, Any]

_JOB_CHOICES = ("precision", "optimizer", "task", "attention")


def document(verb: str, scenario: Scenario | None = None, request: Request | None = None) -> Json:
    """The head of a result.

    Args:
        verb: what was asked.
        scenario: for what; its echo is a scenario file that gives the same result.
        request: what was said, which tells what was not.
    """
    head: Json = {
        "schema_version": SCHEMA_VERSION,
        "meshplan_version": __version__,
        "verb": verb,
    }
    if scenario is not None:
        head["scenario"] = jsonable(plain_scenario(scenario))
        head["assumptions"] = [
            {"code": code, "value": value} for code, value in _assumptions(scenario, request or {})
        ]
        head["notes"] = [{"code": c, "value": v} for c, v in scenario.model.notes]
    return head


def _uncovered(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Why the band is wider than that of other models on the chip."""
    kinds, model = uncovered_kinds(scenario), scenario.model
    if foreign := foreign_blocks(scenario):
        yield "blocks_of_no_own_run", f"{foreign} / {model.num_layers}"
    if kinds and not has_runs(scenario):
        yield "uncovered_chip", scenario.cluster.device.architecture
        return
    for kind, num in kinds.items():
        yield f"uncovered_{kind}", f"{num} / {model.num_layers}"


def _assumptions(scenario: Scenario, request: Request) -> Iterator[tuple[str, str]]:
    """What nobody said and the answer depends on."""
    yield from scenario.cluster.assumptions
    yield from time_assumptions(scenario)
    yield from _uncovered(scenario)
    if filled := filled_numbers(scenario):
        yield "profile_filled", ", ".join(filled)
    residuals = profile_of(scenario, scenario.frameworks[0]).residuals
    runs = [r for r in residuals.runs if r.framework in scenario.frameworks] if residuals else []
    if runs:
        yield "runs_alike", str(len(runs))
    if not request.get("frameworks"):
        yield "frameworks", ", ".join(scenario.frameworks)
        if USUAL not in scenario.frameworks and not can_train(scenario, USUAL):
            yield "frameworks_instead", USUAL
    owner = framework_of_variant(scenario.variant)
    if owner and set(scenario.frameworks) - {owner}:
        yield "variant_of_one", scenario.variant
    yield from framework_notes(scenario.cluster.device.vendor, scenario.frameworks)
    job = request.get("job")
    stated = job if isinstance(job, Mapping) else {}
    silent = [name for name in _JOB_CHOICES if stated.get(name) is None]
    device = scenario.cluster.device
    if "attention" in silent and device.architecture in STORES_SCORES:
        yield f"attention_{scenario.job.attention}", device.name
    if "attention" not in silent and not scenario.model.has_attention:
        yield "no_effect", f"job.attention={scenario.job.attention}"
    undone = switches_undone(owner, scenario.variant) if owner else ()
    for switch in dict.fromkeys((*idle_switches(scenario), *undone)):
        yield "no_effect", f"variant +{switch}"
    if silent:
        yield "job", ", ".join(f"job.{name}={getattr(scenario.job, name)}" for name in silent)
    if not scenario.profile and scenario.cluster.profile == "default":
        yield "profile", scenario.cluster.profile
