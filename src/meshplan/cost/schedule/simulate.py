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
from functools import lru_cache
from itertools import pairwise

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


@lru_cache(maxsize=1024)  # the search, its answer and what explains it ask for the same plans
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
        shift = _steady_shift(programs, run.ends, num_micro_batches=short, period=period)
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
    pp = len(programs)
    wiring = _wire(times, pp=pp, schedule=schedule, num_micro_batches=num_micro_batches)
    clock = [0.0] * pp
    next_action = [0] * pp
    ends: list[list[float]] = [[] for _ in range(pp)]
    left = sum(len(program) for program in programs)
    order = list(range(pp))
    while left:
        before = left
        for device in order:
            program, done = programs[device], ends[device]
            now, i, end = clock[device], next_action[device], len(program)
            while i < end:
                kind, stage, micro_batch = program[i]
                source, lag, duration, target, wait = wiring[kind][stage]
                if source is not None:
                    ready = source[micro_batch]
                    if ready < 0.0:
                        break
                    if ready + lag > now:
                        now = ready + lag
                now += duration
                target[micro_batch] = now
                done.append(now)
                now += wait
                i += 1
            left -= i - next_action[device]
            clock[device], next_action[device] = now, i
        assert left < before, "the order of the pipeline deadlocks"
        order.reverse()
    spans = [done[-1] for done in ends]
    if schedule in STAGGERED:
        first = (times.forward_s[program[0][1]] for program in programs)
        spans = [done[-1] - (done[0] - f) for done, f in zip(ends, first, strict=True)]
    return _Run(max(spans), ends)


_Wire = tuple[list[float] | None, float, float, list[float], float]


def _wire(
    times: PipelineTimes, *, pp: int, schedule: Schedule, num_micro_batches: int
) -> tuple[list[_Wire], ...]:
    """Say for each kind of action and virtual stage what it waits for and who waits for it.

    Returns:
        By kind and virtual stage: end times of what it needs (None when it needs nothing), the
        lag after them, its duration, where its own end goes, and how long the device then waits.
    """
    num_stages = len(times.forward_s)
    place = [device_of(v, pp=pp, schedule=schedule) for v in range(num_stages)]
    hop = [times.send_s if a != b else 0.0 for a, b in pairwise(place)]
    ahead, behind = [0.0, *hop], [*hop, 0.0]
    forward, backward, weight = (
        [[_NEVER] * num_micro_batches for _ in range(num_stages)] for _ in range(3)
    )
    durations = _durations(times)
    wiring: tuple[list[_Wire], ...] = ([], [], [], [])
    for v in range(num_stages):
        to_next = behind[v] if times.blocking else 0.0
        to_previous = ahead[v] if times.blocking else 0.0
        activation = forward[v - 1] if v else None
        gradient = backward[v + 1] if v + 1 < num_stages else forward[v]
        wiring[0].append((activation, ahead[v], durations[0][v], forward[v], to_next))
        wiring[1].append((gradient, behind[v], durations[1][v], backward[v], to_previous))
        wiring[2].append((gradient, behind[v], durations[2][v], backward[v], to_previous))
        wiring[3].append((None, 0.0, durations[3][v], weight[v], 0.0))
    return wiring


def _steady_shift(
    programs: tuple[Program, ...],
    ends: list[list[float]],
    *,
    num_micro_batches: int,
    period: int,
) -> float | None:
    """Return by how much two rounds in a row differ, when all devices agree on it."""
    shift: float | None = None
    for program, done in zip(programs, ends, strict=True):
        last_forward = len(program) - 1
        while program[last_forward][0] != Kind.FORWARD:
            last_forward -= 1
        # every micro-batch has as many actions as the next one
        length = len(program) // num_micro_batches * period
        first = last_forward + 1 - 2 * length
        if first < length:
            return None
        later, earlier = done[first : last_forward + 1], done[first - length :]
        differences = [a - b for a, b in zip(later, earlier, strict=False)]
        if shift is None:
            shift = differences[0]
        slack = _SAME * done[-1]
        if max(differences) - shift > slack or shift - min(differences) > slack:
            return None
    return shift
