"""Pipelines played by their own schedule: how long stages take, what they wait by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

from meshplan.cost.schedule.actions import PipelineTimes, device_of
from meshplan.cost.schedule.layout import chunk_counts, layout_of_plan
from meshplan.cost.schedule.simulate import simulate
from meshplan.cost.unit_time import unit_times
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.rounds import Turns, rounds_of
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.inputs.load.profile import profile_of
from meshplan.space.plan import Plan, PlanGrid, Recompute, Schedule

__all__ = [
    "Pipe",
    "bubble_share",
    "enough_micro_batches",
    "pipe_of",
    "play",
    "played_us",
]

_LOOPED = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB)
"""Schedules that take micro-batches in rounds of one per device."""
_REPEATED = 0.25
"""Recompute of everything in the compute of a step: one pass of four, each as long as another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipe:
    """How a pipeline is run.

    Attributes:
        schedule: its schedule.
        pp: devices.
        vpp: chunks per device.
        micro: micro-batches of a step.
        again: share of the compute that is recompute.
    """

    schedule: Schedule
    pp: int
    vpp: int
    micro: int
    again: float


def pipe_of(facts: Facts, plan: Plan | None, *, pp: int, turns: Turns) -> Pipe:
    """The pipeline of a plan; without one 1F1B, interleaved where chunks take turns."""
    again = _again(facts, plan)
    if plan is not None:
        schedule, chunks = plan.schedule, plan.vpp
    else:
        chunks = turns.chunks
        schedule = Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B
    return Pipe(schedule=schedule, pp=pp, vpp=chunks, micro=turns.micro, again=again)


def _again(facts: Facts, plan: Plan | None) -> float:
    """Share of recompute in the compute of a step: by the plan, else as the trace marks it."""
    if plan is not None and plan.recompute & Recompute.FULL and not plan.recompute_layers:
        return _REPEATED
    steps = [step for rank in facts.ranks for step in rank.steady if step.time.compute_us > 0]
    shares = [
        sum(p.compute_us for p in step.phases if p.name == "recompute") / step.time.compute_us
        for step in steps
    ]
    return min(fmean(shares), _REPEATED) if shares else 0.0


def play(pipe: Pipe, stages: Sequence[float]) -> float:
    """Time of a step of a pipeline; a stage is the work of a virtual one per micro-batch.

    Forward, input and weight gradients take equally long; recompute runs before the gradients.
    """
    third = (1.0 - pipe.again) / 3.0
    return simulate(
        schedule=pipe.schedule,
        pp=pipe.pp,
        vpp=pipe.vpp,
        num_micro_batches=pipe.micro,
        times=PipelineTimes(
            forward_s=tuple(us * third for us in stages),
            backward_input_s=tuple(us * (third + pipe.again) for us in stages),
            backward_weight_s=tuple(us * third for us in stages),
        ),
    )


@lru_cache(maxsize=256)
def bubble_share(pipe: Pipe) -> float:
    """Share of a step that devices wait by the schedule alone, when stages are equal."""
    stages = [1.0 / (pipe.vpp * pipe.micro)] * (pipe.pp * pipe.vpp)
    return max(0.0, 1.0 - 1.0 / play(pipe, stages))


def enough_micro_batches(pipe: Pipe) -> int:
    """The fewest micro-batches, of those that the schedule takes, that clear the threshold."""
    period = pipe.pp if pipe.schedule in _LOOPED else 1

    def clears(rounds: int) -> bool:
        return bubble_share(replace(pipe, micro=rounds * period)) < threshold("bubble_share")

    high = max(1, pipe.micro // period)
    # 1F1B, which fills and drains longest, is below the threshold with half of that
    most = 2 * round(pipe.pp / threshold("bubble_share")) + high
    while high < most and not clears(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if clears(middle) else (middle, high)
    return high * period


def played_us(facts: Facts, work_us: Sequence[float]) -> float:
    """Time of a pipeline whose stages compute that long in a step, by its own schedule [us].

    Without a plan it turns as often as the kernels that send show; four times a stage without any.
    """
    pp, rounds = len(work_us), rounds_of(facts, stages=len(work_us))
    turns = Turns(4 * pp) if rounds is None else rounds.likely
    pipe = pipe_of(facts, facts.context.plan, pp=pp, turns=turns)
    parts = _chunk_shares(facts, pp=pp, vpp=pipe.vpp, schedule=pipe.schedule)
    stages = [
        work_us[device_of(v, pp=pp, schedule=pipe.schedule)] * parts[v] / pipe.micro
        for v in range(pp * pipe.vpp)
    ]
    return play(pipe, stages)


def _chunk_shares(facts: Facts, *, pp: int, vpp: int, schedule: Schedule) -> list[float]:
    """Share of each virtual stage in the work of its device, by the cost model where it knows."""
    plan, scenario = facts.context.plan, facts.context.scenario
    if vpp == 1 or plan is None or scenario is None:
        return [1.0 / vpp] * (pp * vpp)
    layout = layout_of_plan(scenario.model, plan)
    counts, _ = chunk_counts(scenario.model, layout, recompute_layers=plan.recompute_layers)
    profile = profile_of(scenario, plan.framework.name.lower())
    units = unit_times(scenario, PlanGrid.of([plan]), profile)
    times = [float(u.ahead_s[0] + u.back_s[0] + u.weight_s[0]) for u in units]
    seconds = [sum(n * t for n, t in zip(row, times, strict=True)) for row in counts.tolist()]
    held = [0.0] * pp
    for v, own in enumerate(seconds):
        held[device_of(v, pp=pp, schedule=schedule)] += own
    return [own / held[device_of(v, pp=pp, schedule=schedule)] for v, own in enumerate(seconds)]
