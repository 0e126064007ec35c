"""``check``: what a config that someone already has will do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshplan.app.document import document
from meshplan.app.request import Request
from meshplan.app.result import entries_json, jsonable, plan_json
from meshplan.check.build import JOB, Assembled, assemble, broken_rules, placed
from meshplan.check.changes import best_changes
from meshplan.check.findings import Finding, find
from meshplan.check.read import read_files
from meshplan.check.records import ForeignKey, Reading
from meshplan.cost.memory import Verdict
from meshplan.cost.offload import offloaded_in_part
from meshplan.emit.nearest import nearest_legal
from meshplan.errors import Problem, UserError
from meshplan.search.answer import answer, entry_of
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.search.remedy import remedies_for_plan
from meshplan.space.plan import Offload, PlanGrid
from meshplan.space.rules import Violation

__all__ = ["check"]

Json = dict[str, Any]

_OURS = ("files", "lang", "best")


def check(request: Request) -> Json:
    """Judge config files.

    Args:
        request: ``files`` (paths); ``model``, ``cluster``, ``job`` and the like where the files
            do not say; ``best`` false leaves out the search for the best plan of all.

    Raises:
        UserError: for what cannot be read, is missing or contradicts itself. A plan that breaks
            a rule is a result.
    """
    files = request.get("files") or ()
    if isinstance(files, str) or not isinstance(files, Sequence) or not files:
        raise UserError.of("check_missing", where="files", value="FILE")
    reading = read_files([str(path) for path in files])
    given = {k: v for k, v in request.items() if k not in _OURS}
    reading = placed(reading, given)
    made = _assembled(reading, given)
    head = {
        **document("check", made.scenario, _stated(reading, given)),
        "files": [str(path) for path in files],
        **_read(made, reading),
    }
    head["assumptions"] += _unsaid(made, reading)
    broken = broken_rules(made)
    if broken or any(key.refused for key in reading.foreign):
        return {**head, **_refused(made, reading, broken)}
    return {**head, **_judged(made, reading, want_best=request.get("best") is not False)}


def _assembled(reading: Reading, given: Json) -> Assembled:
    """What can be judged.

    Raises:
        UserError: for what is missing, and what was written in vain, which may be that.
    """
    try:
        return assemble(reading, given)
    except UserError as error:
        raise UserError(*map(_in_vain, reading.foreign), *error.problems) from None


def _in_vain(key: ForeignKey) -> Problem:
    code = "check_foreign_key" if key.refused else "check_ignored_key"
    code = code if key.framework else "check_unset_variable"
    return Problem(
        code=code if key.nearest else f"{code}_far",
        where=key.where,
        value=key.key,
        numbers={"framework": key.framework, "nearest": key.nearest},
    )


def _read(made: Assembled, reading: Reading) -> Json:
    """What the files say, and what only a run would show."""
    framework = made.plan.framework.name.lower()
    return {
        "framework": framework,
        "config": reading.config or framework,
        "settings": _settings_json(reading),
        "unknown": [
            {"name": str(u.value), "where": u.where, "option": u.spelled} for u in reading.unknown
        ],
        "assumed": list(made.assumed),
    }


def _refused(made: Assembled, reading: Reading, broken: Sequence[Violation]) -> Json:
    """The rules that a plan breaks and the keys that no framework takes, each with its line.

    The nearest legal plan is the plan itself where only keys are wrong.
    """
    scenario, plan = made.scenario, made.plan
    near = nearest_legal(scenario, plan) if broken else evaluate(scenario, PlanGrid.of([plan]))
    return {
        "legal": False,
        "plan": plan_json(made.plan),
        "problems": [
            *map(_refused_key, (key for key in reading.foreign if key.refused)),
            *(
                {
                    "code": f"rule_{v.code}",
                    "where": _place(reading, v.field, *v.numbers),
                    "field": v.field,
                    "value": jsonable(v.value),
                    "allowed": jsonable(v.legal),
                    "numbers": jsonable(dict(v.numbers)),
                    "source": v.source,
                    "version": v.version,
                }
                for v in broken
            ),
        ],
        "nearest": None if near is None else entries_json([entry_of(scenario, near)])[0],
        "findings": jsonable([*_foreign(reading)]),
        "plans": [],
    }


def _refused_key(key: ForeignKey) -> Json:
    problem = _in_vain(key)
    return {
        "code": problem.code,
        "where": problem.where,
        "field": "",
        "value": problem.value,
        "allowed": [],
        "numbers": dict(problem.numbers),
        "source": key.source,
        "version": key.framework,
    }


def _stated(reading: Reading, given: Json) -> Json:
    """What the files and the reader said, so that nothing of it counts as assumed."""
    said = {n: reading.settings[n].value for n in JOB if n in reading.settings}
    job = {**said, **(given.get("job") or {})}
    return {**given, "frameworks": [reading.framework.name.lower()], "job": job}


def _unsaid(made: Assembled, reading: Reading) -> list[Json]:
    """What the answer depends on and neither the files nor the reader said."""
    unsaid = [{"code": "micro_batch", "value": "1"}] if "micro_batch" in made.assumed else []
    if reading.config:
        unsaid.append({"code": "judged_as", "value": reading.framework.name.lower()})
    if reading.defaults:
        unsaid.append({"code": "config_defaults", "value": ", ".join(reading.defaults)})
    unsaid += [
        {"code": "nearest_value", "value": f"{s.spelled}={s.value} ({s.where})"}
        for s in reading.unmodelled
    ]
    return unsaid + [
        {"code": "file_unread", "value": f"{n.value} ({n.where})"} for n in reading.named
    ]


def _judged(made: Assembled, reading: Reading, *, want_best: bool) -> Json:
    scenario, plan = made.scenario, made.plan
    result = evaluate(scenario, PlanGrid.of([plan]))
    entry = entry_of(scenario, result)
    best = answer(scenario, top=1).entries if want_best else ()
    oom = result.memory.verdict[0] == Verdict.OOM
    return {
        "legal": True,
        "plan": plan_json(plan),
        "problems": [],
        "nearest": None,
        "plans": entries_json([entry]),
        "findings": [
            jsonable(found)
            for found in (
                *find(scenario, result),
                *_rounds(made),
                *_idle_modules(made),
                *_offloaded_part(made, reading, result),
                *_uncounted(reading),
                *_foreign(reading),
            )
        ],
        "changes": [
            {
                "knob": change.knob,
                "before": jsonable(change.before),
                "after": jsonable(change.after),
                "gain_fraction": change.gain_fraction,
                "step_time_s": float(change.result.time.step_time_s[0]),
                "peak_bytes": float(change.result.memory.peak_bytes[0]),
                "plan": plan_json(change.result.grid.plan(0)),
            }
            for change in best_changes(scenario, result)
        ],
        "remedies": jsonable(remedies_for_plan(scenario, plan) if oom else ()),
        "best": entries_json(best[:1])[0] if best else None,
    }


def _rounds(made: Assembled) -> tuple[Finding, ...]:
    """Rounds of interleaving of another length than the one that is predicted."""
    if made.micro_batch_group is None:
        return ()
    numbers = {"group": made.micro_batch_group, "pp": made.plan.pp}
    return (Finding(code="longer_rounds", numbers=numbers),)


def _idle_modules(made: Assembled) -> Iterator[Finding]:
    """Modules to recompute that the model does not have."""
    if made.idle_modules:
        modules = ", ".join(made.idle_modules)
        yield Finding(code="modules_without_effect", numbers={"modules": modules})


def _offloaded_part(made: Assembled, reading: Reading, result: Evaluation) -> Iterator[Finding]:
    """A part of the optimizer on the host, where plans have all of it there or nothing."""
    share = reading.get("offload_fraction")
    if not isinstance(share, float):
        return
    scenario, plan = made.scenario, made.plan
    if not share:
        yield Finding(code="offload_of_nothing")
        return
    kept = replace(plan, offload=plan.offload & ~Offload.OPTIMIZER)
    whole = evaluate(scenario, PlanGrid.of([kept]))
    peak, step = (
        offloaded_in_part(float(on_device[0]), float(on_host[0]), share=share)
        for on_device, on_host in (
            (whole.memory.peak_bytes, result.memory.peak_bytes),
            (whole.time.step_time_s, result.time.step_time_s),
        )
    )
    usable = float(result.memory.usable_bytes)
    yield Finding(
        code="offloaded_in_part" if peak <= usable else "offloaded_in_part_oom",
        numbers={
            "share_fraction": share,
            "peak_bytes": peak,
            "usable_bytes": usable,
            "step_time_s": step,
        },
    )


def _uncounted(reading: Reading) -> Iterator[Finding]:
    """Options that save memory which the prediction does not count."""
    if reading.uncounted:
        yield Finding(code="saves_uncounted", numbers={"options": ", ".join(reading.uncounted)})


def _foreign(reading: Reading) -> Iterator[Finding]:
    """Keys that the framework never looks at."""
    for key in reading.foreign:
        if key.refused:
            continue
        names = ("key", "where", "nearest", "framework")
        numbers = {name: getattr(key, name) for name in names}
        code = "foreign_key" if key.framework else "unset_variable"
        yield Finding(code=code if key.nearest else f"{code}_far", numbers=numbers)


def _place(reading: Reading, field: str, *others: str) -> str:
    """The line that a person would change: of the field, or of another that the rule is about."""
    for name in (field, *others):
        setting = reading.settings.get(name)
        if setting is not None and setting.spelled != "-":
            return setting.where
    return field


def _settings_json(reading: Reading) -> list[Json]:
    return [
        {"name": name, "value": jsonable(s.value), "where": s.where, "option": s.spelled}
        for name, s in sorted({**reading.settings, **reading.model}.items())
        if s.spelled != "-"
    ]
