"""All ranks of a run against each other: who waits for whom, and when each kernel runs.

A rank has a host, which launches operations in order and as fast as it can, and streams. A kernel
starts when its stream is free and when it was launched; a collective moves data once its last
member has arrived, and ends for all at once; so the kernel of a member that came early lasts
longer. Hosts wait for their device at the end of a step only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshplan.space.placement import ranks_of_group
from meshplan.space.plan import Plan
from planted.operations import Blank, Program, Stall, Talk, Wait, Work
from planted.script import Script, script_of

__all__ = ["Machine", "Played", "RankStep", "play"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How the machine runs what is launched.

    Attributes:
        num_steps: steps; the first one is warm-up.
        launch_s: host time per kernel.
        data_s: host time per step that loading data takes.
        copy_s: time of the copy of a batch to the device.
        slow: factor on the compute time, by rank.
        routed: factor on kernels that routed tokens decide, by rank.
        stage_scale: factor on the compute time, by stage.
        link: factor on the time of collectives of an axis, by axis and rank: the slowest member
            counts.
        noise: relative spread of the time of a kernel.
        warm_up: factor on the host time of the first step.
        seed: of the noise.
    """

    num_steps: int = 3
    launch_s: float = 5e-6
    data_s: float = 200e-6
    copy_s: float = 40e-6
    slow: dict[int, float] = field(default_factory=dict)
    routed: dict[int, float] = field(default_factory=dict)
    stage_scale: dict[int, float] = field(default_factory=dict)
    link: dict[str, dict[int, float]] = field(default_factory=dict)
    noise: float = 0.03
    warm_up: float = 3.0
    seed: int = 0


