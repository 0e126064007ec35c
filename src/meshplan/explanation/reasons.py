"""Why a plan is as it is: memory first, then communication, then the degrees.

Every reason is a number of this plan, of a plan one step away that was evaluated for it, or, where
a search was made, of the best plan with another degree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from meshplan.cost.memory import StageMemory, Verdict, stage_memory
from meshplan.explanation.records import Reason
from meshplan.inputs.scenario import Scenario
from meshplan.search.evaluate import Evaluation, part_seconds, pessimistic
from meshplan.search.neighbours import Neighbour, neighbours
from meshplan.search.objective import TIE
from meshplan.space.placement import AxisName, axis_group, members_per_tier
from meshplan.space.plan import Plan

__all__ = ["COMMUNICATION_PARTS", "reasons_for"]

COMMUNICATION_PARTS = ("tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s")
_PLACED_AXES: tuple[AxisName, ...] = ("tp", "cp", "ep", "pp", "dp")
_NOTABLE = 0.01
_MORE_MEMORY = {"micro_batch": 1}
"""Knobs of which more, not less, needs more memory."""


def reasons_for(
    scenario: Scenario, result: Evaluation, *, alternatives: Sequence[Neighbour] | None = None
) -> tuple[Reason, ...]:
    """Give the reasons for one plan.

    Args:
        scenario: what it is a plan for.
        result: its exact numbers, of length one.
        alternatives: the best plan with each other degree, where the plan is the best one of a
            search. Without them the degrees are judged with the rest of the plan as it is.
    """
    plan = result.grid.plan(0)
    around = neighbours(scenario, plan)
    return (
        *_memory(result, stage_memory(scenario, plan)),
        *_host_memory(scenario, result),
        *_needed(scenario, result, around, alternatives),
        *_communication(scenario, result),
        *(_degrees(result, around) if alternatives is None else _best_with(result, alternatives)),
    )


def _memory(result: Evaluation, stages: Sequence[StageMemory]) -> Iterator[Reason]:
    memory = result.memory
    peak, usable = float(memory.peak_bytes[0]), float(memory.usable_bytes)
    worst = int(memory.worst_stage[0])
    verdict = Verdict(int(memory.verdict[0])).name.lower()
    if verdict == "oom" and peak <= usable:
        verdict = "fits"  # it is the memory of the host that lacks
    yield Reason(
        code=f"memory_{verdict}" if len(stages) > 1 else f"memory_{verdict}_alone",
        topic="memory",
        numbers={
            "peak_bytes": peak,
            "usable_bytes": usable,
            "rest_bytes": abs(usable - peak),
            "stage": worst,
            "num_stages": len(stages),
        },
    )
    stage = stages[worst]
    largest = max(stage.peak_terms, key=lambda term: term.num_bytes)
    yield Reason(
        code="memory_largest",
        topic="memory",
        numbers={
            "term": largest.code,
            "term_bytes": largest.num_bytes,
            "share_fraction": largest.num_bytes / peak,
            "event": stage.peak_event.name.lower(),
        },
    )


def _host_memory(scenario: Scenario, result: Evaluation) -> Iterator[Reason]:
    """What is offloaded, against the memory of one host."""
    host = float(result.memory.host_bytes[0])
    capacity = float(scenario.cluster.host_memory_bytes)
    if host > 0:
        yield Reason(
            code="memory_host_over" if host > capacity else "memory_host",
            topic="memory",
            numbers={
                "host_bytes": host,
                "host_capacity_bytes": capacity,
                "rest_bytes": abs(capacity - host),
            },
        )


def _needed(
    scenario: Scenario,
    result: Evaluation,
    around: Sequence[Neighbour],
    alternatives: Sequence[Neighbour] | None,
) -> Iterator[Reason]:
    """Knobs without which it would not fit: the rest being as it is, or whatever the rest is."""
    if result.memory.verdict[0] != Verdict.FITS:
        return
    for near in around:
        wants = _MORE_MEMORY.get(near.knob, -1)
        if near.direction != wants or near.result.memory.verdict[0] == Verdict.FITS:
            continue
        # a pinned axis was not searched
        searched = alternatives is not None and near.knob not in scenario.axes
        always = searched and not _some_fit(near, alternatives or ())
        yield Reason(
            code="memory_needs_always" if always else "memory_needs",
            topic="memory",
            numbers={
                "knob": near.knob,
                "before": near.before,
                "after": near.after,
                "peak_bytes": float(near.result.memory.peak_bytes[0]),
                "usable_bytes": float(near.result.memory.usable_bytes),
            },
        )


def _some_fit(near: Neighbour, alternatives: Sequence[Neighbour]) -> bool:
    """Whether a search found a fitting plan with the value of a neighbour, or nearer to its own.

    The alternatives name the nearest value with which something fits, so that a value further off
    than the neighbour's says that nothing fits with the neighbour's.
    """
    if near.knob == "offload":
        return True
    for other in alternatives:
        if (other.knob, other.direction) != (near.knob, near.direction):
            continue
        if isinstance(other.after, int) and isinstance(near.after, int):
            return (other.after - near.after) * near.direction <= 0
        return True
    return False


def _communication(scenario: Scenario, result: Evaluation) -> Iterator[Reason]:
    plan = result.grid.plan(0)
    step = float(result.time.step_time_s[0])
    parts = part_seconds(result)
    exposed = {part: parts[part] for part in COMMUNICATION_PARTS}
    if scenario.cluster.num_gpus > 1:
        largest = max(exposed, key=lambda part: exposed[part])
        yield Reason(
            code="communication_exposed",
            topic="communication",
            numbers={
                "exposed_s": sum(exposed.values()),
                "share_fraction": sum(exposed.values()) / step,
                "part": largest,
                "part_s": exposed[largest],
            },
        )
    yield from _placement(scenario, result, plan)
    if plan.pp > 1:
        yield Reason(
            code="communication_bubble",
            topic="communication",
            numbers={
                "bubble_s": parts["bubble_s"],
                "share_fraction": parts["bubble_s"] / step,
                "pp": plan.pp,
                "vpp": plan.vpp,
                "num_micro_batches": plan.num_micro_batches,
            },
        )


def _placement(scenario: Scenario, result: Evaluation, plan: Plan) -> Iterator[Reason]:
    """Which groups stay inside the innermost level of the network and which leave it."""
    cluster = scenario.cluster
    if len(cluster.tiers) < 2:
        return
    inside: list[str] = []
    across: list[str] = []
    for axis in _PLACED_AXES:
        degree = getattr(plan, axis)
        if degree == 1:
            continue
        group = axis_group(result.grid, axis)
        members = np.asarray(members_per_tier(cluster, group.size, group.stride))
        (inside if members[0, 0] >= degree else across).append(axis)
    for code, axes in (("communication_inside", inside), ("communication_across", across)):
        if axes:
            yield Reason(
                code=code,
                topic="communication",
                numbers={
                    "axes": [axis.upper() for axis in axes],
                    "num_gpus": cluster.tiers[0].num_gpus,
                    "inner_bytes_per_s": cluster.tiers[0].bandwidth_bytes_per_s,
                    "outer_bytes_per_s": cluster.tiers[1].bandwidth_bytes_per_s,
                },
            )


def _numbers(result: Evaluation, near: Neighbour) -> dict[str, object]:
    """How another plan's step and memory differ, and which part of the step does most."""
    change = float(near.result.time.step_time_s[0] / result.time.step_time_s[0]) - 1.0
    ours, theirs = part_seconds(result), part_seconds(near.result)
    sign = 1.0 if change >= 0 else -1.0
    part = max(ours, key=lambda name: sign * (theirs[name] - ours[name]))
    return {
        "knob": near.knob,
        "before": near.before,
        "after": near.after,
        "change_fraction": abs(change),
        "part": part,
        "part_s": abs(theirs[part] - ours[part]),
        "peak_bytes": float(near.result.memory.peak_bytes[0]),
        "usable_bytes": float(near.result.memory.usable_bytes),
    }


