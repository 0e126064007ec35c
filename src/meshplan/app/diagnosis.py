"""``diagnose``: why a run is slow, from its traces, logs and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from meshplan.app.compared import calibrated_json, compared_json
from meshplan.app.document import document
from meshplan.app.emission import from_result, read_result
from meshplan.app.measured import run_json
from meshplan.app.request import read_plan, read_scenario
from meshplan.app.result import jsonable, plan_json
from meshplan.app.timeline import timeline_json
from meshplan.check.build import assemble
from meshplan.check.read import read_files
from meshplan.diagnose.allocation import decode_allocation, parse_allocation
from meshplan.diagnose.findings import Context, Finding, diagnose
from meshplan.diagnose.findings.devices import sampled_utilization
from meshplan.diagnose.layout import Layout
from meshplan.diagnose.reading import Reading, read_run
from meshplan.diagnose.records import RunMeasures
from meshplan.emit.records import Order
from meshplan.emit.settings import differences
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.fields import TEXT, Field, list_of, read_fields
from meshplan.inputs.load.opening import is_nameless
from meshplan.inputs.load.scenario import read_scenario_file
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.vocabulary import FRAMEWORKS
from meshplan.record import record
from meshplan.space.plan import Framework, Plan
from meshplan.thumb.diagnose import diagnose as by_rule_of_thumb

__all__ = ["Known", "diagnose_run", "finding_json", "known_of"]

Json = dict[str, Any]
Request = Mapping[str, Any]
Progress = Callable[[Reading], None]

_OURS = (
    "paths", "plan", "plan_file", "config", "stage_times", "utilization", "allocation", "lang",
    "timeline", "calibrate",
)  # fmt: skip
_FIELDS = (
    Field(name="paths", kind=list_of(TEXT)),
    Field(name="config", kind=list_of(TEXT)),
    Field(name="plan_file", kind=TEXT),
    Field(name="stage_times", kind=TEXT),
    Field(name="utilization", kind=TEXT),
    Field(name="allocation", kind=TEXT),
)


@record
class Known:
    """What is known of a run besides its files.

    Attributes:
        scenario: model, cluster and job; None when no model was named.
        plan: the plan that ran; None when it was not given.
        context: the same for the findings.
    """

    scenario: Scenario | None
    plan: Plan | None
    context: Context


def diagnose_run(request: Request, *, progress: Progress | None = None) -> Json:
    """Measure a run, look for causes of lost time and say what to change.

    Args:
        request: ``paths`` of traces, logs and metrics; what ran, as ``config`` (launch files, as
            ``check`` reads them), ``plan_file`` (what ``plan --json`` wrote, or a scenario file
            whose axes pin the plan) or ``plan`` (fields of a plan) with a scenario; ``cluster``
            alone when no more is known; ``stage_times`` and ``utilization`` typed by hand;
            ``allocation``, the size of an allocation that failed; ``timeline`` to get what each
            rank did, ``calibrate`` to get a profile of the cluster.
        progress: called while files are read.

    Raises:
        UserError: for what cannot be read, or when nothing was given.
    """
    problems = ProblemList()
    given = read_fields(
        {k: request[k] for k in (f.name for f in _FIELDS) if request.get(k)},
        _FIELDS,
        where="",
        problems=problems,
    )
    times = _numbers(given, "stage_times", problems)
    utilization = _numbers(given, "utilization", problems)
    problems.raise_if_any()
    paths = given.get("paths", [])
    if not paths and not times and not utilization and "allocation" not in given:
        raise UserError.of("diagnose_nothing_given", where="paths")
    known = known_of(request, given)
    if times and known.plan is not None and len(times) != known.plan.pp:
        raise UserError.of(
            "diagnose_stage_count", where="stage_times", value=len(times), allowed=(known.plan.pp,)
        )
    layout = Layout(plan=known.plan) if known.plan is not None else None
    if "allocation" in given:
        return {**_head(request, known), "allocation": _allocation(given["allocation"], known)}
    run = (
        read_run(paths, layout=layout, stage_times_s=times, progress=progress)
        if paths
        else RunMeasures(ranks=(), stage_times_s=times)
    )
    found = diagnose(run, known.context)
    return {
        **_head(request, known),
        "paths": [str(path) for path in paths],
        "run": run_json(run),
        "findings": [finding_json(finding, known.context) for finding in found.findings],
        "checks": jsonable(found.checks),
        "rule_of_thumb": _rule_of_thumb(times, utilization or sampled_utilization(run), known),
        "comparison": compared_json(run, known.scenario, known.plan),
        **_asked(request, run, known, paths),
    }


def _asked(request: Request, run: RunMeasures, known: Known, paths: Sequence[str]) -> Json:
    """What is large or takes long, and is there when it is asked for."""
    found: Json = {}
    if request.get("timeline"):
        found["timeline"] = timeline_json(run)
    if request.get("calibrate"):
        found["calibration"] = calibrated_json(run, known.scenario, known.plan, paths=paths)
    return found


def finding_json(finding: Finding, context: Context | None = None) -> Json:
    """One finding with how grave it is, and its action in settings of the framework.

    Args:
        finding: what was found.
        context: what is known of the run.
    """
    values = {f.name: jsonable(getattr(finding, f.name)) for f in fields(Finding)}
    action = finding.action
    said = {"code": action.code, "numbers": jsonable(action.numbers)}
    changes = _changes(finding, context or Context())
    return {**values, "action": {**said, "changes": changes}, "severity": finding.severity}


def _changes(finding: Finding, context: Context) -> list[Json]:
    """What to change: settings by which two plans differ as they are emitted, else those named."""
    scenario, plan, better = context.scenario, context.plan, finding.action.plan
    if scenario is None or plan is None or better is None:
        return [jsonable(change) for change in finding.action.changes]
    now, then = (Order(scenario=_with_batch(scenario, p), plan=p) for p in (plan, better))
    found = [
        {"field": d.option, "option": d.option, "before": d.before, "after": d.after}
        for d in differences(now, then)
    ]
    return found or [jsonable(change) for change in finding.action.changes]


def _with_batch(scenario: Scenario, plan: Plan) -> Scenario:
    """The scenario with the batch that the plan's micro-batches make."""
    batch = plan.dp * plan.micro_batch * plan.num_micro_batches
    return replace(scenario, job=replace(scenario.job, global_batch=batch))


