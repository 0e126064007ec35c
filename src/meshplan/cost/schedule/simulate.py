"""Exact event simulation of pipelines.

Every device runs its program in order. An action starts when the device is free and when what it
needs has arrived: the activation of the stage before it, the gradient of the stage after it, or
its own forward. What is sent between devices takes ``send_s``.

Long programs repeat: once every device shifts by the same time from one round of micro-batches to
the next, all later rounds do so too, since a round depends on the round before it alone. The
simulation then stops early and adds the rounds that are left; the result is the same. Where a
program of very many micro-batches does not repeat so, what is left is added at the pace that the
part played has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.actions import (
    SPLIT_BACKWARD,
    STAGGERED,
    Kind,
    Pipelines,
    PipelineTimes,
    Slot,
)
from meshplan.cost.schedule.graph import Rounds, action_graph, round_size
from meshplan.cost.schedule.orders import device_programs
from meshplan.cost.schedule.play import Cast, Played, play
from meshplan.record import record
from meshplan.space.plan import Schedule

__all__ = ["simulate", "simulate_all", "timeline"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_SAME = 1e-11  # relative difference of two equal shifts, above the rounding of sums of times
_LONGER = 8  # times as many rounds where those before have not told how it goes on
_MOST_PLAYED = 1 << 17  # actions of one plan
_FEWEST_ROUNDS = 8
_MOST_ACTIONS = 1 << 19  # played at a time: some 50 MiB


def simulate(
    *, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int, times: PipelineTimes
) -> float:
    """Play a schedule and return how long it takes, see :func:`simulate_all`.

    Args:
        schedule: pipeline schedule.
        pp: devices of the pipeline.
        vpp: chunks per device.
        num_micro_batches: micro-batches of one step.
        times: times of one micro-batch on each of the ``pp * vpp`` virtual stages.
    """
    one = Pipelines.one(
        schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches, times=times
    )
    return float(simulate_all([one])[0][0])


def simulate_all(pipelines: Sequence[Pipelines]) -> list[FloatArray]:
    """Play many pipelines and return how long each takes.

    Returns:
        For each entry the time of one step of its pipelines [s], ``(num_plans,)``: from the first
        forward of the first device to the last backward of any, or the longest time that any
        device is at it for schedules whose devices enter the next step one after the other.
    """
    seconds = [np.empty(len(own)) for own in pipelines]
    left = [part for entry, own in enumerate(pipelines) for part in _parts(entry, own)]
    while left:
        longer: list[_Part] = []
        for part in (part for part in left if part.is_long):
            seconds[part.entry][part.index] = part.extended()
        left = [part for part in left if not part.is_long]
        for some in _together(left):
            casts = [part.cast() for part in some]
            for part, cast, played in zip(some, casts, play(casts), strict=True):
                known, values = part.outcome(cast, played)
                seconds[part.entry][part.index[known]] = values[known]
                longer += part.longer(~known)
        left = longer
    return seconds


def timeline(
    *, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int, times: PipelineTimes
) -> tuple[Slot, ...]:
    """Play a schedule and return every action with its start and end, device by device."""
    one = Pipelines.one(
        schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches, times=times
    )
    cast = _Part(0, one, np.arange(1), num_micro_batches).cast()
    ends = play([cast])[0].ends(cast.graph.place)[:, 0]
    starts = (ends - cast.durations[cast.graph.duration[cast.graph.place], 0]).tolist()
    programs = device_programs(
        schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches
    )
    actions = [(device, *action) for device, program in enumerate(programs) for action in program]
    return tuple(
        Slot(device, Kind(kind), stage, micro_batch, start, end)
        for (device, kind, stage, micro_batch), start, end in zip(
            actions, starts, ends.tolist(), strict=True
        )
    )


@record(kw_only=False)
class _Part:
    """Plans of one entry that are played with the same number of micro-batches.

    Attributes:
        entry: which entry.
        pipelines: its pipelines.
        index: which of them.
        played: micro-batches that are played.
    """

    entry: int
    pipelines: Pipelines
    index: IntArray
    played: int

    @property
    def num_actions(self) -> int:
        """Actions of one plan, at most."""
        kinds = 3 if self.pipelines.schedule in SPLIT_BACKWARD else 2
        return kinds * self.pipelines.pp * self.pipelines.vpp * self.played

    @property
    def _most(self) -> int:
        """Micro-batches that are played at most, in whole rounds, twice as many as half of it."""
        own = self.pipelines
        per_micro_batch = self.num_actions // self.played
        rounds = _MOST_PLAYED // per_micro_batch // (2 * own.pp)
        return 2 * own.pp * max(rounds, _FEWEST_ROUNDS)

    @property
    def is_long(self) -> bool:
        """Whether too much would have to be played."""
        return self.played > self._most

    def extended(self) -> FloatArray:
        """Times of the steps, from those of two shorter ones of the same pipelines [s].

        Equation: ``T(m) = T(n) + (m - n) (T(n) - T(n / 2)) / (n / 2)``; a step grows by the same
        for each further micro-batch once the first few are over, on average where it alternates.
        """
        most = self._most
        half, whole = simulate_all([self._shortened(most // 2), self._shortened(most)])
        missing = self.pipelines.num_micro_batches[self.index] - most
        extended: FloatArray = whole + (whole - half) * (missing / (most // 2))
        return extended

    def _shortened(self, num_micro_batches: int) -> Pipelines:
        own, index = self.pipelines, self.index
        return replace(
            own,
            num_micro_batches=np.full(len(index), num_micro_batches),
            forward_s=own.forward_s[:, index],
            backward_input_s=own.backward_input_s[:, index],
            backward_weight_s=own.backward_weight_s[:, index],
            send_s=own.send_s[index],
            blocking=own.blocking[index],
        )

    def cast(self) -> Cast:
        """What is played."""
        own, index = self.pipelines, self.index
        send_s = own.send_s[index]
        return Cast(
            graph=action_graph(
                schedule=own.schedule, pp=own.pp, vpp=own.vpp, num_micro_batches=self.played
            ),
            durations=own.durations(index),
            send_s=send_s,
            held_s=np.where(own.blocking[index], send_s, 0.0),
        )

    def outcome(self, cast: Cast, played: Played) -> tuple[BoolArray, FloatArray]:
        """Which plans' steps are known by what was played, and their times [s]."""
        own, graph = self.pipelines, cast.graph
        spans = last = played.ends(graph.last)
        if own.schedule in STAGGERED:
            started = played.ends(graph.first) - cast.durations[graph.duration[graph.first]]
            spans = spans - started
        makespan = spans.max(axis=0)
        missing = own.num_micro_batches[self.index] - self.played
        if graph.rounds is None or not missing.any():
            return missing == 0, makespan
        shift, steady = _steady_shift(graph.rounds, played, last=last)
        return (missing == 0) | steady, makespan + shift * (missing // _period(own))

    def longer(self, mask: BoolArray) -> Iterator[_Part]:
        """Some of the plans, with more rounds: some pipelines take many until they repeat."""
        more = self.played * _LONGER
        far = self.pipelines.num_micro_batches[self.index] > more
        if (mask & far).any():
            yield _Part(self.entry, self.pipelines, self.index[mask & far], more)
        yield from self.in_full(mask & ~far)

    def in_full(self, mask: BoolArray) -> Iterator[_Part]:
        """Some of the plans, with all their micro-batches."""
        numbers = self.pipelines.num_micro_batches[self.index]
        for number in sorted(set(numbers[mask].tolist())):
            index = self.index[mask & (numbers == number)]
            yield _Part(self.entry, self.pipelines, index, number)


def _period(own: Pipelines) -> int:
    """After how many micro-batches the pipelines do the same again."""
    return round_size(schedule=own.schedule, pp=own.pp, vpp=own.vpp)


def _parts(entry: int, own: Pipelines) -> Iterator[_Part]:
    """What is played at first: few rounds where there are many, else the whole step."""
    period, m = _period(own), own.num_micro_batches
    few = 6 * own.pp if period == 1 else 5 * period
    repeats = (few < m) & (m % period == 0) & (own.schedule is not Schedule.GPIPE)
    if repeats.any():
        yield _Part(entry, own, np.flatnonzero(repeats), few)
    yield from _Part(entry, own, np.arange(len(own)), few).in_full(~repeats)


def _together(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Gather parts, and cut those that are large, so that what is played needs little memory."""
    some: list[_Part] = []
    room = _MOST_ACTIONS
    for part in parts:
        start = 0
        while start < len(part.index):
            if some and room < part.num_actions:
                yield some
                some, room = [], _MOST_ACTIONS
            stop = start + max(1, room // part.num_actions)
            some.append(replace(part, index=part.index[start:stop]))
            room -= len(some[-1].index) * part.num_actions
            start = stop
    if some:
        yield some


def _steady_shift(
    rounds: Rounds, played: Played, *, last: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """By how much two rounds in a row differ, and whether all devices agree on it.

    Args:
        rounds: where to look.
        played: when all actions end.
        last: when each device is done [s], ``(pp, num_plans)``.

    Returns:
        Shift of each plan [s] and whether it is steady, ``(num_plans,)``.
    """
    differences = played.ends(rounds.later) - played.ends(rounds.earlier)
    shift = differences[0].copy()
    slack = (_SAME * last)[rounds.device]
    steady: BoolArray = np.all(np.abs(differences - shift) <= slack, axis=0)
    return shift, steady
