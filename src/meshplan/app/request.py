"""What is asked, as plain values: from the command line, Python or the web.

A request is a mapping with the keys of a scenario file (``model``, ``cluster``, ``job``,
``frameworks``, ``axes``, ``objective``, ``profile``) and, by verb, ``top`` (how many plans),
``plan`` (the degrees of one plan, as text or numbers) or ``plans`` (several of them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum, IntFlag
from typing import Any, TypeVar

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.vocabulary import AXES, unknown
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

__all__ = [
    "DEFAULT_TOP",
    "Request",
    "plan_of",
    "read_plan",
    "read_plans",
    "read_scenario",
    "read_top",
]

DEFAULT_TOP = 5
MOST_PLANS = 100
FEWEST_COMPARED, MOST_COMPARED = 2, 4

T = TypeVar("T")

Request = Mapping[str, Any]

_SCENARIO_KEYS = (
    "model",
    "cluster",
    "job",
    "frameworks",
    "axes",
    "objective",
    "profile",
    "variant",
)
_EXTRA_KEYS = ("top", "plan", "plans")
_COUNTS = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch")
_ENUMS: dict[str, type[IntEnum] | type[IntFlag]] = {
    "schedule": Schedule,
    "cp_comm": CpComm,
    "offload": Offload,
    "split": Split,
}
_PLAN_KEYS = (*AXES, "framework", "recompute_layers", "stage_layers")


def read_scenario(request: Request) -> Scenario:
    """Read the scenario of a request.

    Raises:
        UserError: with all that is wrong.
    """
    known = (*_SCENARIO_KEYS, *_EXTRA_KEYS)
    problems = ProblemList()
    for key in request:
        if key not in known:
            problems.extend(unknown("unknown_key", where=str(key), value=str(key), names=known))
    problems.raise_if_any()
    return load_scenario({k: v for k, v in request.items() if k in _SCENARIO_KEYS})


def read_top(request: Request) -> int:
    """How many plans are wanted."""
    top = request.get("top", DEFAULT_TOP)
    if not isinstance(top, int) or isinstance(top, bool) or not 1 <= top <= MOST_PLANS:
        raise UserError.of("bad_top", where="top", value=top, allowed=(f"1-{MOST_PLANS}",))
    return top


def read_plan(scenario: Scenario, values: Mapping[str, Any], *, where: str = "plan") -> Plan:
    """Complete the degrees that a person gave to a plan.

    What is not given takes what the framework does by itself: see :func:`plan_of`.

    Raises:
        UserError: for unknown keys and values that cannot be read. Rules are not checked here.
    """
    problems = ProblemList()
    read: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        if key not in _PLAN_KEYS:
            place = f"{where}.{key}"
            problems.extend(unknown("unknown_key", where=place, value=str(key), names=_PLAN_KEYS))
            continue
        try:
            read[key] = _value(key, value, where=f"{where}.{key}")
        except UserError as error:
            problems.extend(error)
    problems.raise_if_any()
    framework = read.pop("framework", Framework[scenario.frameworks[0].upper()])
    if isinstance(text := read.get("recompute"), str):
        mode, layers = parse_recompute(text, framework=framework, where=f"{where}.recompute")
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
        counts = range(FEWEST_COMPARED, MOST_COMPARED + 1)
        raise UserError.of("bad_plan_count", where="plans", value=len(given), allowed=counts)
    problems = ProblemList()
    plans: list[T] = []
    for number, values in enumerate(given, start=1):
        try:
            plans.append(read(values, f"plan {number}"))
        except UserError as error:
            problems.extend(error)
    problems.raise_if_any()
    return plans


def _value(key: str, value: Any, *, where: str) -> Any:
    if key == "framework":
        return (
            value if isinstance(value, Framework) else from_text(Framework, str(value), where=where)
        )
    if key in _ENUMS:
        kind: Any = _ENUMS[key]
        return value if isinstance(value, kind) else from_text(kind, str(value), where=where)
    if key == "recompute":
        return value if isinstance(value, Recompute) else str(value)
    if key == "stage_layers":
        return tuple(_count(item, where=where, least=0) for item in value)
    if key == "sp":
        return _flag(value, where=where)
    return _count(value, where=where, least=0 if key in ("zero", "recompute_layers") else 1)


def _flag(value: Any, *, where: str) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "on", "yes", "1"):
        return True
    if text in ("false", "off", "no", "0"):
        return False
    raise UserError.of("bad_flag", where=where, value=value, allowed=("true", "false"))


def _count(value: Any, *, where: str, least: int) -> int:
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and value.strip().isdecimal():
        number = int(value)
    if number is None or number < least:
        raise UserError.of("bad_degree", where=where, value=value, least=least)
    return number


def plan_of(scenario: Scenario, *, framework: Framework, given: Mapping[str, Any]) -> Plan:
    """Fill in what the framework does when a degree is not given.

    Degrees are 1. Data parallelism takes the GPUs that are left. Sequence parallelism goes with
    tensor parallelism. Experts take the tensor-parallel degree of the rest in Megatron-LM, whose
    ``--expert-tensor-parallel-size`` defaults to it, as long as there is no expert parallelism;
    with it, 1. ZeRO-1 in Megatron-LM and nanotron, ZeRO-3 elsewhere. Numbers that do not divide
    are rounded down, and the rules then say what is wrong.
    """
    plain = {name: given.get(name, 1) for name in _COUNTS}
    tp, pp, cp = plain["tp"], plain["pp"], plain["cp"]
    etp = given.get("etp", tp if scenario.model.is_moe and plain["ep"] == 1 else 1)
    dp = given.get("dp", max(1, scenario.cluster.num_gpus // (tp * pp * cp)))
    replicate = plain["dp_replicate"]
    if "dp_shard" in given and "dp_replicate" not in given:
        replicate = max(1, dp // given["dp_shard"])
    vpp = plain["vpp"]
    return Plan(
        framework=framework,
        tp=tp,
        sp=given.get("sp", tp > 1),
        pp=pp,
        vpp=vpp,
        schedule=given.get("schedule", Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B),
        cp=cp,
        cp_comm=given.get("cp_comm", CpComm.P2P),
        ep=plain["ep"],
        etp=etp,
        dp=dp,
        dp_shard=given.get("dp_shard", max(1, dp // replicate)),
        dp_replicate=replicate,
        zero=given.get("zero", _default_zero(framework)),
        micro_batch=plain["micro_batch"],
        num_micro_batches=given.get(
            "num_micro_batches", max(1, scenario.job.global_batch // (dp * plain["micro_batch"]))
        ),
        recompute=given.get("recompute", Recompute.NONE),
        recompute_layers=given.get("recompute_layers", 0),
        offload=given.get("offload", Offload.NONE),
        split=given.get("split", Split.EVEN),
        stage_layers=given.get("stage_layers", ()),
    )


def _default_zero(framework: Framework) -> int:
    return 1 if framework in (Framework.MEGATRON, Framework.NANOTRON) else 3