@dataclass(slots=True)
class RankStep:
    """One step of one rank as it was played; times in seconds.

    Attributes:
        begin: the host enters the step.
        end: the host leaves it.
        data: the host loads data, ``(start, end)``.
        stalls: calls of the allocator, ``(start, end)`` each.
        drained: the part of them in which the device has nothing to do.
        copy: the copy of the batch, ``(launch, start, end)``.
        works: start of each :class:`Work`, by order.
        talks: ``(launch, start, end)`` of each :class:`Talk`, by order.
        base: launch time of the first kernel, and shifts of later launches by operation.
    """

    begin: float
    end: float = 0.0
    data: tuple[float, float] = (0.0, 0.0)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    drained: list[tuple[float, float]] = field(default_factory=list)
    copy: tuple[float, float, float] = (0.0, 0.0, 0.0)
    works: list[float] = field(default_factory=list)
    bases: list[float] = field(default_factory=list)
    talks: list[tuple[float, float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Played:
    """A run.

    Attributes:
        plan: its plan.
        programs: by stage.
        scripts: by stage, the columns of its kernels.
        durations: by rank and step, the time of each compute kernel [s].
        steps: by rank, its steps.
        machine: how it was run.
    """

    plan: Plan
    programs: tuple[Program, ...]
    scripts: tuple[Script, ...]
    durations: list[list[FloatArray]]
    steps: list[list[RankStep]]
    machine: Machine

    @property
    def step_s(self) -> float:
        """Mean time of the steps after the first."""
        last = max(steps[-1].end for steps in self.steps)
        first = max(steps[0].end for steps in self.steps)
        return (last - first) / (len(self.steps[0]) - 1)


_TALKS, _KERNELS, _DATA = range(3)
"""What is drawn at random, by its number in the seed."""
_Sent = tuple["_Rank", int, tuple[object, ...]]
"""A send whose receiver has not come yet: the rank, the talk, and what tells it apart."""


class _Rank:
    """One rank while it plays one step."""

    __slots__ = (
        "before",
        "begin",
        "clock",
        "counts",
        "gate",
        "handles",
        "pace",
        "pointer",
        "program",
        "rank",
        "record",
        "script",
        "streams",
        "talk",
        "total",
        "work",
    )

    def __init__(
        self, rank: int, program: Program, script: Script, durations: FloatArray, pace: float
    ) -> None:
        self.rank, self.program, self.script = rank, program, script
        ends = np.cumsum(durations)
        before = ends - durations
        self.pace = pace
        late = script.launch * pace - before
        # of each work: what is before it, how long it is, and how late its launches can make it
        first = script.first
        self.before = before[first[:-1]].tolist()
        self.total = (ends[first[1:] - 1] - before[first[:-1]]).tolist()
        self.gate = np.maximum.reduceat(late, first[:-1]).tolist()
        self.pointer = self.work = self.talk = 0
        self.streams: dict[str, float] = {}
        self.handles: dict[int, float] = {}
        self.counts: dict[str, int] = {}


def play(plan: Plan, programs: tuple[Program, ...], machine: Machine) -> Played:
    """Play all ranks of a plan for some steps."""
    world = plan.tp * plan.cp * plan.dp * plan.pp
    per_stage = world // plan.pp
    scripts = tuple(script_of(program) for program in programs)
    # what is drawn for one thing does not depend on how much is drawn for another, so that the same
    # run without a fault differs from it by the fault alone
    rng = np.random.default_rng((machine.seed, _TALKS))
    groups: dict[tuple[str, int], tuple[int, ...]] = {}
    for program in programs:
        for name in {op.group for op in program if isinstance(op, Talk)}:
            for rank in range(world):
                groups[name, rank] = ranks_of_group(plan, name, rank)
    clock = [0.0] * world
    steps: list[list[RankStep]] = [[] for _ in range(world)]
    durations: list[list[FloatArray]] = [[] for _ in range(world)]
    for number in range(machine.num_steps):
        ranks = []
        for rank in range(world):
            stage = rank // per_stage
            script = scripts[stage]
            scale = np.where(script.in_stage, machine.stage_scale.get(stage, 1.0), 1.0)
            scale = scale * np.where(script.routed, machine.routed.get(rank, 1.0), 1.0)
            draw = np.random.default_rng((machine.seed, _KERNELS, number, rank))
            noise = np.exp(machine.noise * draw.standard_normal(len(script.seconds)))
            times = script.seconds * scale * noise * machine.slow.get(rank, 1.0)
            durations[rank].append(times)
            pace = machine.launch_s * (machine.warm_up if number == 0 else 1.0)
            one = _Rank(rank, programs[stage], script, times, pace)
            _begin(one, clock[rank], machine, (machine.seed, _DATA, number, rank))
            ranks.append(one)
        _play_step(ranks, groups, machine, rng)
        for one in ranks:
            clock[one.rank] = one.record.end + 20e-6
            steps[one.rank].append(one.record)
    return Played(plan, programs, scripts, durations, steps, machine)


def _begin(one: _Rank, clock: float, machine: Machine, seed: tuple[int, ...]) -> None:
    record = RankStep(begin=clock)
    rng = np.random.default_rng(seed)
    loaded = clock + machine.data_s * float(np.exp(0.1 * rng.standard_normal()))
    record.data = (clock, loaded)
    copied = loaded + 15e-6
    record.copy = (loaded, copied, copied + machine.copy_s)
    one.record = record
    one.streams = {"compute": record.copy[2]}
    one.clock = loaded + 30e-6


def _play_step(
    ranks: list[_Rank],
    groups: dict[tuple[str, int], tuple[int, ...]],
    machine: Machine,
    rng: np.random.Generator,
) -> None:
    """Let every rank go on until it waits for another one, until all are done."""
    arrived: dict[tuple[object, ...], dict[int, float]] = {}
    ended: dict[tuple[object, ...], float] = {}
    sent: dict[tuple[object, ...], float] = {}
    unmatched: list[_Sent] = []
    todo = True
    while todo:
        todo = False
        moved = False
        for one in ranks:
            before = one.pointer
            _advance(one, groups, machine, rng, arrived, ended, sent, unmatched)
            moved = moved or one.pointer > before
            todo = todo or one.pointer < len(one.program)
        assert moved or not todo, "the programs wait for each other"
    # the kernel that sends lasts until the data is there
    for one, place, key in unmatched:
        launch, start, end = one.record.talks[place]
        # a call of the allocator waits until it is over
        until = min((s for s, _ in one.record.drained if s >= end), default=np.inf)
        one.record.talks[place] = (launch, start, min(max(end, ended.get(key, end)), until))
    for one in ranks:
        one.record.end = max([*one.streams.values(), one.clock])


def _advance(
    one: _Rank,
    groups: dict[tuple[str, int], tuple[int, ...]],
    machine: Machine,
    rng: np.random.Generator,
    arrived: dict[tuple[object, ...], dict[int, float]],
    ended: dict[tuple[object, ...], float],
    sent: dict[tuple[object, ...], float],
    unmatched: list[_Sent],
) -> None:
    program, streams, record = one.program, one.streams, one.record
    while one.pointer < len(program):
        op = program[one.pointer]
        if isinstance(op, Work):
            w = one.work
            start = streams["compute"]
            begin = max(start, one.gate[w] + one.clock + one.before[w])
            record.works.append(start)
            record.bases.append(one.clock)
            streams["compute"] = begin + one.total[w]
            one.work += 1
        elif isinstance(op, Wait):
            streams["compute"] = max(streams["compute"], one.handles[op.handle])
        elif isinstance(op, Blank):
            streams["compute"] += op.seconds
        elif isinstance(op, Stall):
            here = one.script.launch[one.script.first[one.work]] * one.pace
            begun = max(one.clock + here, 0.0)
            drained = max(begun, *streams.values())
            done = drained + op.seconds
            record.stalls.append((begun, done))
            record.drained.append((drained, done))
            one.clock = done - here
        elif not _talk(one, op, groups, machine, rng, arrived, ended, sent, unmatched):
            return
        one.pointer += 1


def _talk(
    one: _Rank,
    op: Talk,
    groups: dict[tuple[str, int], tuple[int, ...]],
    machine: Machine,
    rng: np.random.Generator,
    arrived: dict[tuple[object, ...], dict[int, float]],
    ended: dict[tuple[object, ...], float],
    sent: dict[tuple[object, ...], float],
    unmatched: list[_Sent],
) -> bool:
    """Play one talk; False when another rank has to come first."""
    streams = one.streams
    group = groups[op.group, one.rank]
    launch = one.clock + one.script.talk_launch[one.talk] * one.pace
    seconds = op.seconds
    slow = machine.link.get(op.axis)
    if op.axis == "pp":
        _, ahead, _ = op.key
        stream = f"{op.kind}{ahead}"
        start = max(streams["compute"], streams.get(stream, 0.0), launch)
        place = group.index(one.rank)
        step = 1 if (op.kind == "send") == bool(ahead) else -1
        other = group[(place + step) % len(group)]
        ends = (one.rank, other) if op.kind == "send" else (other, one.rank)
        key: tuple[object, ...] = ("pp", *ends, *op.key)
        if slow:
            seconds *= max(slow.get(one.rank, 1.0), slow.get(other, 1.0))
        if op.kind == "send":
            sent[key] = start
            end = start + seconds
            unmatched.append((one, len(one.record.talks), key))
        else:
            if key not in sent:
                return False
            end = max(start, sent[key]) + seconds * float(
                np.exp(machine.noise * rng.standard_normal())
            )
            ended[key] = end
            streams["compute"] = end
    else:
        stream = op.axis
        count = one.counts.get(op.group, 0)
        key = (op.group, group, count)
        here = arrived.setdefault(key, {})
        start = max(streams["compute"], streams.get(stream, 0.0), launch)
        here[one.rank] = start
        if len(here) < len(group):
            return False
        if key not in ended:
            if slow:
                seconds *= max(slow.get(rank, 1.0) for rank in group)
            noise = float(np.exp(1.5 * machine.noise * rng.standard_normal()))
            ended[key] = max(here.values()) + seconds * noise
        end = ended[key]
        one.counts[op.group] = count + 1
        if not op.handle:
            streams["compute"] = end
    streams[stream] = max(streams.get(stream, 0.0), end)
    if op.handle:
        one.handles[op.handle] = end
    one.record.talks.append((launch, start, end))
    one.talk += 1
    return True
