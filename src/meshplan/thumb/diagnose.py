"""Why GPUs wait: tensor parallelism across nodes, or stages that are not balanced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from meshplan.errors import UserError
from meshplan.record import record
from meshplan.thumb.checks import check_numbers, check_times
from meshplan.thumb.speed import imbalance

__all__ = ["Diagnosis", "Finding", "diagnose"]

_HEALTHY_FROM = 0.8
_BALANCED_UP_TO = 0.05
"""Waiting that is not worth moving a layer for, as a part of the step."""


@record
class Finding:
    """One thing that was found, and what to do about it.

    Attributes:
        code: what was found; ``finding.<code>`` is its sentence.
        action: what to do; ``action.<code>`` is its sentence. Empty when nothing need be done.
        numbers: the values that both sentences mention.
    """

    code: str
    action: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@record
class Diagnosis:
    """The outcome of :func:`diagnose`.

    Attributes:
        healthy: the GPUs are busy enough, nothing was looked into.
        utilization: what was measured, a fraction.
        findings: what was found, the gravest first; never empty.
    """

    healthy: bool
    utilization: float
    findings: tuple[Finding, ...]


def diagnose(
    *,
    utilization: float,
    tp: int | None,
    gpus_per_node: int | None,
    stage_times_s: Sequence[float] | None = (),
) -> Diagnosis:
    """Say why GPUs are not busy, and what to do.

    From 80 % on all is well. Below, either communication is waited for or the load is uneven:
    first see whether tensor-parallel groups leave their node, then whether the stages of the
    pipeline take equally long.

    Args:
        utilization: GPU utilization as a profiler reports it, a fraction between 0 and 1.
        tp: tensor-parallel degree; None when not known.
        gpus_per_node: GPUs in one node; None when not known.
        stage_times_s: compute time of each pipeline stage [s]; empty without a pipeline, None
            when not known.
    """
    given = {"tp": tp, "gpus_per_node": gpus_per_node}
    check_numbers(
        not_negative={"utilization": utilization},
        counts={name: value for name, value in given.items() if value is not None},
    )
    if utilization > 1:
        raise UserError.of("number_not_a_fraction", where="utilization", value=utilization)
    if stage_times_s is not None and len(stage_times_s):
        check_times(where="stage_times_s", times_s=stage_times_s)
    if utilization >= _HEALTHY_FROM:
        finding = Finding(code="utilization_healthy", numbers={"utilization": utilization})
        return Diagnosis(healthy=True, utilization=utilization, findings=(finding,))
    found = [*_tp_across_nodes(tp, gpus_per_node), *_uneven_stages(stage_times_s or ())]
    if not found:
        found.append(
            Finding(
                code="cause_not_told"
                if None in (tp, gpus_per_node, stage_times_s)
                else "cause_elsewhere",
                action="profile_communication",
                numbers={"utilization": utilization},
            )
        )
    return Diagnosis(healthy=False, utilization=utilization, findings=tuple(found))


def _tp_across_nodes(tp: int | None, gpus_per_node: int | None) -> list[Finding]:
    """Tensor groups stay inside nodes exactly when their size divides the node."""
    if tp is None or gpus_per_node is None or gpus_per_node % tp == 0:
        return []
    # the common divisor keeps the number of GPUs per group a divisor of what was there
    inside = math.gcd(tp, gpus_per_node)
    numbers = {
        "tp": tp,
        "gpus_per_node": gpus_per_node,
        "suggested_tp": inside,
        "factor": tp // inside,
    }
    return [Finding(code="tp_across_nodes", action="keep_tp_in_node", numbers=numbers)]


def _uneven_stages(stage_times_s: Sequence[float]) -> list[Finding]:
    if len(stage_times_s) < 2:
        return []
    lost = imbalance(part_times_s=stage_times_s)
    if lost <= _BALANCED_UP_TO:
        return []
    slowest = max(range(len(stage_times_s)), key=lambda i: stage_times_s[i])
    mean_s = math.fsum(stage_times_s) / len(stage_times_s)
    numbers = {
        "stage": slowest,
        "stage_time_s": float(stage_times_s[slowest]),
        "mean_s": mean_s,
        "excess": stage_times_s[slowest] / mean_s - 1.0,
        "lost": lost,
    }
    return [Finding(code="stages_uneven", action="move_layers", numbers=numbers)]
