"""JSON Schema of what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from meshplan.app.encode import SCHEMA_VERSION
from meshplan.cost.step import PARTS
from meshplan.inputs.load.scenario import scenario_schema
from meshplan.inputs.vocabulary import CP_COMMS, FRAMEWORKS, SCHEDULES, SPLITS, unknown
from meshplan.search.sensitivity import Change

__all__ = ["KINDS", "result_schema", "schema"]

Json = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NUMBER: Json = {"type": "number"}
_SECONDS: Json = {"type": "number", "minimum": 0}
_BYTES: Json = {"type": "number", "minimum": 0}
_COUNT: Json = {"type": "integer", "minimum": 0}
_DEGREE: Json = {"type": "integer", "minimum": 1}
_TEXT: Json = {"type": "string"}
_ANY: Json = {}


def schema(request: Mapping[str, Any]) -> Json:
    """Give a schema.

    Args:
        request: ``kind``: ``scenario`` (what goes in) or ``result`` (what ``plan``,
            ``estimate``, ``compare`` and ``explain`` return).

    Raises:
        UserError: ``unknown_name`` for another kind.
    """
    kind = str(request.get("kind") or "result").strip().lower()
    if kind not in KINDS:
        raise unknown("unknown_name", where="kind", value=kind, names=KINDS)
    return KINDS[kind]()


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _map(values: Json) -> Json:
    return {"type": "object", "additionalProperties": values}


def _object(properties: Json, *, optional: tuple[str, ...] = ()) -> Json:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _coded() -> Json:
    return _object({"code": _TEXT, "value": _ANY})


def _plan() -> Json:
    degrees = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch")
    # what follows from them is 0 in an example of a plan whose numbers do not divide
    derived = ("dp", "dp_shard", "num_micro_batches")
    return _object(
        {
            "framework": {"enum": list(FRAMEWORKS)},
            **dict.fromkeys(degrees, _DEGREE),
            **dict.fromkeys(derived, _COUNT),
            "sp": {"type": "boolean"},
            "schedule": {"enum": list(SCHEDULES)},
            "cp_comm": {"enum": list(CP_COMMS)},
            "zero": {"type": "integer", "minimum": 0, "maximum": 3},
            "recompute": _TEXT,
            "recompute_layers": _COUNT,
            "offload": _TEXT,
            "offload_layers": _COUNT,
            "split": {"enum": list(SPLITS)},
            "stage_layers": _list(_COUNT),
        }
    )


def _memory() -> Json:
    term = _object({"code": _TEXT, "bytes": _BYTES, "allowance": {"type": "boolean"}})
    term["properties"]["numbers"] = _map(_NUMBER)
    term["required"].append("numbers")
    stage = _object(
        {
            "stage": _COUNT,
            "num_layers": _COUNT,
            "peak_bytes": _BYTES,
            "peak_event": _TEXT,
            "host_bytes": _BYTES,
            "terms": _list(term),
            "events": _map(_BYTES),
        }
    )
    return _object(
        {
            "peak_bytes": _BYTES,
            "usable_bytes": _BYTES,
            "band": _object({"low_bytes": _BYTES, "high_bytes": _BYTES}),
            "headroom_bytes": _NUMBER,
            "capacity_bytes": _BYTES,
            "verdict": {"enum": ["fits", "tight", "oom"]},
            "worst_stage": _COUNT,
            "host_bytes": _BYTES,
            "stages": _list(stage),
        }
    )


def _entry() -> Json:
    run = _object(
        {
            "num_steps": _NUMBER,
            "days": _NUMBER,
            "gpu_hours": _NUMBER,
            "cost_usd": _or_null(_NUMBER),
            "meets_deadline": _or_null({"type": "boolean"}),
        }
    )
    return _object(
        {
            "rank": _DEGREE,
            "plan": {"$ref": "#/$defs/plan"},
            "num_gpus": _DEGREE,
            "step_time_s": _SECONDS,
            "band": _object({"low_s": _SECONDS, "high_s": _SECONDS}),
            "time": _object(dict.fromkeys(PARTS, _SECONDS)),
            "tokens_per_s": _NUMBER,
            "tokens_per_s_per_gpu": _NUMBER,
            "mfu": _NUMBER,
            "mfu_causal": _NUMBER,
            "hfu": _NUMBER,
            "run": _or_null(run),
            "days": _or_null(_NUMBER),
            "gpu_hours": _or_null(_NUMBER),
            "cost_usd": _or_null(_NUMBER),
            "memory": {"$ref": "#/$defs/memory"},
            "num_variants": _DEGREE,
        }
    )


def _searched() -> Json:
    counts = ("candidates", "legal", "fits", "tight", "oom", "evaluated", "exact")
    return _object(
        {
            **{f"num_{name}": _COUNT for name in counts},
            "evaluations_per_s": _NUMBER,
            "elapsed_s": _SECONDS,
        }
    )


def _plan_only() -> Json:
    """What only ``plan`` returns."""
    flip = _object(
        {
            "change": {"enum": list(get_args(Change))},
            "factor": _NUMBER,
            "before": _NUMBER,
            "after": _NUMBER,
            "rank": _or_null(_DEGREE),
            "plan": _or_null({"$ref": "#/$defs/plan"}),
            "gain": _or_null(_NUMBER),
        }
    )
    runner_up = _object(
        {
            "rank": _DEGREE,
            "decided_by": _TEXT,
            "slower_fraction": _NUMBER,
            "slower_s": _NUMBER,
            "differences": _object(dict.fromkeys(PARTS, _NUMBER)),
        }
    )
    size = _object(
        {
            "num_gpus": _DEGREE,
            "fits": {"type": "boolean"},
            "value_s": _or_null(_SECONDS),
            "days": _or_null(_NUMBER),
        }
    )
    return {
        "runner_up": _or_null(runner_up),
        "flips": _list(flip),
        "closest": _or_null({"$ref": "#/$defs/entry"}),
        "rejected": _map(_COUNT),
        "rejected_examples": _map({"$ref": "#/$defs/plan"}),
        "sizes": _list(size),
        "searched": _searched(),
    }


def _explain_only() -> Json:
    """What only ``explain`` returns."""
    value = _object(
        {"symbol": _TEXT, "value": _NUMBER, "unit": _TEXT, "kind": _TEXT, "source": _TEXT}
    )
    formula = _object(
        {
            "code": _TEXT,
            "group": _TEXT,
            "expression": _TEXT,
            "values": _list(value),
            "result": _NUMBER,
            "unit": _TEXT,
            "source": _TEXT,
            "subject": {"type": "object"},
            "substituted": _TEXT,
        }
    )
    constant = _object(
        {
            "area": _TEXT,
            "name": _TEXT,
            "value": _NUMBER,
            "unit": _TEXT,
            "kind": _TEXT,
            "source": _TEXT,
        }
    )
    return {"formulas": _list(formula), "constants": _list(constant)}


def result_schema() -> Json:
    """Schema of the results of ``plan``, ``estimate``, ``compare`` and ``explain``."""
    reason = _object(
        {
            "code": _TEXT,
            "topic": {"enum": ["memory", "communication", "degrees"]},
            "numbers": {"type": "object"},
        }
    )
    remedy = _object(
        {
            "kind": _TEXT,
            "before": _ANY,
            "after": _ANY,
            "plan": {"$ref": "#/$defs/plan"},
            "peak_bytes": _BYTES,
            "usable_bytes": _BYTES,
            "step_time_s": _SECONDS,
        }
    )
    head = {
        "schema_version": {"const": SCHEMA_VERSION},
        "meshplan_version": _TEXT,
        "verb": {"enum": ["plan", "estimate", "compare", "explain"]},
        "scenario": {"type": "object"},
        "assumptions": _list(_coded()),
        "notes": _list(_coded()),
        "plans": _list({"$ref": "#/$defs/entry"}),
    }
    some = {
        "reasons": _list(reason),
        "remedies": _list(remedy),
        **_plan_only(),
        **_explain_only(),
        "best": _DEGREE,
        "differences": _list(_object(dict.fromkeys(PARTS, _NUMBER))),
    }
    return {
        "$schema": _DIALECT,
        "title": "meshplan result",
        **_object({**head, **some}, optional=tuple(some)),
        "$defs": {"plan": _plan(), "memory": _memory(), "entry": _entry()},
    }


KINDS = {"scenario": scenario_schema, "result": result_schema}
"""What a schema can be asked for."""
