"""Pieces that the schemas of several results share."""

from __future__ import annotations

from typing import Any

from meshplan.app.encode import SCHEMA_VERSION
from meshplan.cost.step import PARTS
from meshplan.inputs.vocabulary import CP_COMMS, FRAMEWORKS, SCHEDULES, SPLITS

__all__ = [
    "ANY",
    "BYTES",
    "COUNT",
    "DEGREE",
    "ENTRY",
    "FLAG",
    "NUMBER",
    "OPEN",
    "PLAN",
    "SECONDS",
    "TEXT",
    "coded",
    "document_schema",
    "list_of",
    "map_of",
    "object_of",
    "one_of",
    "or_null",
    "remedy",
]

Json = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
NUMBER: Json = {"type": "number"}
SECONDS: Json = {"type": "number", "minimum": 0}
BYTES: Json = {"type": "number", "minimum": 0}
COUNT: Json = {"type": "integer", "minimum": 0}
DEGREE: Json = {"type": "integer", "minimum": 1}
TEXT: Json = {"type": "string"}
FLAG: Json = {"type": "boolean"}
ANY: Json = {}
OPEN: Json = {"type": "object"}
"""An object whose names belong to someone else, such as a scenario file."""
PLAN: Json = {"$ref": "#/$defs/plan"}
ENTRY: Json = {"$ref": "#/$defs/entry"}


def or_null(schema: Json) -> Json:
    """A value, or null where there is none."""
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(items: Json) -> Json:
    """A list of like items."""
    return {"type": "array", "items": items}


def map_of(values: Json) -> Json:
    """An object with any names and like values."""
    return {"type": "object", "additionalProperties": values}


def one_of(*words: str) -> Json:
    """One of a few words."""
    return {"enum": list(words)}


def object_of(properties: Json, *, optional: tuple[str, ...] = ()) -> Json:
    """An object with just these names, all there but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def coded(*more: str) -> Json:
    """A ``code`` with its ``value``, or with what else it says."""
    return object_of({"code": TEXT, **(dict.fromkeys(more, ANY) if more else {"value": ANY})})


def document_schema(
    verbs: tuple[str, ...], properties: Json, *, optional: tuple[str, ...] = (), title: str
) -> Json:
    """Schema of a whole result, with the head that every result has."""
    head: Json = {
        "schema_version": {"const": SCHEMA_VERSION},
        "meshplan_version": TEXT,
        "verb": one_of(*verbs),
    }
    return {
        "$schema": _DIALECT,
        "title": title,
        **object_of({**head, **properties}, optional=optional),
        "$defs": {"plan": _plan(), "memory": _memory(), "entry": _entry()},
    }


def remedy() -> Json:
    """One way to make something fit."""
    return object_of(
        {
            "kind": TEXT,
            "before": ANY,
            "after": ANY,
            "plan": PLAN,
            "peak_bytes": BYTES,
            "usable_bytes": BYTES,
            "step_time_s": SECONDS,
        }
    )


def _plan() -> Json:
    degrees = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch")
    # what follows from them is 0 in an example of a plan whose numbers do not divide
    derived = ("dp", "dp_shard", "num_micro_batches")
    return object_of(
        {
            "framework": {"enum": list(FRAMEWORKS)},
            **dict.fromkeys(degrees, DEGREE),
            **dict.fromkeys(derived, COUNT),
            "sp": FLAG,
            "schedule": {"enum": list(SCHEDULES)},
            "cp_comm": {"enum": list(CP_COMMS)},
            "zero": {"type": "integer", "minimum": 0, "maximum": 3},
            "recompute": TEXT,
            "recompute_layers": COUNT,
            "offload": TEXT,
            "offload_layers": COUNT,
            "split": {"enum": list(SPLITS)},
            "stage_layers": list_of(COUNT),
        }
    )


def _memory() -> Json:
    term = object_of({"code": TEXT, "bytes": BYTES, "allowance": FLAG})
    term["properties"]["numbers"] = map_of(NUMBER)
    term["required"].append("numbers")
    stage = object_of(
        {
            "stage": COUNT,
            "num_layers": COUNT,
            "peak_bytes": BYTES,
            "peak_event": TEXT,
            "host_bytes": BYTES,
            "terms": list_of(term),
            "events": map_of(BYTES),
        }
    )
    return object_of(
        {
            "peak_bytes": BYTES,
            "usable_bytes": BYTES,
            "band": object_of({"low_bytes": BYTES, "high_bytes": BYTES}),
            "headroom_bytes": NUMBER,
            "capacity_bytes": BYTES,
            "verdict": {"enum": ["fits", "tight", "oom"]},
            "worst_stage": COUNT,
            "host_bytes": BYTES,
            "host_capacity_bytes": BYTES,
            "stages": list_of(stage),
        }
    )


def _entry() -> Json:
    run = object_of(
        {
            "num_steps": NUMBER,
            "days": NUMBER,
            "gpu_hours": NUMBER,
            "cost_usd": or_null(NUMBER),
            "meets_deadline": or_null(FLAG),
            "gpus_in_time": or_null(COUNT),
        }
    )
    return object_of(
        {
            "rank": DEGREE,
            "plan": PLAN,
            "options": list_of(TEXT),
            "num_gpus": DEGREE,
            "step_time_s": SECONDS,
            "band": object_of({"low_s": SECONDS, "high_s": SECONDS}),
            "time": object_of(dict.fromkeys(PARTS, SECONDS)),
            "tokens_per_s": NUMBER,
            "tokens_per_s_per_gpu": NUMBER,
            "mfu": NUMBER,
            "mfu_causal": NUMBER,
            "hfu": NUMBER,
            "run": or_null(run),
            "days": or_null(NUMBER),
            "gpu_hours": or_null(NUMBER),
            "cost_usd": or_null(NUMBER),
            "memory": {"$ref": "#/$defs/memory"},
            "num_variants": DEGREE,
        }
    )
