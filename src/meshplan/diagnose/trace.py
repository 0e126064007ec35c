"""One rank's trace as columns: device events, collectives and step windows.

Times are in microseconds, as profilers give them. Device events are kernels (compute or
communication, told apart by name) and copies; a communication kernel keeps what its metadata says
of the collective, when it says anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.read.kineto import Args, Event, Header, read_events

__all__ = ["COMMUNICATION", "Collective", "DeviceEvents", "RankTrace", "Window", "read_trace"]

# Kernels that move data between devices, by library: NCCL, RCCL, HCCL, oneCCL, NVSHMEM, gloo, and
# the symmetric-memory and custom all-reduces of PyTorch, vLLM and TensorRT-LLM.
COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|oneccl|nvshmem|gloo:|multimem_all_reduce|multimem_one_shot|"
    r"(one|two)_shot_all_reduce|cross_device_reduce",
    re.IGNORECASE,
)
_COPIES = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_STEP = re.compile(r"ProfilerStep#?\s*(\d+)")

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    in_elements: int
    out_elements: int
    dtype: str
    group: str
    purpose: str
    group_size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of time with a name, such as one training step [us]."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """The trace of one rank.

    Attributes:
        file: name of the file, without its folder.
        rank: rank as stated; None when the file does not say.
        world_size: ranks of the job as stated; None when the file does not say.
        device: name of the device; empty when the file does not say.
        compute: kernels that compute.
        communication: kernels that communicate.
        copies: copies and fills.
        steps: windows of the training steps, in order; empty when none were marked.
        names: names of kernels.
        collectives: distinct metadata of communication kernels.
        groups: process groups by name, as the header lists them.
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
    groups: dict[str, tuple[int, ...]]
    num_events: int
    num_unreadable: int
    num_bad_times: int
    complete: bool

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


@dataclass(slots=True)
class _Column:
    """Rows of one kind of device event while they are gathered."""

    rows: list[tuple[float, float, int, int, int, int]] = field(default_factory=list)

    def arrays(self, launches: dict[int, float]) -> DeviceEvents:
        table = np.array(self.rows, dtype=np.float64).reshape(-1, 6)
        launch = [launches.get(row[4], np.nan) for row in self.rows]
        return DeviceEvents(
            start=table[:, 0],
            end=table[:, 1],
            stream=table[:, 2].astype(np.int64),
            name=table[:, 3].astype(np.int64),
            launch=np.array(launch, dtype=np.float64),
            collective=table[:, 5].astype(np.int64),
        )


def read_trace(path: Path, *, progress: Callable[[int], None] | None = None) -> RankTrace:
    """Read one rank's trace.

    Raises:
        UserError: when the file holds no trace.
    """
    header = Header()
    builder = _Builder()
    for events in read_events(path, header=header, progress=progress):
        builder.add(events)
    return builder.finish(file=path.name, header=header)


class _Builder:
    """Gathers the columns of one trace, block by block."""

    def __init__(self) -> None:
        self._kinds = {"compute": _Column(), "communication": _Column(), "copies": _Column()}
        self._names: dict[str, int] = {}
        self._is_communication: list[bool] = []
        self._collectives: dict[Collective, int] = {}
        self._launches: dict[int, float] = {}
        self._steps: list[Window] = []
        self._num_events = 0
        self._num_bad_times = 0

    def add(self, events: Iterable[Event]) -> None:
        """Take what matters from one block of events."""
        for event in events:
            self._num_events += 1
            if event.ph != "X":
                continue
            category = (event.cat or "").lower()
            if category == "kernel" or category in _COPIES:
                self._add_device_event(event, is_copy=category != "kernel")
            elif category in ("cuda_runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime"):
                self._add_launch(event)
            elif category != "gpu_user_annotation":
                self._add_step(event)

    def _add_device_event(self, event: Event, *, is_copy: bool) -> None:
        start, duration = _number(event.ts), _number(event.dur, otherwise=0.0)
        if start is None or duration is None or duration < 0:
            self._num_bad_times += 1
            return
        text = str(event.name)
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = len(self._names)
            self._is_communication.append(COMMUNICATION.search(text) is not None)
        communicates = not is_copy and self._is_communication[name]
        args = event.args or Args()
        kind = "copies" if is_copy else "communication" if communicates else "compute"
        self._kinds[kind].rows.append(
            (
                start,
                start + duration,
                _integer(args.stream),
                name,
                _integer(args.correlation),
                self._collective(args) if communicates else -1,
            )
        )

    def _add_launch(self, event: Event) -> None:
        correlation = _integer(event.args.correlation) if event.args else -1
        start = _number(event.ts)
        if correlation > 0 and start is not None:
            self._launches[correlation] = start

    def _add_step(self, event: Event) -> None:
        name = event.name
        if isinstance(name, str) and name.startswith("ProfilerStep"):
            start, duration = _number(event.ts), _number(event.dur)
            if start is not None and duration is not None and duration > 0:
                self._steps.append(Window(name=name, start=start, end=start + duration))

    def _collective(self, args: Args) -> int:
        if args.collective is None and args.group_name is None and args.group_ranks is None:
            return -1
        found = Collective(
            kind=args.collective or "",
            in_elements=max(0, _integer(args.in_elements)),
            out_elements=max(0, _integer(args.out_elements)),
            dtype=args.dtype or "",
            group="" if args.group_name is None else str(args.group_name),
            purpose=args.group_purpose or "",
            group_size=max(0, _integer(args.group_size)),
            ranks=_ranks(args.group_ranks),
        )
        return self._collectives.setdefault(found, len(self._collectives))

    def finish(self, *, file: str, header: Header) -> RankTrace:
        """Close the columns and read the header."""
        distributed = _dict(header.fields.get("distributedInfo"))
        properties = header.fields.get("deviceProperties")
        first = properties[0] if isinstance(properties, list) and properties else None
        # an annotation that a tool wrote twice is one step
        steps = {step.name: step for step in self._steps}
        columns = {name: column.arrays(self._launches) for name, column in self._kinds.items()}
        return RankTrace(
            file=file,
            rank=_optional_integer(distributed.get("rank")),
            world_size=_optional_integer(distributed.get("world_size")),
            device=str(_dict(first).get("name", "")),
            steps=tuple(sorted(steps.values(), key=lambda step: step.start)),
            names=tuple(self._names),
            collectives=tuple(self._collectives),
            groups=_groups(distributed.get("pg_config")),
            num_events=self._num_events,
            num_unreadable=header.num_unreadable,
            num_bad_times=self._num_bad_times,
            complete=header.complete,
            **columns,
        )


def _number(value: object, *, otherwise: float | None = None) -> float | None:
    """A finite number from what a tool wrote, which may be text."""
    if value is None:
        return otherwise
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


def _integer(value: object) -> int:
    number = _number(value)
    return -1 if number is None or abs(number) >= 2**62 else int(number)


def _optional_integer(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _ranks(value: object) -> tuple[int, ...]:
    """Ranks from a list or from its text; a text that was shortened names no ranks."""
    if isinstance(value, list):
        return tuple(_integer(v) for v in value)
    if isinstance(value, str) and "..." not in value:
        return tuple(int(number) for number in re.findall(r"\d+", value))
    return ()


def _groups(config: object) -> dict[str, tuple[int, ...]]:
    """Process groups from the header's list."""
    entries = [_dict(entry) for entry in config] if isinstance(config, list) else []
    return {str(e["pg_name"]): _ranks(e.get("ranks")) for e in entries if "pg_name" in e}
