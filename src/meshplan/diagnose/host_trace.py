"""Profiles of runs on the host alone, such as gloo on CPUs: operators take the place of kernels."""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import NO_COLLECTIVE, Collective, DeviceEvents, RankTrace
from meshplan.diagnose.names import communicates, kind_of
from meshplan.diagnose.read.event import Event, collective_of
from meshplan.diagnose.read.kineto import Header, read_events
from meshplan.diagnose.read.pairs import Pairs

__all__ = ["read_host_trace"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# the call that starts a collective is neither the collective nor work
_CALLS = ("c10d::", "record_param_comms")


def read_host_trace(path: Path, trace: RankTrace, *, block_bytes: int) -> RankTrace:
    """Fill the columns of a trace without device events with what ran on the host.

    Args:
        path: its file.
        trace: what the first reading found: header, steps, host ranges.
        block_bytes: text that is decoded at a time [bytes].

    Returns:
        The trace with operators as compute and ranges of collectives as communication.
    """
    gatherer = _Gatherer()
    for events in read_events(path, header=Header(), block_bytes=block_bytes):
        gatherer.add(events)
    return gatherer.finish(trace)


class _Gatherer:
    def __init__(self) -> None:
        self._start, self._end = array("d"), array("d")
        self._name, self._thread = array("q"), array("q")
        self._threads: dict[object, int] = {}
        self._talk: list[tuple[float, float, int]] = []
        self._calls: list[tuple[float, Collective]] = []
        self._names: dict[str, int] = {}
        self._talks: dict[str, bool] = {}
        self._pairs = Pairs()

    def add(self, events: list[Event]) -> None:
        for one in events:
            event = self._pairs.close(one) if one.ph in ("B", "E") else one
            if event is None or event.ph != "X" or event.name is None:
                continue
            name = event.name
            talks = self._talks.get(name)
            if talks is None:
                talks = self._talks[name] = ":" in name and communicates(name)
            start, duration = event.ts, event.dur
            if not (isfinite(start) and 0 <= duration < inf):
                continue
            if talks:
                self._talk.append((start, start + duration, self._number(name)))
            elif name == "record_param_comms" and event.args is not None:
                self._calls.append((start, collective_of(event.args)))
            elif event.cat == "cpu_op" and not name.startswith(_CALLS):
                self._start.append(start)
                self._end.append(start + duration)
                self._name.append(self._number(name))
                self._thread.append(self._threads.setdefault(event.tid, len(self._threads)))

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def finish(self, trace: RankTrace) -> RankTrace:
        names = tuple(self._names)
        self._talk.sort()
        self._calls.sort(key=lambda call: call[0])
        collectives: dict[Collective, int] = {}
        chosen = [collectives.setdefault(found, len(collectives)) for found in self._matched(names)]
        work = _leaves(
            np.array(self._start), np.array(self._end), np.array(self._thread, dtype=np.int64)
        )
        start, end, name = (np.array([t[i] for t in self._talk]) for i in range(3))
        return replace(
            trace,
            compute=_events(
                np.array(self._start)[work],
                np.array(self._end)[work],
                np.array(self._name, dtype=np.int64)[work],
                np.full(len(work), NO_COLLECTIVE),
            ),
            communication=_events(start, end, name, np.array(chosen)),
            names=names,
            collectives=tuple(collectives),
            on_host=True,
        )

    def _matched(self, names: tuple[str, ...]) -> list[Collective]:
        """Metadata of each range: the last call of its kind before it, if one was recorded."""
        found = []
        by_kind: dict[str, list[tuple[float, Collective]]] = {}
        for start, call in self._calls:
            by_kind.setdefault(kind_of(call.kind), []).append((start, call))
        used: dict[str, int] = {}
        for _, _, name in self._talk:
            kind = kind_of(names[name])
            calls, at = by_kind.get(kind, []), used.get(kind, 0)
            found.append(calls[at][1] if at < len(calls) else Collective(kind=kind))
            used[kind] = at + 1
        return found


def _leaves(start: FloatArray, end: FloatArray, thread: IntArray) -> IntArray:
    """Find the operators that call no other.

    One that calls others may wait in between, as the backward pass does whose hook reduces
    gradients.
    """
    order: IntArray = np.lexsort((-end, start, thread))
    inside = np.zeros(len(order), dtype=np.bool_)
    if len(order):
        same = thread[order][1:] == thread[order][:-1]
        inside[:-1] = same & (start[order][1:] < end[order][:-1])
    return np.sort(order[~inside])


def _events(
    start: np.ndarray, end: np.ndarray, name: np.ndarray, collective: np.ndarray
) -> DeviceEvents:
    return DeviceEvents(
        start=start.astype(np.float64),
        end=end.astype(np.float64),
        stream=np.full(len(start), -1, dtype=np.int64),
        name=name.astype(np.int64),
        launch=np.full(len(start), np.nan),
        collective=collective.astype(np.int64),
    )
