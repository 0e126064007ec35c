"""What is asked, as plain values: from the command line, Python or the web.

A request is a mapping with the keys of a scenario file (``model``, ``cluster``, ``job``,
``frameworks``, ``axes``, ``objective``, ``profile``, ``variant``) and, by verb, ``top`` (how many
plans), ``plan`` (the fields of one plan, as text or numbers) or ``plans`` (several of them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meshplan.app.result import plan_json
from meshplan.app.usual import usual_frameworks
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

__all__ = ["Request", "read_plan", "read_plans", "read_scenario", "read_searches", "read_top"]

DEFAULT_TOP = 5
FEWEST_COMPARED, MOST_COMPARED = 2, 4

Request = Mapping[str, Any]
T = TypeVar("T")

_TOP = (Field(name="top", kind=count(most=100)),)
_NOT_SCENARIO = ("plan", "plans")


def read_scenario(request: Request) -> Scenario:
    """Read the scenario of a request about one plan.

    Who names no framework gets the usual one, or the first other that can train this model and
    job where that one cannot (see :func:`meshplan.app.usual.usual_frameworks`).

    Raises:
        UserError: with all that is wrong.
    """
    fields = _scenario_fields(request)
    scenario = load_scenario(fields)
    if request.get("frameworks"):
        return scenario
    return _for_frameworks(fields, scenario, usual_frameworks(scenario)[0][:1])


def read_searches(request: Request) -> tuple[Scenario, ...]:
    """Read the scenario of a search, and where no framework is named what to search after it.

    Returns:
        The scenario to search, and one for frameworks that are asked only where the first have no
        plan that fits.

    Raises:
        UserError: with all that is wrong.
    """
    fields = _scenario_fields(request)
    scenario = load_scenario(fields)
    if request.get("frameworks"):
        return (scenario,)
    groups = usual_frameworks(scenario)
    return tuple(_for_frameworks(fields, scenario, group) for group in groups)


def _scenario_fields(request: Request) -> dict[str, Any]:
    return {k: v for k, v in request.items() if k not in _NOT_SCENARIO}


def _for_frameworks(
    fields: Mapping[str, Any], scenario: Scenario, frameworks: tuple[str, ...]
) -> Scenario:
    if frameworks == scenario.frameworks:
        return scenario
    # again, since what a job leaves open may depend on the framework
    return load_scenario({**fields, "frameworks": list(frameworks)})


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
