"""Schema of what ``diagnose`` measured: the run, its timeline, and the plan beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from meshplan.app.schema_parts import (
    BYTES,
    COUNT,
    FLAG,
    NUMBER,
    SECONDS,
    TEXT,
    list_of,
    map_of,
    object_of,
    one_of,
    or_null,
)
from meshplan.diagnose.compare import Comparison
from meshplan.diagnose.read.logs.records import OutOfMemory
from meshplan.diagnose.read.metrics import GpuMetrics
from meshplan.diagnose.records import TRAFFIC_AXES, Idle, Note, Phase

__all__ = ["comparison_schema", "record_schema", "run_schema", "timeline_schema"]

Json = dict[str, Any]
_PLAIN: Mapping[object, Json] = {bool: FLAG, int: {"type": "integer"}, float: NUMBER, str: TEXT}


def record_schema(kind: Any) -> Json:
    """Schema of a value of some type, as :func:`~meshplan.app.result.jsonable` writes it.

    Args:
        kind: a record, a plain type, or a tuple, mapping, union or choice of such.
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return object_of({f.name: record_schema(hints[f.name]) for f in fields(kind)})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return one_of(*inner)
    if origin in (Union, UnionType):
        found = [record_schema(i) for i in inner if i is not NoneType]
        one = found[0] if len(found) == 1 else {"anyOf": found}
        return or_null(one) if NoneType in inner else one
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return map_of(record_schema(inner[1]))
    assert isinstance(origin, type) and issubclass(origin, Iterable), kind
    return list_of(record_schema(inner[0]))


def comparison_schema() -> Json:
    """A step predicted and measured."""
    return record_schema(Comparison)


def run_schema() -> Json:
    """What was measured of a run."""
    return object_of(
        {
            "num_ranks": COUNT,
            "world_size": or_null(COUNT),
            "device": or_null(TEXT),
            "step_time_s": or_null(SECONDS),
            "parts": map_of(NUMBER),
            "efficiency": or_null(NUMBER),
            "ranks": list_of(_rank()),
            "stages": list_of(_stage()),
            "stage_times_s": list_of(SECONDS),
            "traffic": list_of(_traffic()),
            "logs": list_of(_log()),
            "metrics": list_of(record_schema(GpuMetrics)),
            "notes": list_of(record_schema(Note)),
        }
    )


def timeline_schema() -> Json:
    """Rows of intervals by rank, as columns."""
    columns = {name: list_of(NUMBER) for name in ("start_us", "end_us", "cover")}
    step = object_of({"name": TEXT, "start_us": NUMBER, "end_us": NUMBER})
    rank = {
        "rank": COUNT,
        "file": TEXT,
        "clock_offset_us": NUMBER,
        "aligned": FLAG,
        "num_events": COUNT,
        "steps": list_of(step),
        "lanes": list_of(object_of({"name": TEXT, **columns})),
    }
    return object_of({"origin_us": NUMBER, "ranks": list_of(object_of(rank))})


def _rank() -> Json:
    times = ("start_us", "end_us", "compute_us", "communication_us", "exposed_us")
    step = {
        "name": TEXT,
        "warm_up": FLAG,
        **dict.fromkeys((*times, "copy_us", "idle_us"), NUMBER),
        "idle": record_schema(Idle),
        "phases": list_of(record_schema(Phase)),
    }
    return object_of(
        {
            "rank": COUNT,
            "file": TEXT,
            "rank_basis": one_of("metadata", "file_name", "order"),
            "on_host": FLAG,
            "clock_offset_us": or_null(NUMBER),
            "step_time_s": or_null(SECONDS),
            "parts": map_of(NUMBER),
            "steps": list_of(object_of(step)),
        }
    )


def _stage() -> Json:
    return object_of(
        {
            "stage": COUNT,
            "ranks": list_of(COUNT),
            "compute_s": SECONDS,
            "bubble_s": SECONDS,
            "bubble_fraction": or_null(NUMBER),
        }
    )


def _traffic() -> Json:
    return object_of(
        {
            "axis": one_of(*TRAFFIC_AXES),
            "kind": TEXT,
            "group_size": COUNT,
            "basis": TEXT,
            **dict.fromkeys(("count", "total_s", "exposed_s", "wait_s"), NUMBER),
            "bus_bytes_per_s": or_null(NUMBER),
        }
    )


def _log() -> Json:
    return object_of(
        {
            "file": TEXT,
            "framework": TEXT,
            "num_steps": COUNT,
            "step_time_s": or_null(SECONDS),
            **dict.fromkeys(("tokens_per_s_per_gpu", "flop_per_s_per_gpu", "mfu"), or_null(NUMBER)),
            "timers_s": map_of(SECONDS),
            "device": TEXT,
            "precision": TEXT,
            "peak_flop_per_s": or_null(NUMBER),
            **dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes"), or_null(BYTES)),
            "out_of_memory": or_null(record_schema(OutOfMemory)),
            "settings": map_of(COUNT),
        }
    )