def _best_with(result: Evaluation, alternatives: Sequence[Neighbour]) -> Iterator[Reason]:
    """What the best plan with each other degree would cost or gain."""
    for near in alternatives:
        value = float(pessimistic(near.result.time)[0] / pessimistic(result.time)[0]) - 1.0
        change = float(near.result.time.step_time_s[0] / result.time.step_time_s[0]) - 1.0
        if value <= TIE:
            code = "best_with_tie"
        else:
            code = "best_with_slower" if change >= 0 else "best_with_unsure"
        yield Reason(
            code=code,
            topic="degrees",
            numbers={
                **_numbers(result, near),
                "faster": change < 0,
                "step_time_s": float(near.result.time.step_time_s[0]),
                "plan": near.result.grid.plan(0),
            },
        )


def _degrees(result: Evaluation, around: Sequence[Neighbour]) -> Iterator[Reason]:
    """What one step up or down in each knob would cost or gain, the rest being as it is."""
    step = float(result.time.step_time_s[0])
    for near in around:
        fits = near.result.memory.verdict[0] == Verdict.FITS
        change = float(near.result.time.step_time_s[0]) / step - 1.0
        if not fits and (change >= 0 or near.direction == _MORE_MEMORY.get(near.knob, -1)):
            continue
        if abs(change) < _NOTABLE:
            code = "degree_same"
        elif change > 0:
            code = "degree_slower"
        elif not fits:
            code = "degree_faster_oom"
        elif near.result.time.high_s[0] > result.time.high_s[0]:
            code = "degree_faster_unsure"
        else:
            code = "degree_faster"
        yield Reason(
            code=code,
            topic="degrees",
            numbers=_numbers(result, near),
        )
