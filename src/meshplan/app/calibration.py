"""A cluster profile from a few measured runs, as a result document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshplan.app.document import document
from meshplan.app.judge import judge
from meshplan.app.request import read_plan, read_scenario
from meshplan.app.tables import measured_files, models_for, name_of, shown
from meshplan.diagnose.read.log import LogMeasures, read_log
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.fields import FLAG, TEXT, Field, list_of, read_fields
from meshplan.inputs.load.profile import cluster_profile, framework_of_variant, profile_name
from meshplan.inputs.load.profile_file import dump_profile, read_profile
from meshplan.inputs.load.scenario import read_scenario_file
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.vocabulary import FRAMEWORKS
from meshplan.validate.assume import has_unknown_framework
from meshplan.validate.calibrate import MOST_RUNS, calibrate, check_reach
from meshplan.validate.held import Book, book_of, fresh_runs
from meshplan.validate.metrics import errors
from meshplan.validate.predict import predict
from meshplan.validate.rows import Case
from meshplan.validate.run import NEEDED, read_cases
from meshplan.validate.table import Row, read_table

__all__ = ["calibrate_profile"]

Json = dict[str, Any]

_FIELDS = (
    Field(name="runs", kind=list_of(TEXT), required=True),
    Field(name="models", kind=TEXT),
    Field(name="sources", kind=list_of(TEXT)),
    Field(name="rows", kind=list_of(TEXT)),
    Field(name="scenario", kind=TEXT),
    Field(name="profile", kind=TEXT),
    Field(name="keep_far", kind=FLAG),
)
# what a log may state, by where it belongs
_JOB = ("seq_len", "global_batch")
_MOST_ROWS = 50_000
"""Rows beyond which a table is not read row by row to find too many runs in it."""
_PLAN = ("tp", "pp", "cp", "ep", "micro_batch")
_MAY_BE = {
    "torchtitan": ("torchtitan",),
    "nanotron": ("nanotron",),
    "nemo": ("megatron",),
    "megatron": ("megatron", "deepspeed"),
    "deepspeed": ("deepspeed", "accelerate"),
    "huggingface": ("accelerate", "deepspeed"),
    "composer": ("accelerate",),
    "mlperf": tuple(FRAMEWORKS),
}
"""Frameworks whose console looks like each log, the usual one first; DeepSpeed is an engine of
several, and MLPerf's lines say nothing of the framework."""


def calibrate_profile(request: Mapping[str, Any]) -> Json:
    """Fit a cluster profile to measured runs: rows of tables, or console logs.

    Args:
        request: ``runs``, paths of tables and of logs, told apart by what they hold. For tables
            ``models`` (the path of their models) and which runs to take, ``sources`` (values of
            ``source_id``) and ``rows`` (values of ``row_id``), all when not given. For logs
            ``scenario``, the path of a scenario file whose axes pin the plan; what a log states
            itself goes before it. ``profile`` is where to go on from, a name or a file.
            ``keep_far`` takes runs too that are so far from what is predicted that they look like
            runs of another unit or layout.

    Raises:
        UserError: when a file cannot be read, no run is left, or they are of several clusters.
    """
    problems = ProblemList()
    given = read_fields(request, _FIELDS, where="", problems=problems)
    problems.raise_if_any()
    if "profile" in given:
        cluster_profile(given["profile"])
    skipped: Counter[tuple[str, str]] = Counter()
    statements = [_cases(path, given, skipped) for path in given["runs"]]
    cases = [case for own in statements for case in own]
    if len(cases) > MOST_RUNS:
        raise UserError.of("too_many_runs", where="runs", value=len(cases), most=MOST_RUNS)
    book = _check_one_cluster(cases)
    is_new = fresh_runs(statements, book.runs)
    new = [case for case, fresh in zip(cases, is_new, strict=True) if fresh]
    if new and not given.get("keep_far"):
        check_reach(new)
    profile: Json = (
        calibrate(new).document(sources=[name_of(path) for path in given["runs"]])
        if new
        else dict(read_profile(profile_name(cases[0].scenario)))
    )
    as_written = dump_profile(profile)
    before = _errors(cases)
    after = _errors([case.with_profile(as_written) for case in cases])
    return {
        **document("calibrate"),
        "cluster": cases[0].scenario.cluster.name,
        "runs": [_run(*values) for values in zip(cases, is_new, before, after, strict=True)],
        "skipped_by_source": [
            {"source_id": source, "reason": reason, "num_rows": num_rows}
            for (source, reason), num_rows in skipped.items()
        ],
        "before": errors(before),
        "after": errors(after),
        "profile": profile,
    }


def _errors(cases: Sequence[Case]) -> list[float]:
    """Predicted over measured step time minus one."""
    made = predict(cases, memory=False)
    return [p.step_time_s / p.case.measured_step_s() - 1.0 for p in made]


def _run(case: Case, is_new: bool, before: float, after: float) -> Json:
    return {
        "row_id": case.row_id,
        "framework": case.plan.framework.name.lower(),
        "measured_step_time_s": case.measured_step_s(),
        "counted": is_new,
        "before": before,
        "after": after,
    }


def _cases(path: str, given: Mapping[str, Any], left_out: Counter[tuple[str, str]]) -> list[Case]:
    """The runs of one file: of a table its timed rows, of an archive of logs the last one."""
    rows: list[Row] = []
    log: LogMeasures | None = None
    for file, is_table in measured_files(path):
        if is_table:
            rows += read_table(file, needs=NEEDED, where=shown(path))
            if not rows:
                raise UserError.of("table_empty", where=shown(path))
        else:
            log = _read_log(file, path)
    found = _rows(rows, path, given, left_out) if rows else []
    if log is not None:
        found.append(_run_of_log(log, path, given))
    return [case.with_profile(given.get("profile", "")) for case in found]


