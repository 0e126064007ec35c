"""What is asked, as plain values: from the command line, Python or the web.

A request is a mapping with the keys of a scenario file (``model``, ``cluster``, ``job``,
``frameworks``, ``axes``, ``objective``, ``profile``, ``variant``) and, by verb, ``top`` (how many
plans), ``plan`` (the fields of one plan, as text or numbers) or ``plans`` (several of them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meshplan.app.result import plan_json
from meshplan.emit.job import ADAPTERS
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.axes import PLAN_FIELDS
from meshplan.inputs.load.fields import Field, count, read_fields
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.names import from_text, parse_recompute
from meshplan.space.plan import (
    CpComm,
    Framework,
    Offload,
    Plan,
    Schedule,
    Split,
)
from meshplan.space.rules import check_plan

__all__ = ["Request", "read_plan", "read_plans", "read_scenario", "read_top"]

DEFAULT_TOP = 5
FEWEST_COMPARED, MOST_COMPARED = 2, 4

Request = Mapping[str, Any]
T = TypeVar("T")

_TOP = (Field(name="top", kind=count(most=100)),)
_INSTEAD = ("accelerate", "torchtitan", "deepspeed", "nanotron")
# PEFT's adapters on a published checkpoint run under these two as they are
_FOR_ADAPTERS = ("accelerate", "deepspeed")
_NOT_SCENARIO = ("plan", "plans")


def read_scenario(request: Request) -> Scenario:
    """Read the scenario of a request.

    Who names no framework gets the usual one for the task, or the first other that can train
    this model and job where that one cannot (4-bit base weights, say). Adapters are for those
    who have a checkpoint and want to start: a framework that :func:`meshplan.app.emission.emit`
    can write their job for comes first.

    Raises:
        UserError: with all that is wrong.
    """
    fields = {k: v for k, v in request.items() if k not in _NOT_SCENARIO}
    scenario = load_scenario(fields)
    if request.get("frameworks"):
        return scenario
    adapters = scenario.job.task in ADAPTERS
    first = _FOR_ADAPTERS if adapters else ()
    names = dict.fromkeys((*first, *scenario.frameworks, *_INSTEAD))
    able = [name for name in names if _can_train(scenario, name)]
    if adapters:
        able.sort(key=lambda name: not _can_launch(scenario, name))
    chosen = (*able, *scenario.frameworks)[:1]
    if chosen == scenario.frameworks:
        return scenario
    # again, since what a job leaves open may depend on the framework
    return load_scenario({**fields, "frameworks": list(chosen)})


def _can_train(scenario: Scenario, framework: str) -> bool:
    """Whether no rule says that a framework lacks what the model or the job needs."""
    plan = complete_plan(scenario, framework=from_text(Framework, framework))
    return all(broken.field != "framework" for broken in check_plan(scenario, plan))


def _can_launch(scenario: Scenario, framework: str) -> bool:
    """Whether a config format of a framework has words for the model and the job."""
    # the writers are of no use to a search without adapters, whose start they would delay
    from meshplan.emit.records import Order
    from meshplan.emit.targets import TARGETS

    code = from_text(Framework, framework)
    order = Order(scenario=scenario, plan=complete_plan(scenario, framework=code))
    return any(
        not any(obstacle.model for obstacle in target.obstacles(order))
        for target in TARGETS.values()
        if target.framework is code
    )


def read_top(request: Request) -> int:
    """How many plans are wanted."""
    problems = ProblemList()
    given = {k: v for k, v in request.items() if k == "top"}
    top: int = read_fields(given, _TOP, where="", problems=problems).get("top", DEFAULT_TOP)
    problems.raise_if_any()
    return top


def read_plan(scenario: Scenario, values: Mapping[str, Any], *, where: str = "plan") -> Plan:
    """Complete the fields that a person gave to a plan.

    What is not given takes what the framework does by itself: see ``complete_plan``.

    Raises:
        UserError: for unknown keys and values that cannot be read. Rules are not checked here.
    """
    problems = ProblemList()
    read = read_fields(values, PLAN_FIELDS, where=where, problems=problems)
    if "framework" not in read and len(scenario.frameworks) > 1:
        # which of them runs the plan is not ours to pick
        problems.add(
            "one_framework",
            where=f"{where}.framework",
            value=", ".join(scenario.frameworks),
            allowed=scenario.frameworks,
        )
    problems.raise_if_any()
    framework = from_text(Framework, read.pop("framework", scenario.frameworks[0]))
    for name, kind in (
        ("schedule", Schedule),
        ("cp_comm", CpComm),
        ("offload", Offload),
        ("split", Split),
    ):
        if name in read:
            read[name] = from_text(kind, read[name])
    if "recompute" in read:
        mode, layers = parse_recompute(read["recompute"], framework=framework)
        read["recompute"] = mode
        read.setdefault("recompute_layers", layers)
    plan = complete_plan(scenario, framework=framework, **read)
    for axis, allowed in scenario.axes.items():
        # what the scenario leaves open is not ours to pick, unless the framework's own value is in
        own = str(plan_json(plan)[axis]).lower()
        if axis not in read and own not in {str(value).lower() for value in allowed}:
            problems.add("axis_left_open", where=f"{where}.{axis}", allowed=allowed)
    problems.raise_if_any()
    return plan


def read_plans(request: Request, read: Callable[[Mapping[str, Any], str], T]) -> list[T]:
    """Read two to four plans, and say all that is wrong with any of them.

    Args:
        request: gives ``plans``.
        read: reads one plan and is told where it stands.
    """
    given = request.get("plans")
    given = given if isinstance(given, list | tuple) else ()
    if not FEWEST_COMPARED <= len(given) <= MOST_COMPARED:
        raise UserError.of("bad_plan_count", where="plans", value=len(given))
    problems = ProblemList()
    plans: list[T] = []
    for number, values in enumerate(given, start=1):
        try:
            plans.append(read(values, f"plans.{number}"))
        except UserError as error:
            problems.extend(error)
    problems.raise_if_any()
    return plans
