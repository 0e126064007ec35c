"""Whether anything fits, and the record of a change that makes it fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshplan.cost.memory import Verdict, peak_memory
from meshplan.inputs.scenario import Scenario
from meshplan.search.evaluate import blocks, evaluate
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

_NEAR = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Whether any legal plan fits.

    The thriftiest plans are asked first: those with full recompute and the smallest micro-batch.
    The others are asked only where these nearly fit; none has been seen to need less than
    :data:`_NEAR` of their memory.
    """
    thrifty = {"recompute": ("full",), "micro_batch": (1,), **scenario.axes}
    fits, least = _least(replace(scenario, axes=thrifty))
    if fits or least * _NEAR > scenario.cluster.device.usable_bytes:
        return fits
    return _least(scenario)[0]


def _least(scenario: Scenario) -> tuple[bool, float]:
    """Whether a plan fits, and the lowest peak of all [bytes]."""
    least = np.inf
    for part in (block for found in enumerate_parts(scenario) for _, block in blocks(found.grid)):
        memory = peak_memory(scenario, part)
        if (np.asarray(memory.verdict) == Verdict.FITS).any():
            return True, float(np.asarray(memory.peak_bytes).min())
        least = min(least, float(np.asarray(memory.peak_bytes).min()))
    return False, least


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
