"""A plan as the options of ``meshplan estimate`` that give it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.plan import Plan

__all__ = ["plan_options"]

_OPTIONS = {
    "tp": "--tp",
    "pp": "--pp",
    "vpp": "--vpp",
    "cp": "--cp",
    "ep": "--ep",
    "etp": "--etp",
    "micro_batch": "--micro-batch",
    "zero": "--zero",
    "recompute": "--recompute",
    "schedule": "--schedule",
}
# what has no option of its own is set as an axis of one value
_AXES = ("dp_replicate", "sp", "cp_comm", "offload", "offload_layers", "split")


def plan_options(
    scenario: Scenario, plan: Plan, shown: Mapping[str, Any], *, asked: Scenario | None = None
) -> list[str]:
    """Name what a plan has beside what its framework does by itself.

    Args:
        scenario: model, cluster and job.
        plan: a plan of the search.
        shown: the same as JSON.
        asked: what was asked, where the plan may use another number of GPUs.

    Returns:
        Arguments for ``estimate``, such as ``["--tp", "4", "--set", "axes.split=balanced"]``.
    """
    given: dict[str, Any] = {}
    own = complete_plan(scenario, framework=plan.framework)
    for field in (*_OPTIONS, *_AXES):
        names = (field, "recompute_layers") if field == "recompute" else (field,)
        if any(getattr(own, name) != getattr(plan, name) for name in names):
            given.update({name: getattr(plan, name) for name in names})
            own = complete_plan(scenario, framework=plan.framework, **given)
    options: list[str] = []
    num_gpus = scenario.cluster.num_gpus
    if asked is not None and num_gpus != asked.cluster.num_gpus:
        options += ["--set", f"cluster.gpus={num_gpus}"]
    if len(scenario.frameworks) > 1:
        options += ["--framework", shown["framework"]]
    for field in given:
        if field == "recompute_layers":
            continue
        value = shown[field]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        options += (
            [_OPTIONS[field], text] if field in _OPTIONS else ["--set", f"axes.{field}={text}"]
        )
    return options
