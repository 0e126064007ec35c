"""What was measured: of a step, of a rank, of a run.

Times of one rank are on the clock of that rank, in microseconds, as its profiler gave them;
``RunMeasures.offset_us`` brings the clocks together. A figure that cannot be known from what was
given is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from statistics import median
from typing import Literal, TypeAlias

from meshplan.diagnose.across import StageMeasures, StepSkew
from meshplan.diagnose.columns import Window
from meshplan.diagnose.series import (
    REDUCTIONS,
    Calls,
    CollectiveKind,
    Lane,
    RankTimeline,
    Streams,
)
from meshplan.record import record

__all__ = [
    "REDUCTIONS",
    "TRAFFIC_AXES",
    "Axis",
    "Basis",
    "Breakdown",
    "Calls",
    "CollectiveKind",
    "Gap",
    "Idle",
    "KernelTotal",
    "Lane",
    "Note",
    "Phase",
    "RankBasis",
    "RankMeasures",
    "RankTimeline",
    "RunMeasures",
    "SizeClass",
    "StageMeasures",
    "StepMeasures",
    "StepSkew",
    "Streams",
    "Traffic",
]


Axis: TypeAlias = Literal["tp", "cp", "ep", "pp", "dp", "unknown"]
Basis: TypeAlias = Literal["metadata", "ranks", "plan", "size", "kernel", "unknown"]
RankBasis: TypeAlias = Literal["metadata", "file_name", "order"]
TRAFFIC_AXES: tuple[Axis, ...] = ("tp", "cp", "ep", "pp", "dp", "unknown")


@record
class Note:
    """Something that is missing or odd in what was read.

    Attributes:
        code: ``note.<code>`` is its sentence.
        where: the file, as it may be shown.
        numbers: values that the sentence mentions.
    """

    code: str
    where: str = ""
    numbers: Mapping[str, float | str] = field(default_factory=dict)


@record
class Breakdown:
    """Time of one rank in one window [us].

    Attributes:
        window: the window.
        compute_us: some compute kernel runs.
        communication_us: some communication kernel runs.
        exposed_us: communication runs and compute does not.
        copy_us: some copy or fill runs.
        idle_us: nothing runs.
        num_compute_kernels: compute kernels that touch the window.
        num_communication_kernels: communication kernels that touch the window.
    """

    window: Window
    compute_us: float
    communication_us: float
    exposed_us: float
    copy_us: float
    idle_us: float
    num_compute_kernels: int
    num_communication_kernels: int

    @property
    def wall_us(self) -> float:
        """Length of the window."""
        return self.window.end - self.window.start

    @property
    def copy_shown_us(self) -> float:
        """Some copy or fill runs and nothing else."""
        return max(0.0, self.wall_us - self.compute_us - self.exposed_us - self.idle_us)

    @property
    def efficiency(self) -> float | None:
        """Share of compute in compute plus communication; None when neither runs."""
        total = self.compute_us + self.communication_us
        return self.compute_us / total if total > 0 else None


@record
class Gap:
    """A time in which the device had nothing to do.

    Attributes:
        cause: ``host``, ``data``, ``allocate``, ``device`` or ``unknown``, whichever explains most.
        start_us: start [us].
        end_us: end [us].
    """

    cause: str
    start_us: float
    end_us: float


@record
class Idle:
    """What a device without work waits for, in one window [us].

    The host's, the data's, the device's and the unknown part add up to the idle time.

    Attributes:
        host_us: the host had not launched the next kernel yet, and was not loading data.
        data_us: the host was loading data while the device had no work.
        device_us: the next kernel was launched but did not start: it waits for an event of
            another stream, a copy or the device itself.
        unknown_us: the next kernel has no launch event, or none follows.
        allocate_us: part of ``host_us`` in which the host was in a call of the device's allocator.
        graph_us: part of ``device_us`` before kernels of a launch of several, as of a CUDA graph.
        synced_us: part of ``device_us`` and ``unknown_us`` in which the host stood in a call that
            waits for the device, such as a copy or a synchronisation.
        held_us: beside the idle time: traffic runs, and compute that was launched in time does not
            start although no call ended that it could have waited for. It is part of the exposed
            time.
        held_most_us: the same if compute waited for no call that ended in these gaps either.
        longest: the longest gaps of each cause.
        num_late: kernels that started as soon as they were launched: the queue was empty.
        num_launched: kernels whose launch is known.
    """

    host_us: float
    data_us: float
    device_us: float
    unknown_us: float
    num_late: int
    num_launched: int
    allocate_us: float = 0.0
    graph_us: float = 0.0
    synced_us: float = 0.0
    held_us: float = 0.0
    held_most_us: float = 0.0
    longest: tuple[Gap, ...] = ()

    @property
    def late_share(self) -> float | None:
        """Share of kernels that the device waited for; None when no launch is known."""
        return self.num_late / self.num_launched if self.num_launched else None


@record
class SizeClass:
    """Collectives of one kind, group and binary order of size.

    Attributes:
        message_bytes: mean size of a call in the convention of nccl-tests: what all ranks hold
            together of a gather and a scatter, what one rank holds of the others [bytes].
        count: calls.
        total_us: their durations added up [us].
        transfer_us: the same without the wait for other ranks [us].
    """

    message_bytes: float
    count: int
    total_us: float
    transfer_us: float


@record
class Traffic:
    """Communication of one rank with one group by one kind of collective, in one window.

    Attributes:
        axis: what the group is for.
        basis: how that is known: ``metadata`` (the description of the group), ``plan`` (its ranks
            are those of an axis of the given plan), ``ranks`` (the strides of its ranks),
            ``size`` (its size, kind and count), ``kernel`` (the kernel serves one axis alone),
            ``unknown``.
        kind: kind of the collective.
        group: name of the process group; ``stream N`` when it is not stated, since a group has a
            stream of its own.
        purpose: description of the group as the trace has it.
        ranks: ranks of the group; empty when not known.
        group_size: ranks in the group; 0 when not known.
        count: kernels that start in the window.
        total_us: some of them runs [us].
        exposed_us: some of them runs and no compute kernel does [us].
        wait_us: part of the calls' durations in which other ranks were waited for [us].
        wait_basis: ``peers`` (the traces of the other ranks), ``shortest`` (against the fastest
            calls of the same size), or empty when not known.
        message_bytes: bytes of all calls in the convention of nccl-tests [bytes]; None when no
            call states its size.
        bus_bytes_per_s: bus bandwidth while data moves, as nccl-tests has it [byte/s]; None when
            sizes are not known.
        sizes: the calls by size, small first.
        kernels: names of the kernels.
    """

    axis: Axis
    basis: Basis
    kind: CollectiveKind
    group: str
    purpose: str
    ranks: tuple[int, ...]
    group_size: int
    count: int
    total_us: float
    exposed_us: float
    wait_us: float | None
    wait_basis: Literal["peers", "shortest", ""]
    message_bytes: float | None
    bus_bytes_per_s: float | None
    sizes: tuple[SizeClass, ...]
    kernels: tuple[str, ...]


@record
class Phase:
    """Device time of the kernels that one phase of the step launched [us].

    Attributes:
        name: ``forward``, ``recompute``, ``backward``, ``optimizer`` or ``other``.
        compute_us: compute kernels of the phase run.
        communication_us: communication kernels of the phase run.
    """

    name: str
    compute_us: float
    communication_us: float


@record
class KernelTotal:
    """One kernel by name, over one step: how often and how long.

    Attributes:
        name: name as the profiler has it.
        kind: ``compute``, ``communication`` or ``copies``.
        count: runs.
        total_us: durations added up [us].
    """

    name: str
    kind: str
    count: int
    total_us: float


@record
class StepMeasures:
    """One step of one rank.

    Attributes:
        time: the whole window.
        warm_up: the step is set apart: it is the first of a profile and slower than the rest, or
            slower than any later step by far.
        idle: what the idle time waits for.
        traffic: communication by group and kind; exposed parts of different groups may overlap.
        exposed_by_axis_us: exposed communication by axis; the parts add up to the exposed time
            (time in which two axes communicate goes to the one listed first in ``TRAFFIC_AXES``).
        peer_wait_us: exposed communication in which other ranks are waited for [us]; None when
            nothing tells the wait from the transfer.
        phases: by phase; empty when neither annotations nor operators tell them apart.
        kernels: kernels that take most time, longest first.
    """

    time: Breakdown
    warm_up: bool
    idle: Idle
    traffic: tuple[Traffic, ...]
    exposed_by_axis_us: Mapping[Axis, float]
    peer_wait_us: float | None
    phases: tuple[Phase, ...]
    kernels: tuple[KernelTotal, ...]

    @property
    def name(self) -> str:
        """Name of the step, as the profiler has it."""
        return self.time.window.name

    @property
    def bubble_us(self) -> float:
        """Time in which a stage neither computes nor talks inside itself.

        Idle time that no host and no data loader explain, and pipeline traffic that shows.
        """
        idle = self.idle.device_us + self.idle.unknown_us
        return idle + self.exposed_by_axis_us.get("pp", 0.0)


@record
class RankMeasures:
    """One rank.

    Attributes:
        file: name of its file, as it may be shown.
        rank: its rank.
        rank_basis: where the rank was taken from.
        world_size: ranks of the job; None when not stated.
        device: name of the device; empty when not stated.
        num_devices: devices of its node as its file lists them; None when it does not.
        on_host: a profile without device events; operators of the host were measured instead.
        with_stacks: the profiler recorded Python stacks, which slows the host.
        device_memory_bytes: memory of the device [bytes]; None when not stated.
        peak_allocated_bytes: largest allocated memory [bytes]; None when not recorded.
        peak_reserved_bytes: largest reserved memory [bytes]; None when not recorded.
        whole: the whole trace; None when there are no events at all.
        steps: steps in order. Without step marks, the whole trace is one step named ``whole``.
        calls: its communication kernels.
        streams: what they wait for, and what waits for them; None when that was not looked at.
        timeline: what to draw.
        notes: what is missing or odd.
        num_events: events read.
    """

    file: str
    rank: int
    rank_basis: RankBasis
    world_size: int | None
    device: str
    on_host: bool
    with_stacks: bool = False
    num_devices: int | None
    device_memory_bytes: float | None = None
    peak_allocated_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    whole: Breakdown | None
    steps: tuple[StepMeasures, ...]
    calls: Calls
    streams: Streams | None = None
    timeline: RankTimeline | None
    notes: tuple[Note, ...]
    num_events: int

    @property
    def steady(self) -> tuple[StepMeasures, ...]:
        """Steps after warm-up in which the device works; all steps when there are none."""
        busy = [s for s in self.steps if s.time.compute_us > 0 or s.time.communication_us > 0]
        return tuple(s for s in busy if not s.warm_up) or tuple(busy) or self.steps

    def median_us(self, name: str) -> float | None:
        """Median over the steady steps of one attribute of their ``time``."""
        values = [float(getattr(step.time, name)) for step in self.steady]
        return median(values) if values else None


@record
class RunMeasures:
    """A run: all ranks that were given, and what else was given with them.

    Attributes:
        ranks: ranks in order.
        offset_us: by rank, what its clock shows more than the common clock [us]; only ranks
            that share a collective with the first one of their set.
        skew: steps across ranks; empty with fewer than two ranks that share collectives.
        stages: pipeline stages; empty when no stage is known.
        stage_basis: how the stages are known; empty when they are not.
        stage_times_s: compute time of each stage as typed by hand [s]; empty when not given.
        logs: console logs.
        metrics: GPU metrics.
        notes: what is missing or odd, of all files.
    """

    ranks: tuple[RankMeasures, ...]
    offset_us: Mapping[int, float] = field(default_factory=dict)
    skew: tuple[StepSkew, ...] = ()
    stages: tuple[StageMeasures, ...] = ()
    stage_basis: Basis | Literal[""] = ""
    stage_times_s: tuple[float, ...] = ()
    logs: tuple[object, ...] = ()
    metrics: tuple[object, ...] = ()
    notes: tuple[Note, ...] = ()

    def rank(self, number: int) -> RankMeasures | None:
        """The measures of one rank; None when it was not given."""
        return next((r for r in self.ranks if r.rank == number), None)
