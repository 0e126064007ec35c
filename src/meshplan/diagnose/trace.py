"""Read a Kineto/Chrome trace into the columns of one rank."""

from __future__ import annotations

import gc
import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from meshplan.diagnose.columns import (
    NO_COLLECTIVE,
    Collective,
    DeviceEvents,
    HostKind,
    RankTrace,
    Window,
)
from meshplan.diagnose.host_rows import HostRows
from meshplan.diagnose.host_trace import read_host_trace
from meshplan.diagnose.names import communicates, host_kind, kind_of, step_name
from meshplan.diagnose.read.kineto import BLOCK_BYTES, Args, Event, Header, read_events
from meshplan.diagnose.steps import choose_steps
from meshplan.diagnose.values import can_be_time, integer, number, ranks_of, shown_name

__all__ = ["Launches", "Rows", "read_trace"]

Progress = Callable[[int], None]

_IGNORED, _KERNEL, _COPY, _LAUNCH, _HOST = range(5)
_CATEGORIES = {
    "kernel": _KERNEL,
    "gpu_memcpy": _COPY,
    "gpu_memset": _COPY,
    "memcpy": _COPY,
    "memset": _COPY,
    "cuda_runtime": _LAUNCH,
    "cuda_driver": _LAUNCH,
    "hip_runtime": _LAUNCH,
    "xpu_runtime": _LAUNCH,
    "privateuse1_runtime": _LAUNCH,
    "gpu_user_annotation": _IGNORED,
    "ac2g": _IGNORED,
    "async_cpu_to_gpu": _IGNORED,
    "fwdbwd": _IGNORED,
}
_COLLECTIVE_RANGE = re.compile(r"^(nccl|xccl|rccl|hccl|ucc):")


def read_trace(
    path: Path, *, progress: Progress | None = None, block_bytes: int = BLOCK_BYTES
) -> RankTrace:
    """Read one rank's trace.

    A profile without device events is read a second time for what ran on the host.

    Args:
        path: a Kineto/Chrome trace, plain or gzipped.
        progress: called with the text read so far [bytes].
        block_bytes: text that is decoded at a time [bytes].

    Raises:
        UserError: when the file holds no trace.
    """
    header = Header()
    builder = _Builder()
    with _no_collection():
        blocks = read_events(path, header=header, block_bytes=block_bytes, progress=progress)
        for events in blocks:
            builder.add(events)
    trace = builder.finish(file=shown_name(path), header=header)
    # launches without kernels are of a device whose events were cut off or not recorded
    cut_off = not trace.complete and trace.num_devices is not None
    on_host = builder.num_host > 0 and not builder.num_launches and not cut_off
    if trace.span is None and on_host:
        return read_host_trace(path, trace, block_bytes=block_bytes)
    return trace


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking the events, which hold no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Rows:
    """Device events of one kind while they are gathered, column by column."""

    def __init__(self) -> None:
        self.start, self.end = array("d"), array("d")
        self.stream, self.name = array("q"), array("q")
        self.correlation, self.collective = array("q"), array("q")

    def add(
        self,
        start: float,
        end: float,
        *,
        name: int,
        stream: int = -1,
        correlation: int = -1,
        collective: int = NO_COLLECTIVE,
    ) -> None:
        """Append one event."""
        self.start.append(start)
        self.end.append(end)
        self.stream.append(stream)
        self.name.append(name)
        self.correlation.append(correlation)
        self.collective.append(collective)

    def arrays(self, launches: Launches) -> DeviceEvents:
        """Close the columns and look up the launch of each event."""
        return DeviceEvents(
            start=np.array(self.start),
            end=np.array(self.end),
            stream=np.array(self.stream, dtype=np.int64),
            name=np.array(self.name, dtype=np.int64),
            launch=launches.starts(np.array(self.correlation, dtype=np.int64)),
            collective=np.array(self.collective, dtype=np.int64),
        )


