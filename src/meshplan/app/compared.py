"""Predicted against measured as JSON, and the profile that a trace gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshplan.app.result import jsonable
from meshplan.diagnose.calibration import calibrate_run
from meshplan.diagnose.compare import compare
from meshplan.diagnose.records import RunMeasures
from meshplan.diagnose.values import shown_name
from meshplan.errors import UserError
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Plan

__all__ = ["calibrated_json", "compared_json"]

Json = dict[str, Any]


def compared_json(run: RunMeasures, scenario: Scenario | None, plan: Plan | None) -> Json | None:
    """The step of the plan beside the one that was measured; None without either."""
    if scenario is None or plan is None:
        return None
    found = compare(run, scenario, plan)
    return None if found is None else dict(jsonable(found))


def calibrated_json(
    run: RunMeasures, scenario: Scenario | None, plan: Plan | None, *, paths: Sequence[str]
) -> Json:
    """The profile of the cluster that a run was measured on.

    Raises:
        UserError: ``diagnose_plan_missing`` without a plan, ``trace.no_step`` without a step.
    """
    if scenario is None or plan is None:
        raise UserError.of("diagnose_plan_missing", where="calibrate")
    found = calibrate_run(run, scenario, plan)
    return {
        "profile": found.document(sources=[shown_name(Path(path)) for path in paths]),
        "before": found.calibration.before[0],
        "after": found.calibration.after[0],
        "comparison": jsonable(found.after),
    }
