"""Predicted against measured: the step of a plan, part by part and phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

from meshplan.cost.collectives import Collective, collective_time
from meshplan.cost.schedule.layout import stage_table
from meshplan.cost.stage_sum import on_device
from meshplan.cost.step import step_time
from meshplan.cost.unit_time import shared_units, tuning_of
from meshplan.diagnose.layout import Layout
from meshplan.diagnose.machine import leaves_domain
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.records import (
    Axis,
    CollectiveKind,
    RankMeasures,
    RunMeasures,
    StepMeasures,
    Traffic,
)
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import Profile
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.placement import members_per_tier
from meshplan.space.plan import Plan, PlanGrid

__all__ = [
    "Compared",
    "ComparedCollective",
    "Comparison",
    "compare",
    "predicted_collective_s",
    "predicted_parts",
]

COMPARED_AXES: tuple[Axis, ...] = ("tp", "cp", "ep", "dp")
_KINDS = {kind.value: kind for kind in Collective}


@record
class Compared:
    """One part of a step.

    Attributes:
        code: ``step``, ``compute``, ``recompute``, an axis, ``pipeline`` (bubble and sends),
            ``optimizer`` or ``other`` (host, data, copies, traffic of no known axis).
        predicted_s: as the model has it [s]; None where it has no such part by itself.
        measured_s: as the trace has it [s]; None where the trace does not tell it apart.
    """

    code: str
    predicted_s: float | None
    measured_s: float | None


@record
class ComparedCollective:
    """The large collectives of one kind and group, waiting left out.

    Attributes:
        axis: axis of the group.
        kind: kind of collective.
        group_size: ranks in the group.
        stride: distance between neighbours of the group.
        crosses_nodes: the group leaves the scale-up domain.
        message_bytes: mean size in the convention of nccl-tests [bytes].
        count: calls per step.
        predicted_s: time of one call [s].
        measured_s: time of one call [s].
    """

    axis: Axis
    kind: CollectiveKind
    group_size: int
    stride: int
    crosses_nodes: bool
    message_bytes: float
    count: int
    predicted_s: float
    measured_s: float


@record
class Comparison:
    """A step predicted and measured.

    Attributes:
        rank: the rank that is compared: of those measured, the one that computes most.
        num_steps: steady steps whose medians are taken.
        step: the whole step.
        low_s: lower end of the predicted 80 % band [s].
        high_s: its upper end [s].
        parts: parts; those measured add up to the step, and so do those predicted.
        phases: compute time of forward, backward, recompute and optimizer; empty when the trace
            does not tell phases apart.
        collectives: large collectives of the rank.
    """

    rank: int
    num_steps: int
    step: Compared
    low_s: float
    high_s: float
    parts: tuple[Compared, ...]
    phases: tuple[Compared, ...]
    collectives: tuple[ComparedCollective, ...]


def compare(
    run: RunMeasures, scenario: Scenario, plan: Plan, *, profile: Profile | None = None
) -> Comparison | None:
    """Compare a measured run with the plan that it followed; None when no step was measured.

    Args:
        run: the run.
        scenario: model, cluster and job.
        plan: its plan.
        profile: what holds on the cluster, instead of what the scenario names.
    """
    ranks = [rank for rank in run.ranks if rank.steady]
    if not ranks:
        return None
    rank = max(ranks, key=lambda r: r.median_us("compute_us") or 0.0)
    chosen = profile or profile_of(scenario, plan.framework.name.lower())
    predicted = predicted_parts(scenario, plan, chosen)
    measured = _measured_parts(rank)
    joined = _join_optimizer(predicted, measured)
    codes = ("compute", "recompute", *COMPARED_AXES, "pipeline", "optimizer", "other")
    parts = tuple(
        Compared(code=code, predicted_s=joined.get(code), measured_s=measured.get(code))
        for code in codes
        if joined.get(code) or measured.get(code)
    )
    return Comparison(
        rank=rank.rank,
        num_steps=len(rank.steady),
        step=Compared(
            code="step", predicted_s=predicted["step"], measured_s=_median(rank, _wall) / 1e6
        ),
        low_s=predicted["low"],
        high_s=predicted["high"],
        parts=parts,
        phases=_phases(rank, scenario, plan, chosen, predicted),
        collectives=_collectives(rank, scenario, plan, chosen),
    )


def predicted_parts(scenario: Scenario, plan: Plan, profile: Profile) -> dict[str, float]:
    """Parts of the step of one plan, with the step itself and the ends of its band [s]."""
    time = step_time(scenario, PlanGrid.of([plan]), exact=True, profile=profile)

    def value(name: str) -> float:
        return float(getattr(time, name)[0])

    return {
        "step": value("step_time_s"),
        "low": value("low_s"),
        "high": value("high_s"),
        "compute": value("compute_s"),
        "recompute": value("recompute_s"),
        "tp": value("tp_comm_s"),
        "cp": value("cp_comm_s"),
        "ep": value("ep_comm_s"),
        "dp": value("dp_comm_s"),
        "pipeline": value("bubble_s") + value("pp_comm_s"),
        "optimizer": value("optimizer_s"),
        "other": value("other_s"),
    }


def _join_optimizer(
    predicted: Mapping[str, float], measured: Mapping[str, float]
) -> dict[str, float]:
    """What the trace does not tell apart from compute is predicted together with it."""
    joined = dict(predicted)
    for code in ("recompute", "optimizer"):
        if code not in measured:
            joined["compute"] += joined.pop(code)
    return joined


def _wall(step: StepMeasures) -> float:
    return step.time.wall_us


def _median(rank: RankMeasures, value: Callable[[StepMeasures], float]) -> float:
    return float(median(value(step) for step in rank.steady))


def _measured_parts(rank: RankMeasures) -> dict[str, float]:
    """Parts of the median step; they add up to it, since each is split from the same steps [s]."""
    steps = [_parts_of(step) for step in rank.steady]
    codes = dict.fromkeys(code for parts in steps for code in parts)
    sums = {code: float(np.mean([parts.get(code, 0.0) for parts in steps])) for code in codes}
    # means add up where medians do not; the step is the median, so that one odd step is left out
    scale = _median(rank, _wall) / 1e6 / max(sum(sums.values()), 1e-12)
    return {code: value * scale for code, value in sums.items()}


def _parts_of(step: StepMeasures) -> dict[str, float]:
    """Parts of one step [s]: computing, exposed traffic by axis, waiting, and what is left."""
    parts: dict[str, float] = {}
    by_phase = {phase.name: phase.compute_us for phase in step.phases}
    for name in ("recompute", "optimizer"):
        if by_phase.get(name):
            parts[name] = by_phase[name]
    parts["compute"] = max(step.time.compute_us - sum(parts.values()), 0.0)
    for axis in COMPARED_AXES:
        exposed = step.exposed_by_axis_us.get(axis)
        if exposed:
            parts[axis] = exposed
    has_pipeline = "pp" in step.exposed_by_axis_us
    if has_pipeline:
        parts["pipeline"] = step.bubble_us
    parts["other"] = max(step.time.wall_us - sum(parts.values()), 0.0)
    return {code: value / 1e6 for code, value in parts.items()}


def _phases(
    rank: RankMeasures,
    scenario: Scenario,
    plan: Plan,
    profile: Profile,
    predicted: Mapping[str, float],
) -> tuple[Compared, ...]:
    """Compute time by phase, where the trace tells phases apart."""
    names = dict.fromkeys(p.name for step in rank.steady for p in step.phases)
    if not {"forward", "backward"} <= names.keys():
        return ()
    forward_s = _predicted_forward_s(scenario, plan, profile)
    expected: dict[str, float | None] = {
        "forward": forward_s,
        "backward": predicted["compute"] - forward_s,
        "recompute": predicted["recompute"],
        "optimizer": predicted["optimizer"],
    }
    found = []
    for name in ("forward", "recompute", "backward", "optimizer", "other"):
        if name not in names and not expected.get(name):
            continue
        values = [sum(p.compute_us for p in step.phases if p.name == name) for step in rank.steady]
        measured = float(median(values)) / 1e6 if name in names else None
        found.append(Compared(code=name, predicted_s=expected.get(name), measured_s=measured))
    return tuple(found)


def _predicted_forward_s(scenario: Scenario, plan: Plan, profile: Profile) -> float:
    """Forward computation of the device that computes most [s]."""
    grid = PlanGrid.of([plan])
    units = shared_units(scenario, grid, profile)
    table = stage_table(scenario.model, grid)
    totals = []
    for device in range(table.num_devices):
        pace = np.array([device])
        forward, inputs, weights = (
            float(on_device(table.count, table.index, pace, units.values(name))[0])
            for name in ("forward_s", "input_s", "weight_s")
        )
        totals.append((forward + inputs + weights, forward))
    return max(totals)[1] * plan.num_micro_batches


def _collectives(
    rank: RankMeasures, scenario: Scenario, plan: Plan, profile: Profile
) -> tuple[ComparedCollective, ...]:
    """Large collectives, from the step in the middle of the steady ones."""
    layout = Layout(plan=plan)
    step = sorted(rank.steady, key=_wall)[len(rank.steady) // 2]
    found = []
    for traffic in step.traffic:
        ranks = traffic.ranks or layout.ranks_of_axis(traffic.axis, rank.rank)
        one = _compared(traffic, ranks, scenario, profile)
        if one is not None:
            found.append(one)
    return tuple(found)


def _compared(
    traffic: Traffic, ranks: tuple[int, ...], scenario: Scenario, profile: Profile
) -> ComparedCollective | None:
    large = [s for s in traffic.sizes if s.message_bytes >= measure_constant("large_message_bytes")]
    if not large or traffic.wait_us is None or traffic.kind not in _KINDS:
        return None
    group = _size_and_stride(ranks)
    if group is None or max(ranks) >= scenario.cluster.num_gpus:
        return None
    count = sum(s.count for s in large)
    seconds = [
        predicted_collective_s(
            scenario, profile, traffic.kind, group=group, message_bytes=s.message_bytes
        )
        for s in large
    ]
    predicted = sum(t * s.count for t, s in zip(seconds, large, strict=True)) / count
    measured = sum(s.transfer_us for s in large) / count / 1e6
    if predicted <= 0 or measured <= 0:
        return None
    size, stride = group
    return ComparedCollective(
        axis=traffic.axis,
        kind=traffic.kind,
        group_size=size,
        stride=stride,
        crosses_nodes=leaves_domain(scenario.cluster, group),
        message_bytes=sum(s.message_bytes * s.count for s in large) / count,
        count=count,
        predicted_s=predicted,
        measured_s=measured,
    )


def _size_and_stride(ranks: tuple[int, ...]) -> tuple[int, int] | None:
    """Size and stride of a group; None of one rank or without one stride."""
    steps = set(np.diff(sorted(ranks)).tolist())
    return (len(ranks), int(steps.pop())) if len(steps) == 1 else None


def predicted_collective_s(
    scenario: Scenario,
    profile: Profile,
    kind: CollectiveKind,
    *,
    group: tuple[int, int],
    message_bytes: float,
) -> float:
    """Time of one collective of a group of ranks in a run of equal strides [s].

    Args:
        scenario: whose cluster.
        profile: factors of framework and cluster.
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``.
        group: size and stride.
        message_bytes: size in the convention of nccl-tests [bytes].
    """
    size, stride = np.array([group[0]]), np.array([group[1]])
    members = members_per_tier(scenario.cluster, size, stride).astype(np.float64)
    seconds = collective_time(
        scenario.cluster,
        _KINDS[kind],
        message_bytes=np.array([message_bytes]),
        members=members,
        tuning=tuning_of(profile, scenario.cluster),
    )
    return float(seconds[0])