class Launches:
    """Host calls by their correlation number; of several with one number the last counts."""

    def __init__(self) -> None:
        self._key, self._start = array("q"), array("d")

    def add(self, correlation: int, start: float) -> None:
        """Note one call."""
        self._key.append(correlation)
        self._start.append(start)

    def starts(self, correlation: np.ndarray) -> np.ndarray:
        """Start of the call of each correlation number, NaN where there is none [us]."""
        found = np.full(len(correlation), np.nan)
        if not len(self._key):
            return found
        key = np.array(self._key, dtype=np.int64)
        order = np.argsort(key, kind="stable")
        key = key[order]
        at = np.searchsorted(key, correlation, side="right") - 1
        hit = (at >= 0) & (correlation > 0) & (key[at] == correlation)
        found[hit] = np.array(self._start)[order][at[hit]]
        return found


class _Builder:
    """Gathers the columns of one trace, block by block."""

    def __init__(self) -> None:
        self.num_host = self.num_launches = 0
        self._kinds = {"compute": Rows(), "communication": Rows(), "copies": Rows()}
        self._names: dict[str, int] = {}
        self._rows_of_kernel: list[Rows] = []
        self._collectives: dict[Collective, int] = {}
        self._collective_of: dict[tuple[object, ...], int] = {}
        self._launches = Launches()
        self._host = HostRows()
        self._host_kind: dict[str, HostKind | None] = {}
        self._ranges: list[tuple[float, float, str]] = []
        self._steps: list[Window] = []
        self._num_events = 0
        self._num_bad_times = 0
        self._peak = [0.0, 0.0]
        self._devices: set[object] = set()

    def add(self, events: list[Event]) -> None:
        """Take what matters from one block of events."""
        categories = dict(_CATEGORIES)
        self._num_events += len(events)
        for event in events:
            if event.ph != "X":
                if event.ph == "i" and event.name == "[memory]":
                    self._add_memory(event)
                continue
            kind = categories.get(event.cat)  # type: ignore[arg-type]
            if kind is None:
                kind = categories[event.cat] = _CATEGORIES.get((event.cat or "").lower(), _HOST)  # type: ignore[index]
            if kind == _HOST:
                self._add_host(event)
            elif kind == _LAUNCH:
                self._add_launch(event)
            elif kind != _IGNORED:
                self._add_device_event(event, is_copy=kind == _COPY)

    def _add_device_event(self, event: Event, *, is_copy: bool) -> None:
        start, duration = number(event.ts), number(event.dur, otherwise=0.0)
        if start is None or duration is None or not can_be_time(start, duration):
            self._num_bad_times += 1
            return
        text = str(event.name)
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = len(self._names)
            kind = "communication" if communicates(text) else "compute"
            self._rows_of_kernel.append(self._kinds[kind])
        args = event.args or _NO_ARGS
        self._devices.add(args.device)
        rows = self._kinds["copies"] if is_copy else self._rows_of_kernel[name]
        communication = rows is self._kinds["communication"]
        rows.add(
            start,
            start + duration,
            name=name,
            stream=integer(args.stream),
            correlation=integer(args.correlation),
            collective=self._collective(args) if communication else NO_COLLECTIVE,
        )

    def _add_memory(self, event: Event) -> None:
        """Keep the peaks of the device that ``profile_memory`` records (device type 1 is CUDA)."""
        args = event.args
        if args is not None and integer(args.device_type) == 1:
            self._peak[0] = max(self._peak[0], number(args.total_allocated) or 0.0)
            self._peak[1] = max(self._peak[1], number(args.total_reserved) or 0.0)

    def _add_launch(self, event: Event) -> None:
        correlation = integer(event.args.correlation) if event.args else -1
        start = number(event.ts)
        if correlation > 0 and start is not None:
            self.num_launches += 1
            self._launches.add(correlation, start)
        name = event.name
        try:
            kind = self._host_kind[name]  # type: ignore[index]
        except KeyError:
            kind = self._host_kind[name] = host_kind(str(name))  # type: ignore[index]
        if kind is not None:
            self._add_range(kind, event)

    def _add_host(self, event: Event) -> None:
        """Note a step, a phase, a wait for data or the range of a collective."""
        self.num_host += 1
        name = event.name
        if not isinstance(name, str):
            return
        try:
            kind = self._host_kind[name]
        except KeyError:
            kind = self._host_kind[name] = host_kind(name)
            if kind is None and (step_name(name) or _COLLECTIVE_RANGE.match(name)):
                del self._host_kind[name]  # rare names, looked at every time
                self._add_marked(event, name)
        if kind is not None:
            self._add_range(kind, event)

    def _add_range(self, kind: HostKind, event: Event) -> None:
        start, duration = number(event.ts), number(event.dur)
        if start is not None and duration is not None and duration > 0:
            self._host.add(kind, start, start + duration)

    def _add_marked(self, event: Event, name: str) -> None:
        start, duration = number(event.ts), number(event.dur)
        if start is None or duration is None or duration <= 0:
            return
        if step_name(name):
            self._steps.append(Window(name=name, start=start, end=start + duration))
        else:
            self._ranges.append((start, start + duration, name))

    def _collective(self, args: Args) -> int:
        """Number of what the metadata of a kernel says; -1 when it says nothing."""
        key: tuple[object, ...] = (args.collective, args.group_name, str(args.group_ranks))
        key += (args.in_elements, args.out_elements, args.dtype, args.group_size)
        found = self._collective_of.get(key)
        if found is None:
            found = self._collective_of[key] = self._new_collective(args)
        return found

    def _new_collective(self, args: Args) -> int:
        if args.collective is None and args.group_name is None and args.group_ranks is None:
            return NO_COLLECTIVE
        found = Collective(
            kind=args.collective or "",
            in_elements=max(0, integer(args.in_elements)),
            out_elements=max(0, integer(args.out_elements)),
            dtype=args.dtype or "",
            group="" if args.group_name is None else str(args.group_name),
            purpose=args.group_purpose or "",
            group_size=max(0, integer(args.group_size)),
            ranks=ranks_of(args.group_ranks),
        )
        return self._collectives.setdefault(found, len(self._collectives))

    def finish(self, *, file: str, header: Header) -> RankTrace:
        """Close the columns and read the header."""
        distributed = _dict(header.fields.get("distributedInfo"))
        properties = header.fields.get("deviceProperties")
        first = properties[0] if isinstance(properties, list) and properties else None
        columns = {name: rows.arrays(self._launches) for name, rows in self._kinds.items()}
        self._name_kinds(columns["communication"])
        config = distributed.get("pg_config")
        entries = [_dict(entry) for entry in config] if isinstance(config, list) else []
        groups = {str(entry["pg_name"]): entry for entry in entries if "pg_name" in entry}
        return RankTrace(
            file=file,
            rank=_whole(distributed.get("rank")),
            world_size=_whole(distributed.get("world_size")),
            device=str(_dict(first).get("name", "")),
            num_devices=len(properties) if isinstance(properties, list) and properties else None,
            steps=choose_steps(self._steps),
            names=tuple(self._names),
            collectives=tuple(self._collectives),
            groups={name: ranks_of(e.get("ranks")) for name, e in groups.items()},
            purposes={name: str(e.get("pg_desc", "")) for name, e in groups.items()},
            host=self._host.finish(),
            num_used=len(self._devices - {None}) or 1,
            device_memory_bytes=number(_dict(first).get("totalGlobalMem")),
            peak_allocated_bytes=self._peak[0] or None,
            peak_reserved_bytes=self._peak[1] or None,
            num_events=self._num_events,
            num_unreadable=header.num_unreadable,
            num_bad_times=self._num_bad_times,
            complete=header.complete,
            compute=columns["compute"],
            communication=columns["communication"],
            copies=columns["copies"],
        )

    def _name_kinds(self, events: DeviceEvents) -> None:
        """Tell what kernels without metadata do from the host range that launched them."""
        if not self._ranges or not len(events):
            return
        self._ranges.sort()
        start, end = (np.array([r[i] for r in self._ranges]) for i in (0, 1))
        at = np.searchsorted(start, events.launch, side="right") - 1
        inside = (at >= 0) & (events.launch <= end[at]) & (events.collective == NO_COLLECTIVE)
        for i in np.flatnonzero(inside):
            kind = kind_of(self._ranges[at[i]][2])
            if kind != "other":
                known = Collective(kind=kind)
                events.collective[i] = self._collectives.setdefault(known, len(self._collectives))


_NO_ARGS = Args()


def _whole(value: object) -> int | None:
    found = number(value)
    return None if found is None or not 0 <= found < 2**31 else int(found)


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
