"""Plans evaluated or searched for, and the searches that are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshplan.cost.memory import Verdict
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.scenario import Scenario
from meshplan.search.answer import answer
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.space.complete import complete_plan
from meshplan.space.names import from_text
from meshplan.space.plan import (
    CpComm,
    Framework,
    Plan,
    PlanGrid,
    Recompute,
    Schedule,
    Split,
)

__all__ = [
    "FIGURES",
    "STORE",
    "asked",
    "figure",
    "found_plan",
    "given_plan",
    "plan_text",
    "search",
    "stored",
]

STORE = Path(__file__).with_name("computed.json")
FIGURES = ("step_time_s", "mfu", "hfu", "tokens")
"""What chapters quote of a plan that was searched for."""

_ENUMS: dict[str, Any] = {
    "schedule": Schedule,
    "recompute": Recompute,
    "cp_comm": CpComm,
    "split": Split,
}
_JOB = ("seq_len", "global_batch", "precision", "task", "optimizer", "attention")
_SHARDED = {1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"}

Settings = tuple[tuple[str, Any], ...]
Found = dict[str, Any]


def plan_text(plan: Plan) -> str:
    """The degrees of a plan above 1, as people write them."""
    degrees = [
        ("TP", plan.tp),
        ("PP", plan.pp),
        ("CP", plan.cp),
        ("EP", plan.ep),
        ("VPP", plan.vpp),
    ]
    shown = [f"{name} {degree}" for name, degree in degrees if degree > 1]
    sharded = _SHARDED.get(plan.zero, "") if plan.dp > 1 else ""
    shown.append(f"DP {plan.dp}" + (f" ({sharded})" if sharded else ""))
    return " × ".join(shown)


@lru_cache(maxsize=256)
def _scenario(model: str, cluster: str, settings: Settings) -> Scenario:
    given = dict(settings)
    request: dict[str, Any] = {"model": model, "cluster": cluster}
    request["job"] = {name: given[name] for name in _JOB if name in given}
    if "framework" in given:
        request["frameworks"] = [given["framework"]]
    return load_scenario(request)


@lru_cache(maxsize=512)
def given_plan(model: str, cluster: str, settings: Settings) -> tuple[Scenario, Evaluation]:
    """Evaluate a plan that is given.

    Args:
        model: name of the model.
        cluster: such as ``64xH100``.
        settings: keys of the job, ``framework`` and fields of the plan, sorted.
    """
    scenario = _scenario(model, cluster, settings)
    fields = {name: value for name, value in settings if name not in (*_JOB, "framework")}
    for name, kind in _ENUMS.items():
        if name in fields:
            fields[name] = from_text(kind, fields[name])
    framework = from_text(Framework, scenario.frameworks[0])
    plan = complete_plan(scenario, framework=framework, **fields)
    return scenario, evaluate(scenario, PlanGrid.of([plan]))


def figure(scenario: Scenario, result: Evaluation, name: str) -> float:
    """One figure of an evaluation: ``tokens`` per GPU and second, ``share_bubble``, ``mfu``, ..."""
    time, memory = result.time, result.memory
    if name == "tokens":
        per_step = scenario.job.tokens_per_step
        return float(per_step / time.step_time_s[0] / scenario.cluster.num_gpus)
    if name.startswith("share_"):
        return float(getattr(time, name.removeprefix("share_") + "_s")[0] / time.step_time_s[0])
    return float(getattr(time if hasattr(time, name) else memory, name)[0])


def search(model: str, cluster: str, settings: Settings) -> Found:
    """Search for the best plan: what is kept of it."""
    scenario = _scenario(model, cluster, settings)
    found = answer(scenario, top=1)
    if not found.entries:
        return {"plan": "", "verdict": Verdict.OOM.name}
    entry = found.entries[0]
    figures = {name: float(f"{figure(scenario, entry.result, name):.4g}") for name in FIGURES}
    fits = Verdict(int(entry.result.memory.verdict[0])).name
    return {"plan": plan_text(entry.plan), "verdict": fits, **figures}


@lru_cache(maxsize=1)
def stored() -> dict[str, Found]:
    """Searches that are kept, by what was asked."""
    if not STORE.exists():
        return {}
    kept: dict[str, Found] = json.loads(STORE.read_text(encoding="utf-8"))
    return kept


_asked: dict[str, Callable[[], Found]] = {}


def asked() -> Mapping[str, Callable[[], Found]]:
    """Every search that a chapter asked for so far, to be done anew."""
    return _asked


def found_plan(model: str, cluster: str, settings: Settings) -> Found:
    """The plan that a search finds, from what is kept or else by searching."""
    key = " ".join([model, cluster, *(f"{name}={value}" for name, value in settings)])
    _asked.setdefault(key, lambda: search(model, cluster, settings))
    if key not in stored():
        stored()[key] = search(model, cluster, settings)
    return stored()[key]
