"""A cluster profile from a few measured runs, as a result document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshplan.app.document import document
from meshplan.app.judge import judge
from meshplan.app.request import read_plan, read_scenario
from meshplan.diagnose.read.log import read_log
from meshplan.diagnose.read.packed import plain_files
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.fields import FLAG, TEXT, Field, list_of, read_fields
from meshplan.inputs.load.scenario import read_scenario_file
from meshplan.inputs.vocabulary import FRAMEWORKS
from meshplan.validate.calibrate import Calibration, calibrate, check_reach
from meshplan.validate.metrics import errors
from meshplan.validate.rows import Case
from meshplan.validate.run import NEEDED, read_cases
from meshplan.validate.table import models_of, read_table

__all__ = ["calibrate_profile"]

Json = dict[str, Any]

_FIELDS = (
    Field(name="runs", kind=list_of(TEXT), required=True),
    Field(name="models", kind=TEXT),
    Field(name="sources", kind=list_of(TEXT)),
    Field(name="rows", kind=list_of(TEXT)),
    Field(name="scenario", kind=TEXT),
    Field(name="keep_far", kind=FLAG),
)
_TABLE = ".csv"
# what a log may state, by where it belongs
_JOB = ("seq_len", "global_batch")
_FRAMEWORKS = {"nemo": "megatron", "huggingface": "accelerate"}
_PLAN = ("tp", "pp", "cp", "ep", "micro_batch")


def calibrate_profile(request: Mapping[str, Any]) -> Json:
    """Fit a cluster profile to measured runs: rows of tables, or console logs.

    Args:
        request: ``runs`` (paths; ``.csv`` is a table, anything else a log). For tables
            ``models`` (the path of their models) and which runs to take, ``sources`` (values of
            ``source_id``) and ``rows`` (values of ``row_id``), all when not given. For logs
            ``scenario``, the path of a scenario file whose axes pin the plan; what a log states
            itself goes before it. ``keep_far`` takes runs too that are so far from what is
            predicted that they look like runs of another unit or layout.

    Raises:
        UserError: when a file cannot be read, no run is left, or they are of several clusters.
    """
    problems = ProblemList()
    given = read_fields(request, _FIELDS, where="", problems=problems)
    problems.raise_if_any()
    tables = [path for path in given["runs"] if path.lower().endswith(_TABLE)]
    logs = [path for path in given["runs"] if path not in tables]
    if logs and "scenario" not in given:
        raise UserError.of("missing_key", where="scenario")
    skipped: Counter[tuple[str, str]] = Counter()
    cases = [case for path in tables for case in _rows(path, given, skipped)]
    cases += [_log(path, given["scenario"]) for path in logs]
    _check_one_cluster(cases)
    if not given.get("keep_far"):
        check_reach(cases)
    found = calibrate(cases)
    return {
        **document("calibrate"),
        "cluster": cases[0].scenario.cluster.name,
        "runs": _runs(cases, found),
        "skipped_by_source": [
            {"source_id": source, "reason": reason, "num_rows": num_rows}
            for (source, reason), num_rows in skipped.items()
        ],
        "before": errors(found.before),
        "after": errors(found.after),
        "profile": found.document(sources=[Path(path).name for path in given["runs"]]),
    }


def _rows(path: str, given: Mapping[str, Any], left_out: Counter[tuple[str, str]]) -> list[Case]:
    """The timed runs of a table; the others are counted by source and reason."""
    rows = read_table(Path(path), needs=NEEDED)
    if not rows:
        raise UserError.of("table_empty", where=path)
    models = models_of(rows, Path(given["models"]) if "models" in given else None)
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
    counted = [(one.source_id, one.reason) for one in skipped]
    rest = Counter(row["source_id"] for row in rows)
    rest.subtract([*(source for source, _ in counted), *(case.source_id for case in timed)])
    left_out.update(counted)
    left_out.update({(source, "not_timed"): num for source, num in rest.items() if num > 0})
    if not timed:
        untimed = ["not_timed"] if cases else []
        reasons = sorted({one.reason for one in skipped}.union(untimed))
        raise UserError.of("no_run_to_calibrate", where=path, value=len(rows), allowed=reasons)
    return timed


def _log(path: str, scenario_file: str) -> Case:
    """The run of a console log, in the scenario that it belongs to."""
    # of an archive the last one
    log = [read_log(file) for file, _ in plain_files(Path(path), is_named=True)][-1]
    step_time_s, speed = log.steady_step_s(), log.steady_tokens_per_s_per_gpu()
    if not step_time_s and not speed:
        raise UserError.of("log_without_speed", where=log.file)
    data = read_scenario_file(scenario_file)
    stated = {name: log.settings[name] for name in _JOB if name in log.settings}
    data["job"] = {**(data.get("job") or {}), **stated}
    framework = _FRAMEWORKS.get(log.framework, log.framework)
    if framework in FRAMEWORKS:
        data.setdefault("frameworks", [framework])
    scenario = read_scenario(data)
    known = {
        "num_gpus": scenario.cluster.num_gpus,
        "num_layers": scenario.model.num_layers,
        "hidden": scenario.model.hidden,
    }
    for name, value in known.items():
        if log.settings.get(name, value) != value:
            raise UserError.of(
                "log_of_another_job", where=path, value=log.settings[name], name=name, known=value
            )
    pinned = {axis: values[0] for axis, values in scenario.axes.items() if len(values) == 1}
    stated = {name: log.settings[name] for name in _PLAN if name in log.settings}
    plan = judge(scenario, read_plan(scenario, {**pinned, **stated})).plan
    return Case(
        row_id=Path(path).name,
        source_id="log",
        sweep_id="",
        sweep_key=(),
        group="",
        scenario=scenario,
        plan=plan,
        target="step_time_s" if step_time_s else "tokens_per_s_per_gpu",
        measured=step_time_s or speed,
        measured_bytes=None,
        out_of_memory=False,
    )


def _check_one_cluster(cases: Sequence[Case]) -> None:
    devices = {case.scenario.cluster.device.name for case in cases}
    profiles = {case.scenario.profile or case.scenario.cluster.profile for case in cases}
    if len(devices) > 1 or len(profiles) > 1:
        clusters = sorted({case.scenario.cluster.name for case in cases})
        raise UserError.of("several_clusters", where="runs", value=", ".join(clusters))


def _runs(cases: Sequence[Case], found: Calibration) -> list[Json]:
    return [
        {
            "row_id": case.row_id,
            "framework": case.plan.framework.name.lower(),
            "measured_step_time_s": case.measured_step_s(),
            "before": before,
            "after": after,
        }
        for case, before, after in zip(cases, found.before, found.after, strict=True)
    ]
