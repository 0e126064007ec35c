"""Read the SQLite export of Nsight Systems (``nsys export --type sqlite``).

One file holds all devices that one process tree used, each becomes a rank. Times are nanoseconds
there; columns that a version of the exporter does not write are done without.

Reference: Nsight Systems user guide, section "Exporter SQLite schema reference".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np

from meshplan.diagnose.columns import (
    NO_COLLECTIVE,
    Collective,
    DeviceEvents,
    HostKind,
    HostRanges,
    RankTrace,
    Window,
)
from meshplan.diagnose.host_rows import HostRows
from meshplan.diagnose.names import communicates, host_kind, kind_of, step_name
from meshplan.diagnose.steps import choose_steps
from meshplan.diagnose.values import shown_name
from meshplan.errors import UserError

__all__ = ["read_nsight"]

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_ROWS = 1 << 16
_PUSH_POP, _START_END = 59, 60
"""Kinds of NVTX events that are ranges (schema reference, ENUM_NSYS_EVENT_TYPE)."""


def read_nsight(path: Path) -> Iterator[RankTrace]:
    """Yield the trace of each device of an export.

    Raises:
        UserError: ``nsight.unreadable`` when the file is no whole database, ``nsight.no_kernels``
            when it holds no kernels.
    """
    where = shown_name(path)
    try:
        with _connect(path) as database:
            yield from _Export(database, where=where).traces()
    except sqlite3.Error as error:
        raise UserError.of("nsight.unreadable", where=where, value=str(error)) from error


class _connect:  # noqa: N801
    """A database opened for reading alone, closed at the end."""

    def __init__(self, path: Path) -> None:
        name = quote(str(path.resolve()), safe="/")
        self._connection = sqlite3.connect(f"file:{name}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class _Export:
    """One export."""

    def __init__(self, database: sqlite3.Connection, *, where: str) -> None:
        self._database = database
        self._where = where
        rows = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._tables = {name for (name,) in rows}
        if _KERNELS not in self._tables:
            raise UserError.of("nsight.no_kernels", where=where)

    def traces(self) -> Iterator[RankTrace]:
        """One trace for each process and device, in order."""
        pid = "globalPid" if "globalPid" in self._columns(_KERNELS) else "0"
        owners = self._database.execute(
            f"SELECT DISTINCT {pid}, deviceId FROM {_KERNELS} WHERE {_whole('deviceId', pid)} "
            "ORDER BY 2, 1"
        ).fetchall()
        strings: dict[int, str] = {}
        if "StringIds" in self._tables:
            query = "SELECT id, value FROM StringIds WHERE typeof(value) = 'text'"
            strings = dict(self._database.execute(query))
        for number, (owner, device) in enumerate(owners):
            rank = None if len(owners) == 1 else number
            yield self._trace(owner, device, strings=strings, pid=pid, rank=rank)

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}

    def _trace(
        self, owner: int, device: int, *, strings: dict[int, str], pid: str, rank: int | None
    ) -> RankTrace:
        launches = self._launches(owner, pid)
        names: dict[str, int] = {}
        kernels = self._events(
            _KERNELS, self._name_column(), owner, device, strings, names, launches, pid
        )
        kinds = np.array([communicates(name) for name in names], dtype=np.bool_)
        talks = kinds[kernels.name] if len(kernels) else np.empty(0, dtype=np.bool_)
        copies = [
            self._events(table, None, owner, device, strings, names, launches, pid)
            for table in _COPIES
            if table in self._tables
        ]
        host, steps, marks = self._ranges(owner, strings)
        collectives: dict[Collective, int] = {}
        communication = _chosen(kernels, talks)
        _name_collectives(communication, marks, collectives)
        all_copies = _joined(copies)
        bad = sum(int((e.end < e.start).sum()) for e in (kernels, all_copies))
        return RankTrace(
            file=self._where,
            rank=rank,
            world_size=None,
            device=self._device_name(device),
            compute=_chosen(kernels, ~talks),
            communication=communication,
            copies=_chosen(all_copies, all_copies.end >= all_copies.start),
            steps=choose_steps(steps),
            names=tuple(names),
            collectives=tuple(collectives),
            host=host,
            num_events=len(kernels) + len(all_copies) + len(host) + len(steps),
            num_bad_times=bad,
        )

    def _name_column(self) -> str:
        columns = self._columns(_KERNELS)
        for name in ("demangledName", "shortName", "mangledName"):
            if name in columns:
                return name
        raise UserError.of("nsight.unreadable", where=self._where, value="no names of kernels")

    def _launches(self, owner: int, pid: str) -> dict[int, float]:
        """Start of the host call by correlation number [us]."""
        if _RUNTIME not in self._tables:
            return {}
        query = f"SELECT correlationId, start FROM {_RUNTIME} WHERE "
        query += _whole("correlationId", "start")
        if pid != "0" and "globalTid" in self._columns(_RUNTIME):
            # the upper bits of a thread are its process
            query += f" AND (globalTid & -16777216) = ({int(owner)} & -16777216)"
        return {int(c): start / 1e3 for c, start in self._database.execute(query) if c}

    def _events(
        self,
        table: str,
        name_column: str | None,
        owner: int,
        device: int,
        strings: dict[int, str],
        names: dict[str, int],
        launches: dict[int, float],
        pid: str,
    ) -> DeviceEvents:
        """Events of one table that ran on one device."""
        cursor = self._database.execute(*self._query(table, name_column, owner, device, pid))
        parts = []
        while rows := cursor.fetchmany(_ROWS):
            table_of = np.array([row[:3] for row in rows], dtype=np.float64).reshape(-1, 3)
            texts = [
                str(strings.get(row[3], row[3])) if name_column else f"memcpy {row[3]}"
                for row in rows
            ]
            parts.append(
                DeviceEvents(
                    start=table_of[:, 0] / 1e3,
                    end=table_of[:, 1] / 1e3,
                    stream=table_of[:, 2].astype(np.int64),
                    name=np.array([names.setdefault(t, len(names)) for t in texts], dtype=np.int64),
                    launch=np.array([launches.get(row[4] or -1, np.nan) for row in rows]),
                    collective=np.full(len(rows), NO_COLLECTIVE, dtype=np.int64),
                )
            )
        return _joined(parts)

    def _query(
        self, table: str, name_column: str | None, owner: int, device: int, pid: str
    ) -> tuple[str, list[int]]:
        """Query for the events of one table, and its arguments."""
        columns = self._columns(table)
        wanted = [
            '"start"',
            '"end"',
            _number("streamId") if "streamId" in columns else "-1",
            name_column or ("copyKind" if "copyKind" in columns else "-1"),
            _number("correlationId") if "correlationId" in columns else "-1",
        ]
        query = f"SELECT {', '.join(wanted)} FROM {table} WHERE deviceId = ?"
        query += f" AND {_whole('start', 'end')}"
        arguments: list[int] = [device]
        if pid != "0" and pid in columns:
            query += f" AND {pid} = ?"
            arguments.append(owner)
        return query + ' ORDER BY "start"', arguments

    def _ranges(
        self, owner: int, strings: dict[int, str]
    ) -> tuple[HostRanges, list[Window], list[tuple[float, float, str]]]:
        """What NVTX ranges say: phases, steps, and collectives."""
        host, steps, marks = HostRows(), list[Window](), list[tuple[float, float, str]]()
        if "NVTX_EVENTS" not in self._tables:
            return host.finish(), steps, marks
        columns = self._columns("NVTX_EVENTS")
        text_id = "textId" if "textId" in columns else "NULL"
        query = f'SELECT "start", "end", text, {text_id} FROM NVTX_EVENTS '
        query += f"WHERE {_whole('start', 'end')}"
        if "eventType" in columns:
            query += f" AND eventType IN ({_PUSH_POP}, {_START_END})"
        if "globalTid" in columns and owner:
            query += f" AND (globalTid & -16777216) = ({int(owner)} & -16777216)"
        for start, end, text, number in self._database.execute(query):
            name = text or strings.get(number, "")
            if not isinstance(name, str) or not name or end <= start:
                continue
            kind: HostKind | None = host_kind(name)
            if step_name(name):
                steps.append(Window(name=name, start=start / 1e3, end=end / 1e3))
            elif kind is not None:
                host.add(kind, start / 1e3, end / 1e3)
            elif communicates(name):
                marks.append((start / 1e3, end / 1e3, name))
        return host.finish(), steps, marks

    def _device_name(self, device: int) -> str:
        if "TARGET_INFO_GPU" not in self._tables:
            return ""
        columns = self._columns("TARGET_INFO_GPU")
        key = next((c for c in ("cuDevice", "cudaId", "id") if c in columns), None)
        if key is None or "name" not in columns:
            return ""
        query = f"SELECT name FROM TARGET_INFO_GPU WHERE {key} = ?"
        row = self._database.execute(query, [device]).fetchone()
        return str(row[0]) if row else ""


def _whole(*columns: str) -> str:
    """Condition that some columns of a row hold whole numbers, which nothing makes a table do."""
    quoted = (column if column.isdigit() else f'"{column}"' for column in columns)
    return " AND ".join(f"typeof({column}) = 'integer'" for column in quoted)


def _number(column: str) -> str:
    """A column of small whole numbers; -1 where something else stands."""
    known = f'typeof("{column}") = \'integer\' AND "{column}" BETWEEN 0 AND {2**62}'
    return f'CASE WHEN {known} THEN "{column}" ELSE -1 END'


def _name_collectives(
    events: DeviceEvents,
    marks: list[tuple[float, float, str]],
    collectives: dict[Collective, int],
) -> None:
    """Tell what a kernel does from the NCCL range that launched it."""
    if not marks or not len(events):
        return
    marks.sort()
    start, end = (np.array([m[i] for m in marks]) for i in (0, 1))
    at = np.searchsorted(start, events.launch, side="right") - 1
    for i in np.flatnonzero((at >= 0) & (events.launch <= end[at])):
        kind = kind_of(marks[at[i]][2])
        if kind != "other":
            events.collective[i] = collectives.setdefault(Collective(kind=kind), len(collectives))


def _chosen(events: DeviceEvents, chosen: np.ndarray) -> DeviceEvents:
    kept = chosen & (events.end >= events.start)
    return DeviceEvents(
        start=events.start[kept],
        end=events.end[kept],
        stream=events.stream[kept],
        name=events.name[kept],
        launch=events.launch[kept],
        collective=events.collective[kept],
    )


def _joined(parts: list[DeviceEvents]) -> DeviceEvents:
    if not parts:
        return DeviceEvents.none()
    names = ("start", "end", "stream", "name", "launch", "collective")
    return DeviceEvents(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})