def _head(request: Request, known: Known) -> Json:
    said = {k: v for k, v in request.items() if k not in _OURS}
    head = document("diagnose", known.scenario, said if known.scenario is not None else None)
    cluster = known.context.cluster
    return {
        **head,
        "plan": None if known.plan is None else plan_json(known.plan),
        "cluster": None if cluster is None else cluster.name,
    }


def known_of(request: Request, given: Request) -> Known:
    """Read what is said of the run: its launch files, its plan, or its cluster alone.

    Args:
        request: model, cluster, job and the like, and ``plan``.
        given: ``config`` and ``plan_file``, read.

    Raises:
        UserError: for what cannot be read, is missing or contradicts itself.
    """
    said = {k: v for k, v in request.items() if k not in _OURS and v is not None}
    scenario, plan = _stated(said, given, request.get("plan") or {})
    if scenario is not None:
        framework = plan.framework if plan is not None else None
        context = Context(
            scenario=scenario, plan=plan, cluster=scenario.cluster, framework=framework
        )
        return Known(scenario=scenario, plan=plan, context=context)
    framework = _framework(said)
    cluster = said.get("cluster")
    context = Context(
        cluster=parse_cluster(str(cluster)) if cluster is not None else None, framework=framework
    )
    return Known(scenario=None, plan=None, context=context)


def _stated(
    said: Json, given: Request, fields_of_plan: Mapping[str, Any]
) -> tuple[Scenario | None, Plan | None]:
    if given.get("config"):
        made = assemble(read_files(given["config"]), said)
        return made.scenario, made.plan
    if given.get("plan_file"):
        return _from_file(given["plan_file"], said, fields_of_plan)
    if "model" in said:
        scenario = read_scenario(said)
        return scenario, read_plan(scenario, fields_of_plan) if fields_of_plan else None
    if fields_of_plan:
        raise UserError.of("diagnose_plan_without_model", where="plan")
    return None, None


def _from_file(
    path: str, said: Json, fields_of_plan: Mapping[str, Any]
) -> tuple[Scenario, Plan | None]:
    """The best plan of a result, or the plan that a scenario file pins."""
    may_be_result = path.lower().endswith(".json") or is_nameless(path)
    result = read_result(path) if may_be_result else None
    if result is not None:
        scenario, entry = from_result({"result": result, "rank": None})
        return scenario, entry.plan
    data = {**read_scenario_file(path), **said}
    scenario = read_scenario(data)
    pinned = {axis: values[0] for axis, values in scenario.axes.items() if len(values) == 1}
    chosen = {**pinned, **fields_of_plan}
    return scenario, read_plan(scenario, chosen) if chosen else None


def _framework(said: Json) -> Framework | None:
    names = said.get("frameworks") or ()
    first = str(names[0]).lower() if isinstance(names, list | tuple) and names else ""
    return Framework[first.upper()] if first in FRAMEWORKS else None


def _numbers(given: Request, name: str, problems: ProblemList) -> tuple[float, ...]:
    """Numbers typed by hand, joined by commas."""
    text = given.get(name)
    if not text:
        return ()
    found = []
    for part in str(text).split(","):
        word = part.strip()
        percent = word.endswith("%")
        try:
            value = float(word.removesuffix("%").removesuffix("s"))
        except ValueError:
            value = float("nan")
        if not 0 < value < float("inf"):
            problems.add("diagnose_bad_number", where=name, value=word[:40])
            return ()
        found.append(value / 100.0 if percent or (name == "utilization" and value > 1) else value)
    return tuple(found)


def _rule_of_thumb(
    times: Sequence[float], utilization: Sequence[float], known: Known
) -> Json | None:
    """What the guide's last mechanism says of a utilisation."""
    if not utilization:
        return None
    cluster, plan = known.context.cluster, known.plan
    found = by_rule_of_thumb(
        utilization=min(utilization),
        tp=plan.tp if plan is not None else None,
        gpus_per_node=cluster.gpus_per_node if cluster is not None else None,
        stage_times_s=times if times or (plan is not None and plan.pp == 1) else None,
    )
    return {
        "healthy": found.healthy,
        "utilization": found.utilization,
        "findings": [
            {"code": f.code, "action": f.action, "numbers": dict(f.numbers)} for f in found.findings
        ],
    }


def _allocation(text: str, known: Known) -> Json:
    """Which tensors have the size of an allocation."""
    size = parse_allocation(text)
    if known.scenario is None or known.plan is None:
        raise UserError.of("diagnose_plan_missing", where="allocation")
    found = decode_allocation(size, known.scenario, known.plan)
    return {
        "num_bytes": size.num_bytes,
        "resolution_bytes": size.resolution_bytes,
        "candidates": jsonable(found),
    }