def _rows(
    rows: list[Row], path: str, given: Mapping[str, Any], left_out: Counter[tuple[str, str]]
) -> list[Case]:
    """The timed runs of a table; the others are counted by source and reason."""
    models = models_for(rows, given.get("models"))
    for key, column in (("sources", "source_id"), ("rows", "row_id")):
        wanted: Sequence[str] = given.get(key, ())
        if not wanted:
            continue
        known = {row.get(column, "") for row in rows}
        for value in wanted:
            if value not in known:
                raise UserError.of("no_such_run", where=column, value=value, allowed=sorted(known))
        rows = [row for row in rows if row.get(column, "") in wanted]
    if len(rows) > _MOST_ROWS:
        raise UserError.of("too_many_runs", where=shown(path), value=len(rows), most=MOST_RUNS)
    foreign = [row["source_id"] for row in rows if has_unknown_framework(row)]
    left_out.update((source, "unknown_framework") for source in foreign)
    cases, skipped = read_cases([row for row in rows if not has_unknown_framework(row)], models)
    timed = [case for case in cases if case.measured is not None]
    counted = [(one.source_id, one.reason) for one in skipped]
    rest = Counter(row["source_id"] for row in rows)
    rest.subtract(
        [*foreign, *(source for source, _ in counted), *(case.source_id for case in timed)]
    )
    left_out.update(counted)
    left_out.update({(source, "not_timed"): num for source, num in rest.items() if num > 0})
    if not timed:
        more = [("not_timed", cases), ("unknown_framework", foreign)]
        reasons = sorted({one.reason for one in skipped} | {code for code, some in more if some})
        raise UserError.of(
            "no_run_to_calibrate", where=shown(path), value=len(rows), allowed=reasons
        )
    return timed


def _read_log(file: Path, path: str) -> LogMeasures:
    """A console log; what is none is no table either."""
    try:
        log = read_log(file)
    except UserError as error:
        (problem,) = error.problems
        if problem.code != "log_unknown":
            raise
        raise UserError.of(
            "measured_unknown",
            where=shown(path),
            allowed=problem.allowed,
            columns=", ".join(NEEDED),
        ) from error
    return log


def _run_of_log(log: LogMeasures, path: str, given: Mapping[str, Any]) -> Case:
    """The run of a console log, in the scenario that it belongs to."""
    step_time_s, speed = log.steady_step_s(), log.steady_tokens_per_s_per_gpu()
    if not step_time_s and not speed:
        raise UserError.of("log_without_speed", where=shown(path))
    if "scenario" not in given:
        raise UserError.of("log_without_scenario", where=shown(path))
    scenario = _scenario_of(log, path, given["scenario"])
    cluster, model = scenario.cluster, scenario.model
    _check_same(
        log,
        path,
        {"num_gpus": cluster.num_gpus, "num_layers": model.num_layers, "hidden": model.hidden},
    )
    pinned = {axis: values[0] for axis, values in scenario.axes.items() if len(values) == 1}
    stated = {name: log.settings[name] for name in _PLAN if name in log.settings}
    plan = judge(scenario, read_plan(scenario, {**pinned, **stated})).plan
    _check_same(log, path, {"dp": plan.dp})
    return Case(
        row_id=log.file,
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


def _check_same(log: LogMeasures, path: str, known: Mapping[str, int]) -> None:
    """Refuse a scenario that says other than the log does, with all that differs."""
    problems = ProblemList()
    for name, value in known.items():
        said = log.settings.get(name, value)
        if said != value:
            problems.add(
                "log_of_another_job", where=shown(path), value=said, name=name, known=value
            )
    problems.raise_if_any()


def _scenario_of(log: LogMeasures, path: str, file: str) -> Scenario:
    """The scenario of a log, with what the log states of it and the framework that wrote it."""
    data = read_scenario_file(file)
    stated = {name: log.settings[name] for name in _JOB if name in log.settings}
    data["job"] = {**(data.get("job") or {}), **stated}
    may_be = _MAY_BE.get(log.framework)
    if may_be is None:
        raise UserError.of(
            "log_of_unknown_framework", where=shown(path), value=log.framework, allowed=FRAMEWORKS
        )
    if not data.get("frameworks"):
        data["frameworks"] = [framework_of_variant(str(data.get("variant") or "")) or may_be[0]]
    scenario = read_scenario(data)
    fitting = [name for name in scenario.frameworks if name in may_be]
    if not fitting:
        raise UserError.of(
            "log_of_another_framework",
            where=shown(path),
            value=log.framework,
            allowed=may_be,
            known=", ".join(scenario.frameworks),
        )
    return replace(scenario, frameworks=tuple(fitting))


def _check_one_cluster(cases: Sequence[Case]) -> Book:
    """Refuse runs of several clusters; return what their profile says of its own runs."""
    devices = {case.scenario.cluster.device.name for case in cases}
    profiles = {profile_name(case.scenario) for case in cases}
    if len(devices) > 1 or len(profiles) > 1:
        clusters = sorted({case.scenario.cluster.name for case in cases})
        raise UserError.of("several_clusters", where="runs", value=", ".join(clusters))
    scenario = cases[0].scenario
    book, family = book_of(scenario), scenario.cluster.device.architecture
    if book.covers and family not in book.covers:
        raise UserError.of(
            "profile_of_another_chip", where="profile", value=family, allowed=book.covers
        )
    return book
