"""Whether anything fits, and the record of a change that makes it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from meshplan.cost.memory import Verdict, peak_memory
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.evaluate import blocks, evaluate, widened
from meshplan.search.rank import rank_plans
from meshplan.space.enumerate import enumerate_parts
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["Kind", "Remedy", "fastest_plan", "remedy_with", "some_plan_fits"]

Kind = Literal[
    "recompute",
    "offload",
    "offload_layers",
    "zero",
    "micro_batch",
    "tp",
    "pp",
    "cp",
    "ep",
    "framework",
    "plan",
    "job",
    "free_axis",
    "seq_len",
    "num_gpus",
    "deadline_days",
]


@record
class Remedy:
    """One change that makes it fit.

    Attributes:
        kind: what changes.
        before: what stands there now.
        after: what would have to stand there.
        plan: a plan that then fits.
        peak_bytes: its peak memory [bytes].
        usable_bytes: what the device can really use [bytes].
        step_time_s: its step time [s].
    """

    kind: Kind
    before: object
    after: object
    plan: Plan
    peak_bytes: float
    usable_bytes: float
    step_time_s: float


def some_plan_fits(scenario: Scenario) -> bool:
    """Whether any plan fits of those that :func:`~meshplan.search.evaluate.screen` looks at.

    Plans with full recompute and the smallest micro-batch are asked first, which most often
    settles it; they need not be the ones with the lowest peak.
    """
    thrifty = {"recompute": ("full",), "micro_batch": (1,), **scenario.axes}
    return any(
        _one_fits(replace(looked, axes={**looked.axes, **axes}))
        for axes in (thrifty, {})
        for looked in widened(scenario)
    )


def _one_fits(scenario: Scenario) -> bool:
    return any(
        bool((np.asarray(peak_memory(scenario, block).verdict) == Verdict.FITS).any())
        for part in enumerate_parts(scenario)
        for _, block in blocks(part.grid)
    )


def fastest_plan(scenario: Scenario) -> Plan | None:
    """The best plan where one fits."""
    if not some_plan_fits(scenario):
        return None
    best = rank_plans(scenario, top=1).best
    assert best is not None, "a plan that fits can be ranked"
    return best.grid.plan(0)


def remedy_with(
    scenario: Scenario, plan: Plan, kind: Kind, before: object, after: object
) -> Remedy:
    """A remedy with the exact numbers of its plan."""
    result = evaluate(scenario, PlanGrid.of([plan]))
    return Remedy(
        kind=kind,
        before=before,
        after=after,
        plan=plan,
        peak_bytes=float(result.memory.peak_bytes[0]),
        usable_bytes=float(result.memory.usable_bytes),
        step_time_s=float(result.time.step_time_s[0]),
    )
