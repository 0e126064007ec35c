"""Read a Kineto/Chrome trace into the columns of one rank."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, isfinite
from pathlib import Path
from typing import cast

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
from meshplan.diagnose.names import (
    communicates,
    host_kind,
    kind_of,
    measure_constant,
    step_name,
)
from meshplan.diagnose.read.event import Args, Event, collective_of
from meshplan.diagnose.read.kineto import BLOCK_BYTES, Header, read_events
from meshplan.diagnose.read.pairs import Pairs
from meshplan.diagnose.rows import DeviceTable, Launches, Rows, integers
from meshplan.diagnose.steps import choose_steps
from meshplan.diagnose.values import can_be_time, number, ranks_of, shown_name

__all__ = ["read_trace"]

Progress = Callable[[int], None]

_IGNORED, _KERNEL, _COPY, _LAUNCH, _HOST, _STACK = range(6)
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
    "python_function": _STACK,
}
_HALVES = ("B", "E")
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


class _Kinds(dict[str | None, int]):
    """What events of each category are, looked up once."""

    def __missing__(self, category: str | None) -> int:
        found = self[category] = _CATEGORIES.get((category or "").lower(), _HOST)
        return found


class _HostNames(dict[str | None, HostKind | None]):
    """What the host is at in ranges of each name; a name that is rare is looked at every time."""

    def __missing__(self, name: str | None) -> HostKind | None:
        found = host_kind(name) if name is not None else None
        if (
            found is None
            and name is not None
            and (step_name(name) or _COLLECTIVE_RANGE.match(name))
        ):
            return _MARK
        self[name] = found
        return found


_MARK = cast(HostKind, "mark")
"""In place of a kind: the name of a step, or of the range of a collective."""


class _KernelNames(dict[str | None, int]):
    """Numbers of kernel names, and which of them communicate."""

    def __init__(self) -> None:
        super().__init__()
        self.communicates: list[bool] = []

    def __missing__(self, name: str | None) -> int:
        found = self[name] = len(self)
        self.communicates.append(communicates(str(name)))
        return found


class _Builder:
    """Gathers the columns of one trace, block by block."""

    def __init__(self) -> None:
        self.num_host = self.num_launches = 0
        self._kinds = _Kinds(_CATEGORIES)
        self._rows = {"compute": Rows(), "communication": Rows(), "copies": Rows()}
        self._names = _KernelNames()
        self._collectives: dict[Collective, int] = {}
        self._collective_of: dict[tuple[object, ...], int] = {}
        self._launches = Launches()
        self._pairs = Pairs()
        self._host = HostRows()
        self._host_names = _HostNames()
        self._long_call_us = measure_constant("long_call_us")
        self._ranges: list[tuple[float, float, str]] = []
        self._steps: list[Window] = []
        self._num_events = 0
        self._num_bad_times = 0
        self._peak = [0.0, 0.0]
        self._devices: set[int] = set()
        self._with_stacks = False

    def add(self, events: list[Event]) -> None:
        """Take what matters from one block of events."""
        self._num_events += len(events)
        kinds, by_kind = self._kinds, [list[Event]() for _ in range(6)]
        for event in events:
            if event.ph == "X":
                by_kind[kinds[event.cat]].append(event)
            elif event.ph in _HALVES:
                whole = self._pairs.close(event)
                if whole is not None:
                    by_kind[kinds[whole.cat]].append(whole)
            elif event.ph == "i" and event.name == "[memory]":
                self._add_memory(event)
        self._add_device_events(by_kind[_KERNEL], copies=False)
        self._add_device_events(by_kind[_COPY], copies=True)
        self._add_launches(by_kind[_LAUNCH])
        self._with_stacks |= bool(by_kind[_STACK])
        for events in (by_kind[_HOST], by_kind[_STACK]):
            self.num_host += len(events)
            self._add_host(events)

    def _add_device_events(self, events: list[Event], *, copies: bool) -> None:
        start = np.array([event.ts for event in events], dtype=np.float64)
        duration = np.array([event.dur for event in events], dtype=np.float64)
        good = can_be_time(start, duration)
        if not good.all():
            self._num_bad_times += int((~good).sum())
            events = [event for event, is_good in zip(events, good, strict=True) if is_good]
            start, duration = start[good], duration[good]
        args = [event.args or _NO_ARGS for event in events]
        name = np.array([self._names[event.name] for event in events], dtype=np.int64)
        self._devices.update(one.device for one in args)
        communicates = np.array(self._names.communicates, dtype=np.bool_)[name] & (not copies)
        collective = np.full(len(events), NO_COLLECTIVE)
        for i in np.flatnonzero(communicates).tolist():
            collective[i] = self._collective(args[i])
        table = DeviceTable(
            start=start,
            end=start + duration,
            name=name,
            stream=integers([one.stream for one in args]),
            correlation=integers([one.correlation for one in args]),
            collective=collective,
        )
        self._rows["copies" if copies else "compute"].add(table.chosen(~communicates))
        self._rows["communication"].add(table.chosen(communicates))

    def _add_memory(self, event: Event) -> None:
        """Keep the peaks of the device that ``profile_memory`` records (device type 1 is CUDA)."""
        args = event.args
        if args is not None and args.device_type == 1:
            self._peak[0] = max(self._peak[0], args.total_allocated)
            self._peak[1] = max(self._peak[1], args.total_reserved)

    def _add_launches(self, events: list[Event]) -> None:
        correlation = integers([e.args.correlation if e.args else -1 for e in events])
        start = np.array([event.ts for event in events], dtype=np.float64)
        self.num_launches += self._launches.add(correlation, start)
        names = self._host_names
        if any(names[name] is not None for name in {event.name for event in events}):
            for event in events:
                kind = names[event.name]
                if kind is not None and kind is not _MARK:
                    self._add_range(kind, event)

    def _add_host(self, events: list[Event]) -> None:
        """Note steps, phases, waits for data and ranges of collectives."""
        names = self._host_names
        for event in events:
            kind = names[event.name]
            if kind is _MARK:
                self._add_marked(event, str(event.name))
            elif kind is not None:
                self._add_range(kind, event)

    def _add_range(self, kind: HostKind, event: Event) -> None:
        least = self._long_call_us if kind == "sync" else 0.0
        if isfinite(event.ts) and least < event.dur < inf:
            self._host.add(kind, event.ts, event.ts + event.dur)

    def _add_marked(self, event: Event, name: str) -> None:
        if not (isfinite(event.ts) and 0 < event.dur < inf):
            return
        if step_name(name):
            self._steps.append(Window(name=name, start=event.ts, end=event.ts + event.dur))
        else:
            self._ranges.append((event.ts, event.ts + event.dur, name))

    def _collective(self, args: Args) -> int:
        """Number of what the metadata of a kernel says; -1 when it says nothing."""
        key: tuple[object, ...] = (args.collective, args.group_name, str(args.group_ranks))
        key += (args.in_elements, args.out_elements, args.dtype, args.group_size)
        found = self._collective_of.get(key)
        if found is None:
            stated = (args.collective, args.group_name, args.group_ranks)
            found = NO_COLLECTIVE
            if any(value is not None for value in stated):
                one = collective_of(args)
                found = self._collectives.setdefault(one, len(self._collectives))
            self._collective_of[key] = found
        return found

    def finish(self, *, file: str, header: Header) -> RankTrace:
        """Close the columns and read the header."""
        distributed = _dict(header.fields.get("distributedInfo"))
        properties = header.fields.get("deviceProperties")
        first = properties[0] if isinstance(properties, list) and properties else None
        columns = {name: rows.arrays(self._launches) for name, rows in self._rows.items()}
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
            names=tuple(str(name) for name in self._names),
            collectives=tuple(self._collectives),
            groups={name: ranks_of(e.get("ranks")) for name, e in groups.items()},
            purposes={name: str(e.get("pg_desc", "")) for name, e in groups.items()},
            host=self._host.finish(),
            with_stacks=self._with_stacks,
            num_used=len(self._devices - {-1}) or 1,
            device_memory_bytes=number(_dict(first).get("totalGlobalMem")),
            peak_allocated_bytes=self._peak[0] or None,
            peak_reserved_bytes=self._peak[1] or None,
            num_events=self._num_events,
            num_unreadable=header.num_unreadable,
            num_bad_times=self._num_bad_times + self._pairs.num_halves,
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
