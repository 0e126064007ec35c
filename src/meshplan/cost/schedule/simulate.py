"""Exact event simulation of a pipeline.

Every device runs its program in order. An action starts when the device is free and when what it
needs has arrived: the activation of the stage before it, the gradient of the stage after it, or
its own forward. What is sent between devices takes ``send_s``.

Long programs repeat: once every device shifts by the same time from one round of micro-batches to
the next, all later rounds do so too, since a round depends on the round before it alone. The
simulation then stops early and adds the rounds that are left; the result is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshplan.cost.schedule.actions import (
    STAGGERED,
    Kind,
    PipelineTimes,
    Program,
    Slot,
    device_of,
)
from meshplan.cost.schedule.orders import device_programs
from meshplan.space.plan import Schedule

__all__ = ["simulate", "timeline"]

_SAME = 1e-11  # relative difference of two equal shifts, above the rounding of sums of times
_NEVER = -1.0


@dataclass(slots=True)
class _Run:
    """End times of all actions, by device and position in its program."""

    makespan_s: float
    ends: list[list[float]]


def simulate(
    *, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int, times: PipelineTimes
) -> float:
    """Play a schedule and return how long it takes.

    Args:
        schedule: pipeline schedule.
        pp: devices of the pipeline.
        vpp: chunks per device.
        num_micro_batches: micro-batches of one step.
        times: times of one micro-batch on each of the ``pp * vpp`` virtual stages.

    Returns:
        The time of one step of the pipeline [s]: from the first forward of the first device to
        the last backward of any, or the longest time that any device is at it for schedules
        whose devices enter the next step one after the other.
    """
    m = num_micro_batches
    period = pp if vpp > 1 and schedule not in (Schedule.ZBV, Schedule.DUALPIPE_V) else 1
    short = 6 * pp if period == 1 else 5 * period
    if short < m and m % period == 0 and schedule is not Schedule.GPIPE:
        programs = device_programs(schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=short)
        run = _play(programs, times, schedule=schedule, num_micro_batches=short)
        shift = _steady_shift(programs, run.ends, period=period)
        if shift is not None:
            return run.makespan_s + shift * ((m - short) // period)
    programs = device_programs(schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=m)
    return _play(programs, times, schedule=schedule, num_micro_batches=m).makespan_s


def timeline(
    *, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int, times: PipelineTimes
) -> tuple[Slot, ...]:
    """Play a schedule and return every action with its start and end, device by device."""
    programs = device_programs(
        schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches
    )
    run = _play(programs, times, schedule=schedule, num_micro_batches=num_micro_batches)
    durations = _durations(times)
    slots = []
    for device, (program, ends) in enumerate(zip(programs, run.ends, strict=True)):
        for (kind, stage, micro_batch), end in zip(program, ends, strict=True):
            start = end - durations[kind][stage]
            slots.append(Slot(device, Kind(kind), stage, micro_batch, start, end))
    return tuple(slots)


def _durations(times: PipelineTimes) -> tuple[tuple[float, ...], ...]:
    """Durations by kind and virtual stage."""
    inputs, weights = times.backward_input_s, times.backward_weight_s
    full = tuple(i + w for i, w in zip(inputs, weights, strict=True))
    return times.forward_s, full, inputs, weights


def _play(
    programs: tuple[Program, ...],
    times: PipelineTimes,
    *,
    schedule: Schedule,
    num_micro_batches: int,
) -> _Run:
    """Run all programs to their end."""
    pp, num_stages = len(programs), len(times.forward_s)
    durations = _durations(times)
    place = [device_of(v, pp=pp, schedule=schedule) for v in range(num_stages)]
    # time of the hop behind each virtual stage; index -1 serves the first stage and is never used
    hop = [
        times.send_s if v + 1 < num_stages and place[v] != place[v + 1] else 0.0
        for v in range(num_stages)
    ]
    forward = [[_NEVER] * num_micro_batches for _ in range(num_stages)]
    backward = [[_NEVER] * num_micro_batches for _ in range(num_stages)]
    clock = [0.0] * pp
    next_action = [0] * pp
    ends: list[list[float]] = [[] for _ in range(pp)]
    left = sum(len(program) for program in programs)
    last = num_stages - 1
    blocking = times.blocking
    order = list(range(pp))
    while left:
        before = left
        for device in order:
            program, done = programs[device], ends[device]
            now, i, end = clock[device], next_action[device], len(programs[device])
            while i < end:
                kind, stage, mb = program[i]
                if kind == 0:
                    if stage:
                        ready = forward[stage - 1][mb]
                        if ready < 0.0:
                            break
                        ready += hop[stage - 1]
                        if ready > now:
                            now = ready
                    now += durations[0][stage]
                    forward[stage][mb] = now
                    done.append(now)
                    if blocking:
                        now += hop[stage]
                elif kind == 3:
                    now += durations[3][stage]
                    done.append(now)
                else:
                    if stage == last:
                        ready = forward[stage][mb]
                        if ready < 0.0:
                            break
                    else:
                        ready = backward[stage + 1][mb]
                        if ready < 0.0:
                            break
                        ready += hop[stage]
                    if ready > now:
                        now = ready
                    now += durations[kind][stage]
                    backward[stage][mb] = now
                    done.append(now)
                    if blocking and stage:
                        now += hop[stage - 1]
                i += 1
            left -= i - next_action[device]
            clock[device], next_action[device] = now, i
        assert left < before, "the order of the pipeline deadlocks"
        order.reverse()
    spans = [done[-1] for done in ends]
    if schedule in STAGGERED:
        first = (durations[0][program[0][1]] for program in programs)
        spans = [done[-1] - (done[0] - f) for done, f in zip(ends, first, strict=True)]
    return _Run(max(spans), ends)


def _steady_shift(
    programs: tuple[Program, ...], ends: list[list[float]], *, period: int
) -> float | None:
    """Return by how much two rounds in a row differ, when all devices agree on it."""
    shift: float | None = None
    for program, done in zip(programs, ends, strict=True):
        last_forward = max(i for i, action in enumerate(program) if action[0] == 0)
        per_micro_batch = len(program) // (1 + max(action[2] for action in program))
        length = per_micro_batch * period
        first = last_forward + 1 - 2 * length
        if first < length:
            return None
        for i in range(first, last_forward + 1):
            difference = done[i] - done[i - length]
            if shift is None:
                shift = difference
            if abs(difference - shift) > _SAME * done[-1]:
                return None
    return shift
