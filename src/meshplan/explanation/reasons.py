"""Why a plan is as it is: memory first, then communication, then the degrees.

Every reason is a number of this plan or of a plan one step away that was evaluated for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from meshplan.cost.memory import StageMemory, Verdict, stage_memory
from meshplan.explanation.records import Reason
from meshplan.inputs.scenario import Scenario
from meshplan.search.evaluate import Evaluation, part_seconds
from meshplan.search.neighbours import Neighbour, neighbours
from meshplan.space.placement import AxisName, axis_group, members_per_tier
from meshplan.space.plan import Plan

__all__ = ["COMMUNICATION_PARTS", "reasons_for"]

COMMUNICATION_PARTS = ("tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s")
_PLACED_AXES: tuple[AxisName, ...] = ("tp", "cp", "ep", "pp", "dp")
_NOTABLE = 0.01
_MORE_MEMORY = {"micro_batch": 1}
"""Knobs of which more, not less, needs more memory."""


def reasons_for(scenario: Scenario, result: Evaluation) -> tuple[Reason, ...]:
    """Give the reasons for one plan.

    Args:
        scenario: what it is a plan for.
        result: its exact numbers, of length one.
    """
    plan = result.grid.plan(0)
    around = neighbours(scenario, plan)
    return (
        *_memory(result, stage_memory(scenario, plan)),
        *_needed(result, around),
        *_communication(scenario, result),
        *_degrees(result, around),
    )


def _memory(result: Evaluation, stages: Sequence[StageMemory]) -> Iterator[Reason]:
    memory = result.memory
    peak, usable = float(memory.peak_bytes[0]), float(memory.usable_bytes)
    worst = int(memory.worst_stage[0])
    yield Reason(
        code=f"memory_{Verdict(int(memory.verdict[0])).name.lower()}",
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


def _needed(result: Evaluation, around: Sequence[Neighbour]) -> Iterator[Reason]:
    """Knobs without which it would not fit."""
    if result.memory.verdict[0] != Verdict.FITS:
        return
    for near in around:
        wants = _MORE_MEMORY.get(near.knob, -1)
        if near.direction == wants and near.result.memory.verdict[0] != Verdict.FITS:
            yield Reason(
                code="memory_needs",
                topic="memory",
                numbers={
                    "knob": near.knob,
                    "before": near.before,
                    "after": near.after,
                    "peak_bytes": float(near.result.memory.peak_bytes[0]),
                    "usable_bytes": float(near.result.memory.usable_bytes),
                },
            )


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
        group = axis_group(scenario, result.grid, axis)
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


def _degrees(result: Evaluation, around: Sequence[Neighbour]) -> Iterator[Reason]:
    """What one step up or down in each knob would cost or gain."""
    step = float(result.time.step_time_s[0])
    parts = part_seconds(result)
    for near in around:
        fits = near.result.memory.verdict[0] == Verdict.FITS
        change = float(near.result.time.step_time_s[0]) / step - 1.0
        if not fits and (change >= 0 or near.direction == _MORE_MEMORY.get(near.knob, -1)):
            continue
        theirs = part_seconds(near.result)
        sign = 1.0 if change >= 0 else -1.0
        part = max(parts, key=lambda name: sign * (theirs[name] - parts[name]))
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
            numbers={
                "knob": near.knob,
                "before": near.before,
                "after": near.after,
                "change_fraction": abs(change),
                "part": part,
                "part_s": abs(theirs[part] - parts[part]),
                "peak_bytes": float(near.result.memory.peak_bytes[0]),
                "usable_bytes": float(near.result.memory.usable_bytes),
            },
        )
