"""``emit``: a plan as files that a framework and a launcher read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshplan import __version__
from meshplan.app.document import document
from meshplan.app.encode import SCHEMA_VERSION
from meshplan.app.judge import judge, no_legal_plan
from meshplan.app.names import batch_text, plan_text
from meshplan.app.request import Request, read_plan, read_scenario
from meshplan.app.result import entries_json, plan_json
from meshplan.cost.memory import Verdict
from meshplan.emit.launch import LAUNCHERS, launch
from meshplan.emit.nearest import nearest_plan
from meshplan.emit.records import Obstacle, Order, Target
from meshplan.emit.targets import TARGETS, obstacles_of
from meshplan.errors import Problem, UserError
from meshplan.inputs.job import ADAPTERS
from meshplan.inputs.load.opening import read_bytes
from meshplan.inputs.load.profile import framework_profile
from meshplan.inputs.load.scenario import found_beside
from meshplan.inputs.load.settings import apply_settings
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.inputs.vocabulary import canonical, unknown
from meshplan.search.answer import Entry, answer, entry_of
from meshplan.search.sizes import with_gpus
from meshplan.text import t

__all__ = ["emit", "from_result", "read_result"]

Json = dict[str, Any]

_MOST_BYTES = 16 * 2**20
# Plans that are looked through for the first one that a target can express.
_TOP = 40
_OURS = ("to", "launcher", "lang", "result", "rank", "plan")


def read_result(path: str | Path) -> Json | None:
    """Read what ``plan --json`` printed; None when a file holds another JSON object.

    Raises:
        UserError: when it cannot be read.
    """
    place = str(path)
    try:
        raw = read_bytes(path, most_bytes=_MOST_BYTES)
        if len(raw) > _MOST_BYTES:
            raise UserError.of(
                "file_too_large",
                where=place,
                value=place,
                size_bytes=max(Path(path).stat().st_size, len(raw)),
                most_bytes=_MOST_BYTES,
            )
        data = json.loads(raw.decode("utf-8-sig"))
    except FileNotFoundError:
        raise UserError.of("file_missing", where=place, value=place) from None
    except OSError:
        raise UserError.of("file_unreadable", where=place, value=place) from None
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not {"schema_version", "scenario"} <= data.keys():
        return None
    if isinstance(data["scenario"], dict):
        data["scenario"] = found_beside(data["scenario"], path)
    return data


def emit(request: Request) -> Json:
    """Write a plan for a target.

    Args:
        request: a scenario, or ``result`` (what ``plan`` returned) with the ``rank`` of the plan
            that is meant; ``to``, ``launcher`` and ``lang``; ``plan`` for the fields of one plan.

    Raises:
        UserError: one problem for each thing that the target cannot express, with the nearest
            plan that it can.
    """
    target = TARGETS[_choice(request.get("to"), "to", TARGETS)]
    launcher = _choice(request.get("launcher") or "torchrun", "launcher", LAUNCHERS)
    lang = str(request.get("lang") or "en")
    scenario, entry = _choose(request, target)
    counted = _counted(Order(scenario=scenario, plan=entry.plan), target)
    order = Order(
        scenario=scenario,
        plan=entry.plan,
        notes=(
            *_head(entry, target, lang),
            *(t(f"assumed.{code}", lang, value=value) for code, value in counted),
        ),
        trial_notes=(t("emit.trial", lang), t("emit.defaults", lang)),
        node_notes=(t("emit.nodes", lang),),
    )
    obstacles = obstacles_of(order, target)
    if obstacles:
        raise _refusal(order, target, obstacles)
    head = document("emit", scenario, {k: v for k, v in request.items() if k not in _OURS})
    head["assumptions"] += [{"code": code, "value": value} for code, value in counted]
    return {
        **head,
        "target": target.name,
        "target_version": target.version,
        "verified": target.verified,
        "launcher": launcher,
        "plans": entries_json([entry]),
        "files": [
            {"name": file.name, "text": file.text, "executable": file.executable}
            for file in launch(order, target.program(order), launcher=launcher)
        ],
    }


def _counted(order: Order, target: Target) -> tuple[tuple[str, str], ...]:
    """What the prediction counts on and the files do not say, as codes with what they mention."""
    stack, _ = split_variant(order.scenario.variant)
    own = framework_profile(target.framework.name.lower(), order.scenario.variant).name
    found = [(f"unwritten_{name}", target.name) for name in target.unwritten(order)]
    if stack and stack == own != target.framework.name.lower() and stack not in target.stacks:
        found.append(("unwritten_stack", stack))
    return tuple(found)


def _choice(value: object, where: str, names: Mapping[str, object]) -> str:
    found = canonical(dict.fromkeys(names, ()), str(value or ""))
    if found is None:
        raise unknown("unknown_name", where=where, value=value or "", names=names)
    return found


def _choose(request: Request, target: Target) -> tuple[Scenario, Entry]:
    """The plan that is meant: of a result, of given fields, or the best that can be written."""
    if request.get("result") is not None:
        return from_result(request)
    given = {k: v for k, v in request.items() if k not in _OURS}
    if not given.get("frameworks"):
        given["frameworks"] = [target.framework.name.lower()]
    scenario = read_scenario(given)
    if request.get("plan"):
        return scenario, judge(scenario, read_plan(scenario, request["plan"]))
    found = answer(scenario, top=_TOP)
    if not found.counts.num_legal:
        raise no_legal_plan(found)
    if not found.entries:
        near = found.closest
        assert near is not None, "there is a legal plan"
        if scenario.axes:
            return _as_pinned(scenario, near)
        raise UserError.of(
            "emit_nothing_fits",
            where="scenario",
            value=plan_text(plan_json(near.plan)),
            peak_bytes=float(near.result.memory.peak_bytes[0]),
            usable_bytes=float(near.result.memory.usable_bytes),
        )
    for entry in found.entries:
        if not obstacles_of(Order(scenario=entry.scenario, plan=entry.plan), target):
            return entry.scenario, entry
    return found.entries[0].scenario, found.entries[0]


def _as_pinned(scenario: Scenario, near: Entry) -> tuple[Scenario, Entry]:
    """The plan that ``estimate`` judges for the pins, where none within them fits.

    Where that one breaks a rule, or several values are left open, the nearest to fit.
    """
    pins = {axis: values[0] for axis, values in scenario.axes.items() if len(values) == 1}
    try:
        return scenario, judge(scenario, read_plan(scenario, pins))
    except UserError:
        return near.scenario, near


def from_result(request: Request) -> tuple[Scenario, Entry]:
    """The scenario and the plan of what ``plan --json`` wrote, by the ``rank`` that is meant."""
    result = request["result"]
    version = str(result.get("schema_version", ""))
    if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise UserError.of("emit_other_schema", where="result", value=version, ours=SCHEMA_VERSION)
    plans = result.get("plans")
    listed = [p for p in plans if isinstance(p, dict)] if isinstance(plans, list) else []
    rank = str(request.get("rank") or 1)
    chosen = [p for p in listed if str(p.get("rank")) == rank]
    if not chosen or not isinstance(chosen[0].get("plan"), dict):
        ranks = [p.get("rank") for p in listed]
        raise UserError.of("emit_no_such_rank", where="rank", value=rank, allowed=ranks)
    # settings on the command line do not reach into a result: its plan is for what it says
    scenario = read_scenario(apply_settings(result["scenario"], ()))
    num_gpus = chosen[0].get("num_gpus")
    if isinstance(num_gpus, int) and 0 < num_gpus != scenario.cluster.num_gpus:
        scenario = with_gpus(scenario, num_gpus)
    return scenario, judge(scenario, read_plan(scenario, chosen[0]["plan"]))


def _head(entry: Entry, target: Target, lang: str) -> tuple[str, ...]:
    """The lines on top of each file: which plan this is, what it should do, what to know."""
    names = {"target": target.name, "target_version": target.version}
    lines = [
        t("emit.head.title", lang, version=__version__, **names),
        *_job_lines(entry, lang),
        *_plan_lines(entry, lang),
        t(f"emit.measure.{target.name}", lang),
    ]
    verdict = entry.result.memory.verdict[0]
    if verdict != Verdict.FITS:
        lines.append(t("emit.head.oom" if verdict == Verdict.OOM else "emit.head.tight", lang))
    if not target.verified:
        lines.append(t("emit.head.unverified", lang, target_version=target.version))
    return tuple(lines)


def _job_lines(entry: Entry, lang: str) -> Iterator[str]:
    scenario, job = entry.scenario, entry.scenario.job
    yield t(
        "emit.head.job",
        lang,
        model=scenario.model.name.replace("\\", "/").rsplit("/", 1)[-1],
        num_gpus=scenario.cluster.num_gpus,
        device=scenario.cluster.device.name,
        seq_len=job.seq_len,
        global_batch=job.global_batch,
    )
    if job.task in ADAPTERS:
        numbers = {"task": job.task, "rank": job.lora_rank, "targets": job.lora_targets}
        yield t("emit.head.adapters", lang, **numbers)


def _plan_lines(entry: Entry, lang: str) -> Iterator[str]:
    plan, memory, time = plan_json(entry.plan), entry.result.memory, entry.result.time
    yield t(
        "emit.head.plan",
        lang,
        plan=plan_text(plan),
        batch=batch_text(plan),
        recompute=plan["recompute"],
        schedule=plan["schedule"] if plan["pp"] > 1 else "-",
    )
    yield t(
        "emit.head.predicted",
        lang,
        peak_bytes=float(memory.peak_bytes[0]),
        usable_bytes=float(memory.usable_bytes),
        step_time_s=entry.step_time_s,
        low_s=float(time.low_s[0]),
        high_s=float(time.high_s[0]),
        mfu=float(time.mfu[0]),
    )


def _refusal(order: Order, target: Target, obstacles: tuple[Obstacle, ...]) -> UserError:
    """One problem for each obstacle, then the way out."""
    problems = [
        Problem(
            code=f"emit_{obstacle.code}",
            where=target.name,
            value=plan_text(plan_json(order.plan)),
            numbers={"target": target.name, **obstacle.numbers},
        )
        for obstacle in obstacles
    ]
    hopeless = any(obstacle.model for obstacle in obstacles)
    near = None if hopeless else nearest_plan(order, target)
    if near is None:
        others = ", ".join(n for n in _other_targets(order) if n != target.name) or "-"
        numbers: dict[str, object] = {"model": order.scenario.model.name, "others": others}
        problems.append(Problem(code="emit_no_plan", where=target.name, numbers=numbers))
    else:
        entry = entry_of(order.scenario, near)
        plan = plan_json(entry.plan)
        numbers = {
            "nearest": plan_text(plan),
            "batch": batch_text(plan),
            "recompute": plan["recompute"],
            "options": _options(plan, moe=order.scenario.model.is_moe),
            "step_time_s": entry.step_time_s,
            "peak_bytes": float(near.memory.peak_bytes[0]),
            "usable_bytes": float(near.memory.usable_bytes),
        }
        problems.append(Problem(code="emit_nearest", where=target.name, numbers=numbers))
    return UserError(*problems)


def _options(plan: Json, *, moe: bool) -> str:
    """A plan as options of ``emit``, which searches what is not said."""
    names = ["tp", "pp", "cp", "micro_batch", "zero", "recompute"]
    axes = ["offload"]
    if plan["pp"] > 1:
        names += ["vpp", "schedule"]
        axes.append("split")
    if moe:
        names += ["ep", "etp"]
    if plan["tp"] > 1:
        axes.append("sp")
    if plan["cp"] > 1:
        axes.append("cp_comm")
    if plan["dp"] > 1:
        axes.append("dp_replicate")
    if plan["offload_layers"]:
        axes.append("offload_layers")
    options = [f"--{name.replace('_', '-')} {plan[name]}" for name in names]
    options += [f"--set axes.{name}={str(plan[name]).lower()}" for name in axes]
    return " ".join([*options, f"--framework {plan['framework']}"])


def _other_targets(order: Order) -> tuple[str, ...]:
    """Targets that can express some plan for the model and the job."""
    found = []
    for name, target in TARGETS.items():
        plan = replace(order.plan, framework=target.framework)
        obstacles = obstacles_of(replace(order, plan=plan), target)
        if not any(obstacle.model for obstacle in obstacles):
            found.append(name)
    return tuple(found)
