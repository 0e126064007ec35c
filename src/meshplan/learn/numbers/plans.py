"""What the full model says of a plan, and which plan it picks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshplan.cost.memory import Verdict
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.scenario import Scenario
from meshplan.learn.expressions import Term
from meshplan.search.answer import answer
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.space.complete import complete_plan
from meshplan.space.names import from_text
from meshplan.space.plan import CpComm, Framework, Plan, PlanGrid, Recompute, Schedule, Split

__all__ = ["estimate", "pick", "pick_value", "plan_text", "verdict"]

STORE = Path(__file__).with_name("computed.json")
_ENUMS: dict[str, Any] = {
    "schedule": Schedule,
    "recompute": Recompute,
    "cp_comm": CpComm,
    "split": Split,
}
_JOB = ("seq_len", "global_batch", "precision", "task", "optimizer", "attention")
_NOT_PLAN = ("frameworks", "profile")


def plan_text(plan: Plan) -> str:
    """The degrees of a plan above 1, as people write them."""
    parts = [("TP", plan.tp), ("PP", plan.pp), ("CP", plan.cp), ("EP", plan.ep)]
    shown = [f"{name} {degree}" for name, degree in parts if degree > 1]
    if plan.vpp > 1:
        shown.append(f"VPP {plan.vpp}")
    sharded = {1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"}.get(plan.zero, "")
    shown.append(f"DP {plan.dp}" + (f" ({sharded})" if sharded and plan.dp > 1 else ""))
    return " × ".join(shown)


@lru_cache(maxsize=256)
def _scenario(model: str, cluster: str, settings: tuple[tuple[str, Any], ...]) -> Scenario:
    given = dict(settings)
    request: dict[str, Any] = {"model": model, "cluster": cluster}
    request["job"] = {name: given[name] for name in _JOB if name in given}
    if "framework" in given:
        request["frameworks"] = [given["framework"]]
    return load_scenario(request)


@lru_cache(maxsize=512)
def _evaluation(model: str, cluster: str, settings: tuple[tuple[str, Any], ...]) -> Evaluation:
    scenario = _scenario(model, cluster, settings)
    fields = {k: v for k, v in settings if k not in _JOB and k != "framework"}
    for name, kind in _ENUMS.items():
        if name in fields:
            fields[name] = from_text(kind, fields[name])
    framework = from_text(Framework, scenario.frameworks[0])
    plan = complete_plan(scenario, framework=framework, **fields)
    return evaluate(scenario, PlanGrid.of([plan]))


def _figure(result: Evaluation, scenario: Scenario, name: str) -> float:
    time, memory = result.time, result.memory
    if name == "tokens":
        per_step = scenario.job.tokens_per_step
        return float(per_step / time.step_time_s[0] / scenario.cluster.num_gpus)
    if name.startswith("share_"):
        return float(getattr(time, name.removeprefix("share_") + "_s")[0] / time.step_time_s[0])
    holder = time if hasattr(time, name) else memory
    return float(getattr(holder, name)[0])


def estimate(what: str, model: str, cluster: str, **settings: Any) -> float:
    """One figure of a plan that is given.

    Args:
        what: ``step_time_s``, ``peak_bytes``, ``mfu``, ``tokens`` (per GPU and second),
            ``share_bubble`` and other parts of the step, or any other figure of the result.
        model: name of the model.
        cluster: such as ``64xH100``.
        **settings: keys of the job and fields of the plan.
    """
    key = tuple(sorted(settings.items()))
    return _figure(_evaluation(model, cluster, key), _scenario(model, cluster, key), what)


def verdict(model: str, cluster: str, **settings: Any) -> Term:
    """Whether a plan that is given fits, in words."""
    key = tuple(sorted(settings.items()))
    name = Verdict(int(_evaluation(model, cluster, key).memory.verdict[0])).name
    return Term(f"cli.verdict.{name.lower()}")


def pick(model: str, cluster: str, **settings: Any) -> str:
    """The plan that the search picks, as text."""
    return str(_stored(model, cluster, settings)["plan"])


def pick_value(what: str, model: str, cluster: str, **settings: Any) -> float:
    """A figure of the plan that the search picks: ``step_time_s``, ``mfu`` and the like."""
    return float(_stored(model, cluster, settings)[what])


FIGURES = ("step_time_s", "mfu", "hfu", "tokens")


def search(model: str, cluster: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Search anew; what ``computed.json`` keeps of it."""
    key = tuple(sorted(settings.items()))
    scenario = _scenario(model, cluster, key)
    found = answer(scenario, top=1)
    if not found.entries:
        return {"plan": "", "verdict": "OOM"}
    entry = found.entries[0]
    figures = {name: float(f"{_figure(entry.result, scenario, name):.4g}") for name in FIGURES}
    fits = Verdict(int(entry.result.memory.verdict[0])).name
    return {"plan": plan_text(entry.plan), "verdict": fits, **figures}


def key_of(model: str, cluster: str, settings: dict[str, Any]) -> str:
    """Under which name a search is kept."""
    return " ".join([model, cluster, *(f"{k}={v}" for k, v in sorted(settings.items()))])


@lru_cache(maxsize=1)
def stored() -> dict[str, dict[str, Any]]:
    """Searches that were kept."""
    if not STORE.exists():
        return {}
    kept: dict[str, dict[str, Any]] = json.loads(STORE.read_text(encoding="utf-8"))
    return kept


_asked: dict[str, Callable[[], dict[str, Any]]] = {}
"""Every search that a chapter asked for, by key: the tool works them all out anew."""


def asked() -> dict[str, Callable[[], dict[str, Any]]]:
    """Searches that chapters asked for since the start."""
    return _asked


def _stored(model: str, cluster: str, settings: dict[str, Any]) -> dict[str, Any]:
    key = key_of(model, cluster, settings)
    _asked.setdefault(key, lambda: search(model, cluster, settings))
    if key not in stored():
        stored()[key] = search(model, cluster, settings)
    return stored()[key]
