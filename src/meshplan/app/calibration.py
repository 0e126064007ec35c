"""A cluster profile from a few measured runs, as a result document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshplan.app.document import document
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.fields import TEXT, Field, list_of, read_fields
from meshplan.validate.calibrate import Calibration, calibrate
from meshplan.validate.metrics import errors
from meshplan.validate.rows import Case
from meshplan.validate.run import NEEDED, read_cases
from meshplan.validate.table import read_models, read_table

__all__ = ["calibrate_profile"]

Json = dict[str, Any]

_FIELDS = (
    Field(name="runs", kind=TEXT, required=True),
    Field(name="models", kind=TEXT, required=True),
    Field(name="sources", kind=list_of(TEXT)),
    Field(name="rows", kind=list_of(TEXT)),
)


def calibrate_profile(request: Mapping[str, Any]) -> Json:
    """Fit a cluster profile to the runs of a table.

    Args:
        request: ``runs`` and ``models`` (paths of tables), and which of them to take: ``sources``
            (values of ``source_id``) and ``rows`` (values of ``row_id``); all when not given.

    Raises:
        UserError: when a table cannot be read, no run is left, or they are of several clusters.
    """
    problems = ProblemList()
    given = read_fields(request, _FIELDS, where="", problems=problems)
    problems.raise_if_any()
    cases = _cases(given)
    found = calibrate(cases)
    return {
        **document("calibrate"),
        "cluster": cases[0].scenario.cluster.name,
        "runs": _runs(cases, found),
        "before": errors(found.before),
        "after": errors(found.after),
        "profile": found.document(sources=[given["runs"]]),
    }


def _cases(given: Mapping[str, Any]) -> list[Case]:
    models = read_models(Path(given["models"]))
    rows = read_table(Path(given["runs"]), needs=NEEDED)
    for key, column in (("sources", "source_id"), ("rows", "row_id")):
        wanted: Sequence[str] = given.get(key, ())
        if not wanted:
            continue
        known = {row.get(column, "") for row in rows}
        for value in wanted:
            if value not in known:
                raise UserError.of("no_such_run", where=column, value=value, allowed=sorted(known))
        rows = [row for row in rows if row.get(column, "") in wanted]
    cases, skipped = read_cases(rows, models)
    timed = [case for case in cases if case.measured is not None]
    if not timed:
        reasons = sorted({reason for _, reason, _ in skipped})
        raise UserError.of(
            "no_run_to_calibrate", where=given["runs"], value=len(rows), allowed=reasons
        )
    devices = {case.scenario.cluster.device.name for case in timed}
    profiles = {case.scenario.profile or case.scenario.cluster.profile for case in timed}
    if len(devices) > 1 or len(profiles) > 1:
        clusters = sorted({case.scenario.cluster.name for case in timed})
        raise UserError.of("several_clusters", where=given["runs"], value=", ".join(clusters))
    return timed


def _runs(cases: Sequence[Case], found: Calibration) -> list[Json]:
    return [
        {
            "row_id": case.row_id,
            "measured_step_time_s": case.measured_step_s(),
            "before": before,
            "after": after,
        }
        for case, before, after in zip(cases, found.before, found.after, strict=True)
    ]
