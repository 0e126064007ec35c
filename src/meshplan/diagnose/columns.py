"""One rank's trace as columns: device events, collectives, host ranges and step windows.

Times are in microseconds, as profilers give them. Device events are kernels (compute or
communication) and copies; a communication kernel keeps what its metadata says of the collective,
when it says anything. Readers of every format fill these columns, measures read them.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from meshplan.record import record

__all__ = [
    "NO_COLLECTIVE",
    "Collective",
    "DeviceEvents",
    "HostKind",
    "HostRanges",
    "RankTrace",
    "Window",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NO_COLLECTIVE = -1

HostKind: TypeAlias = Literal[
    "data", "forward", "backward", "optimizer", "recompute", "checkpoint", "allocate", "sync"
]


@record
class Collective:
    """What the metadata of a communication kernel says; empty fields were not stated.

    Attributes:
        kind: such as ``allreduce``, as the profiler names it.
        in_elements: elements that this rank puts in.
        out_elements: elements that this rank gets out.
        dtype: element type.
        group: name of the process group.
        purpose: description of the process group.
        group_size: ranks in the group; 0 when not stated.
        ranks: ranks of the group; empty when not stated.
    """

    kind: str
    in_elements: int = 0
    out_elements: int = 0
    dtype: str = ""
    group: str = ""
    purpose: str = ""
    group_size: int = 0
    ranks: tuple[int, ...] = ()


@record
class DeviceEvents:
    """Device events of one kind as columns of shape ``(n,)``.

    Attributes:
        start: start [us].
        end: end [us].
        stream: stream of the device, -1 when not stated.
        name: index into ``RankTrace.names``.
        launch: start of the host call that launched the event [us]; NaN when there is none.
        collective: index into ``RankTrace.collectives``; -1 when there is no metadata.
    """

    start: FloatArray
    end: FloatArray
    stream: IntArray
    name: IntArray
    launch: FloatArray
    collective: IntArray

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def none(cls) -> DeviceEvents:
        """No events."""
        real, whole = np.empty(0), np.empty(0, dtype=np.int64)
        return cls(start=real, end=real, stream=whole, name=whole, launch=real, collective=whole)


@record
class HostRanges:
    """What the host was at, as far as annotations and operators say; columns ``(n,)``.

    Attributes:
        start: start [us].
        end: end [us].
        kind: index into ``KINDS``.
    """

    start: FloatArray
    end: FloatArray
    kind: IntArray

    KINDS: ClassVar[tuple[HostKind, ...]] = get_args(HostKind)

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def none(cls) -> HostRanges:
        """No ranges."""
        return cls(start=np.empty(0), end=np.empty(0), kind=np.empty(0, dtype=np.int64))

    def of(self, kind: HostKind) -> tuple[FloatArray, FloatArray]:
        """Starts and ends of the ranges of one kind."""
        chosen = self.kind == self.KINDS.index(kind)
        return self.start[chosen], self.end[chosen]


@record
class Window:
    """A span of time with a name, such as one training step [us]."""

    name: str
    start: float
    end: float


@record
class RankTrace:
    """The trace of one rank.

    Attributes:
        file: name of the file, without its folder.
        rank: rank as stated; None when the file does not say.
        world_size: ranks of the job as stated; None when the file does not say.
        device: name of the device; empty when the file does not say.
        num_devices: devices of the node as the file lists them; None when it does not.
        compute: kernels that compute.
        communication: kernels that communicate.
        copies: copies and fills.
        steps: windows of the training steps, in order; empty when none were marked.
        names: names of kernels.
        collectives: distinct metadata of communication kernels.
        groups: process groups by name, as the header lists them.
        purposes: descriptions of process groups by name, as the header lists them.
        host: what the host was at.
        on_host: there are no device events, and the columns hold operators that ran on the host.
        device_memory_bytes: memory of the device as the file lists it [bytes]; None when not.
        peak_allocated_bytes: largest allocated memory that was recorded [bytes]; None without
            records of memory.
        peak_reserved_bytes: the same of reserved memory [bytes].
        with_stacks: the profiler recorded Python stacks, which slows the host.
        num_used: devices whose kernels the file holds.
        num_events: events read.
        num_unreadable: events left out because they could not be read.
        num_bad_times: device events left out for a negative or missing time.
        complete: the file was whole.
    """

    file: str
    rank: int | None
    world_size: int | None
    device: str
    compute: DeviceEvents
    communication: DeviceEvents
    copies: DeviceEvents
    steps: tuple[Window, ...]
    names: tuple[str, ...]
    collectives: tuple[Collective, ...]
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    purposes: dict[str, str] = field(default_factory=dict)
    host: HostRanges = field(default_factory=HostRanges.none)
    on_host: bool = False
    num_devices: int | None = None
    with_stacks: bool = False
    num_used: int = 1
    device_memory_bytes: float | None = None
    peak_allocated_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    num_events: int
    num_unreadable: int = 0
    num_bad_times: int = 0
    complete: bool = True

    @property
    def span(self) -> Window | None:
        """First start to last end of all device events; None without any."""
        kinds = [e for e in (self.compute, self.communication, self.copies) if len(e)]
        if not kinds:
            return None
        return Window(
            name="whole",
            start=min(float(e.start.min()) for e in kinds),
            end=max(float(e.end.max()) for e in kinds),
        )
