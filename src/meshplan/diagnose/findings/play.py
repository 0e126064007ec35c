"""Pipelines played by their own schedule: how long stages take, what they wait by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean

from meshplan.cost.exact import pipeline_times
from meshplan.cost.schedule.actions import PipelineTimes, device_of
from meshplan.cost.schedule.simulate import simulate
from meshplan.cost.timed import Timed
from meshplan.diagnose.findings.chunks import passes_of_chunks
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.rounds import Turns, rounds_of
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.inputs.load.profile import profile_of
from meshplan.record import record
from meshplan.space.plan import Plan, PlanGrid, Recompute, Schedule

__all__ = [
    "Pipe",
    "PlayedPipe",
    "bubble_share",
    "enough_micro_batches",
    "pipe_of",
    "play",
]

_LOOPED = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB)
"""Schedules that take micro-batches in rounds of one per device."""
_REPEATED = 0.25
"""Recompute of everything in the compute of a step: one pass of four, each as long as another."""


@record
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


def _equal_times(pipe: Pipe) -> PipelineTimes:
    """Times of virtual stages that all take as long as one another.

    Forward, input and weight gradients take equally long; recompute runs before the gradients.
    """
    num, third = pipe.pp * pipe.vpp, (1.0 - pipe.again) / 3.0
    return PipelineTimes(
        forward_s=(third,) * num,
        backward_input_s=(third + pipe.again,) * num,
        backward_weight_s=(third,) * num,
    )


def _play(pipe: Pipe, times: PipelineTimes) -> float:
    """Time of a step of a pipeline."""
    return simulate(
        schedule=pipe.schedule,
        pp=pipe.pp,
        vpp=pipe.vpp,
        num_micro_batches=pipe.micro,
        times=times,
    )


@lru_cache(maxsize=256)
def bubble_share(pipe: Pipe) -> float:
    """Share of a step that devices wait by the schedule alone, when stages are equal."""
    return max(0.0, 1.0 - pipe.vpp * pipe.micro / _play(pipe, _equal_times(pipe)))


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


@record(kw_only=False)
class PlayedPipe:
    """A pipeline of measured stages, played.

    Attributes:
        step_us: how long it takes [us].
        busy_us: how long each of its devices is at work or receives [us].
        hops_us: how long each of them receives what is there already [us].
    """

    step_us: float
    busy_us: tuple[float, ...]
    hops_us: tuple[float, ...]


def play(facts: Facts, work_us: Sequence[float]) -> PlayedPipe:
    """Play a pipeline whose stages compute that long in a step, by its own schedule.

    Without a plan it turns as often as the kernels that send show; four times a stage without any.
    Which chunk of a stage takes how long is measured between them too.
    What a stage needs from its neighbours it receives before it computes, which takes as long as
    the fastest kernels that send or receive.

    Args:
        facts: of the run.
        work_us: compute time of each stage [us].
    """
    pp, rounds = len(work_us), rounds_of(facts, stages=len(work_us))
    turns = Turns(4 * pp) if rounds is None else rounds.likely
    pipe = pipe_of(facts, facts.context.plan, pp=pp, turns=turns)
    times = _measured_times(_times(facts, pipe), pipe, work_us)
    last = pp * pipe.vpp - 1
    hops = [0.0] * pp
    for v in range(last + 1):
        borders = (v > 0) + (v < last)
        hops[_device(pipe, v)] += borders * pipe.micro * facts.hop_us
    ahead = tuple(s + facts.hop_us * (v > 0) for v, s in enumerate(times.forward_s))
    back = tuple(s + facts.hop_us * (v < last) for v, s in enumerate(times.backward_input_s))
    return PlayedPipe(
        step_us=_play(pipe, replace(times, forward_s=ahead, backward_input_s=back)),
        busy_us=tuple(work + hop for work, hop in zip(work_us, hops, strict=True)),
        hops_us=tuple(hops),
    )


def _device(pipe: Pipe, stage: int) -> int:
    return device_of(stage, pp=pipe.pp, schedule=pipe.schedule)


def _times(facts: Facts, pipe: Pipe) -> PipelineTimes:
    """Times of the virtual stages beside each other: by the cost model, without a plan measured."""
    plan, scenario = facts.context.plan, facts.context.scenario
    if plan is not None and scenario is not None:
        grid = PlanGrid.of([plan])
        timed = Timed.of(scenario, grid, profile_of(scenario, plan.framework.name.lower()))
        return pipeline_times(scenario.model, grid, timed.shape, timed.units)
    equal = _equal_times(pipe)
    found = None
    if pipe.vpp > 1 and pipe.pp == len(facts.stages):
        found = passes_of_chunks(facts, schedule=pipe.schedule, vpp=pipe.vpp, micro=pipe.micro)
    if found is None:
        return equal
    # what of a backward pass is for the inputs
    part = equal.backward_input_s[0] / (equal.backward_input_s[0] + equal.backward_weight_s[0])
    return PipelineTimes(
        forward_s=tuple(found[0].tolist()),
        backward_input_s=tuple((found[1] * part).tolist()),
        backward_weight_s=tuple((found[1] * (1.0 - part)).tolist()),
    )


def _measured_times(times: PipelineTimes, pipe: Pipe, work_us: Sequence[float]) -> PipelineTimes:
    """The same times, stretched so that each device works as long as it was measured to [us]."""
    passes = (times.forward_s, times.backward_input_s, times.backward_weight_s)
    held = [0.0] * pipe.pp
    for v, own in enumerate(zip(*passes, strict=True)):
        held[_device(pipe, v)] += sum(own)
    scale = [work / (pipe.micro * own) for work, own in zip(work_us, held, strict=True)]
    ahead, back, weight = (
        tuple(s * scale[_device(pipe, v)] for v, s in enumerate(row)) for row in passes
    )
    return PipelineTimes(forward_s=ahead, backward_input_s=back, backward_weight_s=weight)
