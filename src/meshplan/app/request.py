"""What is asked, as plain values: from the command line, Python or the web.

A request is a mapping with the keys of a scenario file (``model``, ``cluster``, ``job``,
``frameworks``, ``axes``, ``objective``, ``profile``, ``variant``) and, by verb, ``top`` (how many
plans), ``plan`` (the fields of one plan, as text or numbers) or ``plans`` (several of them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.axes import PLAN_FIELDS
from meshplan.inputs.load.fields import Field, count, read_fields
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.scenario import Scenario
from meshplan.space.names import from_text, parse_recompute
from meshplan.space.plan import (
    CpComm,
    Framework,
    Offload,
    Plan,
    Recompute,
    Schedule,
    Split,
)

__all__ = ["Request", "plan_of", "read_plan", "read_plans", "read_scenario", "read_top"]

DEFAULT_TOP = 5
FEWEST_COMPARED, MOST_COMPARED = 2, 4

Request = Mapping[str, Any]
T = TypeVar("T")

_TOP = (Field(name="top", kind=count(most=100)),)
_NOT_SCENARIO = ("plan", "plans")


def read_scenario(request: Request) -> Scenario:
    """Read the scenario of a request.

    Raises:
        UserError: with all that is wrong.
    """
    return load_scenario({k: v for k, v in request.items() if k not in _NOT_SCENARIO})


def read_top(request: Request) -> int:
    """How many plans are wanted."""
    problems = ProblemList()
    given = {k: v for k, v in request.items() if k == "top"}
    top: int = read_fields(given, _TOP, where="", problems=problems).get("top", DEFAULT_TOP)
    problems.raise_if_any()
    return top


def read_plan(scenario: Scenario, values: Mapping[str, Any], *, where: str = "plan") -> Plan:
    """Complete the fields that a person gave to a plan.

    What is not given takes what the framework does by itself: see :func:`plan_of`.

    Raises:
        UserError: for unknown keys and values that cannot be read. Rules are not checked here.
    """
    problems = ProblemList()
    read = read_fields(values, PLAN_FIELDS, where=where, problems=problems)
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
    return plan_of(scenario, framework=framework, given=read)


def read_plans(request: Request, read: Callable[[Mapping[str, Any], str], T]) -> list[T]:
    """Read two to four plans, and say all that is wrong with any of them.

    Args:
        request: gives ``plans``.
        read: reads one plan and is told where it stands.
    """
    given = request.get("plans") or ()
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


def plan_of(scenario: Scenario, *, framework: Framework, given: Mapping[str, Any]) -> Plan:
    """Fill in what the framework does when a field is not given.

    Degrees are 1. Data parallelism takes the GPUs that are left. Sequence parallelism goes with
    tensor parallelism. Experts take the tensor-parallel degree of the rest in Megatron-LM, whose
    ``--expert-tensor-parallel-size`` defaults to it, as long as there is no expert parallelism;
    with it, 1. ZeRO-1 in Megatron-LM and nanotron, ZeRO-3 elsewhere. Numbers that do not divide
    are rounded down, and the rules then say what is wrong.
    """
    tp, pp, cp, ep = (given.get(axis, 1) for axis in ("tp", "pp", "cp", "ep"))
    vpp, micro_batch = given.get("vpp", 1), given.get("micro_batch", 1)
    dp = given.get("dp", max(1, scenario.cluster.num_gpus // (tp * pp * cp)))
    replicate = given.get("dp_replicate", max(1, dp // given.get("dp_shard", dp)))
    zero_by_itself = 1 if framework in (Framework.MEGATRON, Framework.NANOTRON) else 3
    values: dict[str, Any] = {
        "tp": tp,
        "sp": tp > 1,
        "pp": pp,
        "vpp": vpp,
        "schedule": Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
        "cp": cp,
        "cp_comm": CpComm.P2P,
        "ep": ep,
        "etp": tp if scenario.model.is_moe and ep == 1 else 1,
        "dp": dp,
        "dp_shard": max(1, dp // replicate),
        "dp_replicate": replicate,
        "zero": zero_by_itself,
        "micro_batch": micro_batch,
        "num_micro_batches": max(1, scenario.job.global_batch // (dp * micro_batch)),
        "recompute": Recompute.NONE,
        **given,
    }
    return Plan(framework=framework, **values)
