"""JSON Schema of results that are not just lists of plans: emit, check, learn and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshplan.app.schema_measured import comparison_schema, run_schema, timeline_schema
from meshplan.app.schema_parts import (
    ANY,
    BYTES,
    COUNT,
    DEGREE,
    ENTRY,
    FLAG,
    NUMBER,
    OPEN,
    PLAN,
    SECONDS,
    TEXT,
    coded,
    document_schema,
    list_of,
    map_of,
    object_of,
    one_of,
    or_null,
    remedy,
)
from meshplan.cost.step import PARTS
from meshplan.emit.launch import LAUNCHERS
from meshplan.emit.targets import TARGETS
from meshplan.inputs.vocabulary import FRAMEWORKS

__all__ = ["VERB_SCHEMAS"]

Json = dict[str, Any]

_ABOUT_A_PLAN: Json = {
    "scenario": OPEN,
    "assumptions": list_of(coded()),
    "notes": list_of(coded()),
}
_ERRORS: Json = object_of(dict.fromkeys(("mape", "median_ape", "p90_ape", "bias"), or_null(NUMBER)))


def _emit() -> Json:
    file = object_of({"name": TEXT, "text": TEXT, "executable": FLAG})
    return document_schema(
        ("emit",),
        {
            **_ABOUT_A_PLAN,
            "target": one_of(*TARGETS),
            "target_version": TEXT,
            "verified": FLAG,
            "launcher": one_of(*LAUNCHERS),
            "plans": list_of(ENTRY),
            "files": list_of(file),
        },
        title="meshplan emit",
    )


def _check() -> Json:
    said = {"name": TEXT, "where": TEXT, "option": TEXT}
    problem = object_of(
        {
            "code": TEXT,
            "where": TEXT,
            "field": TEXT,
            "value": ANY,
            "allowed": ANY,
            "numbers": OPEN,
            "source": TEXT,
            "version": TEXT,
        }
    )
    change = object_of(
        {
            "knob": TEXT,
            "before": ANY,
            "after": ANY,
            "gain_fraction": NUMBER,
            "step_time_s": SECONDS,
            "peak_bytes": BYTES,
            "plan": PLAN,
        }
    )
    legal_only: Json = {
        "findings": list_of(object_of({"code": TEXT, "numbers": OPEN})),
        "changes": list_of(change),
        "remedies": list_of(remedy()),
        "best": or_null(ENTRY),
    }
    return document_schema(
        ("check",),
        {
            **_ABOUT_A_PLAN,
            "files": list_of(TEXT),
            "framework": one_of(*FRAMEWORKS),
            "config": TEXT,
            "settings": list_of(object_of({**said, "value": ANY})),
            "unknown": list_of(object_of(said)),
            "assumed": list_of(TEXT),
            "legal": FLAG,
            "plan": PLAN,
            "problems": list_of(problem),
            "nearest": or_null(ENTRY),
            "plans": list_of(ENTRY),
            **legal_only,
        },
        optional=tuple(legal_only),
        title="meshplan check",
    )


def _learn() -> Json:
    chapter = object_of(
        {"id": TEXT, "title": TEXT, "summary": TEXT, "order": COUNT, "mechanism": or_null(TEXT)}
    )
    block = object_of({"kind": TEXT})
    block["additionalProperties"] = True  # each kind of block has names of its own
    properties: Json = {
        "chapters": list_of(chapter),
        "chapter": chapter,
        "blocks": list_of(block),
    }
    return document_schema(
        ("learn",), properties, optional=tuple(properties), title="meshplan learn"
    )


def _validate() -> Json:
    group = object_of(
        {
            "source_id": TEXT,
            "target": TEXT,
            "num_rows": COUNT,
            "num_predicted": COUNT,
            **_ERRORS["properties"],
            "coverage": or_null(NUMBER),
        },
        optional=("coverage",),
    )
    counts = ("num_fit", "num_oom", "false_oom", "missed_oom")
    verdicts = object_of({"source_id": TEXT, **dict.fromkeys(counts, COUNT)})
    sweep = object_of(
        {
            "source_id": TEXT,
            "sweep_id": TEXT,
            "attention_impl": TEXT,
            "num_layouts": COUNT,
            "regret": NUMBER,
            "regret_fitting": NUMBER,
            "spearman": or_null(NUMBER),
        }
    )
    row = object_of(
        {
            "row_id": TEXT,
            "source_id": TEXT,
            "group": TEXT,
            "step_time_s": SECONDS,
            "measured_step_time_s": or_null(SECONDS),
            "error": or_null(NUMBER),
            "low_s": SECONDS,
            "high_s": SECONDS,
            "peak_bytes": BYTES,
            "measured_bytes": or_null(BYTES),
            "parts": object_of(dict.fromkeys(PARTS, SECONDS)),
        }
    )
    assumption = object_of(
        {
            **dict.fromkeys(("source_id", "name", "reason"), TEXT),
            "value": ANY,
            "when": map_of(TEXT),
        }
    )
    return document_schema(
        ("validate",),
        {
            "groups": list_of(group),
            "sweeps": list_of(sweep),
            "feasibility": list_of(verdicts),
            "skipped": map_of(COUNT),
            "skipped_by_source": list_of(
                object_of({"source_id": TEXT, "reason": TEXT, "num_rows": COUNT})
            ),
            "assumptions": list_of(assumption),
            "rows": list_of(row),
        },
        optional=("rows",),
        title="meshplan validate",
    )


def _calibrate() -> Json:
    run = object_of(
        {
            "row_id": TEXT,
            "framework": TEXT,
            "measured_step_time_s": SECONDS,
            "counted": FLAG,
            "before": NUMBER,
            "after": NUMBER,
        }
    )
    return document_schema(
        ("calibrate",),
        {
            "cluster": TEXT,
            "runs": list_of(run),
            "skipped_by_source": list_of(
                object_of({"source_id": TEXT, "reason": TEXT, "num_rows": COUNT})
            ),
            "before": _ERRORS,
            "after": _ERRORS,
            "profile": OPEN,
        },
        title="meshplan calibrate",
    )


def _inspect() -> Json:
    part = or_null(OPEN)
    run = object_of(
        {
            "first": COUNT,
            "count": DEGREE,
            "mixer": part,
            "second_mixer": part,
            "ffn": part,
            "num_norms": COUNT,
            "extra_parameters": COUNT,
            "weight_set": or_null(COUNT),
        }
    )
    return document_schema(
        ("inspect",),
        {
            "model": OPEN,
            "parameters": map_of(COUNT),
            "outside": map_of(COUNT),
            "layers": list_of(run),
            "mtp_layers": list_of(run),
            "notes": list_of(coded()),
        },
        title="meshplan inspect",
    )


def _list() -> Json:
    return document_schema(("list",), {"kind": TEXT, "items": list_of(OPEN)}, title="meshplan list")


def _quick() -> Json:
    degrees = object_of(dict.fromkeys(("dp", "tp", "pp"), DEGREE))
    candidate = object_of({"degrees": degrees, "memory_gb": NUMBER, "score": NUMBER, "fits": FLAG})
    placed = object_of(
        {"dimension": TEXT, "frequency": TEXT, "size": DEGREE, "crosses_nodes": FLAG}
    )
    found = {
        "memory_gb": NUMBER,
        "score": NUMBER,
        "placement": list_of(placed),
        "problem": coded("numbers"),
    }
    rule = object_of(
        {
            "tier": TEXT,
            "strategy": TEXT,
            "bytes_per_param": NUMBER,
            "gradient_bytes": BYTES,
            "candidates": list_of(candidate),
            "degrees": or_null(degrees),
            **found,
        },
        optional=tuple(found),
    )
    beside = object_of(
        {"code": TEXT, "unit": TEXT, **dict.fromkeys(("rule", "same", "best"), or_null(NUMBER))}
    )
    return document_schema(
        ("quick",),
        {
            "given": OPEN,
            "stand_in": OPEN,
            "rule": rule,
            "plans": list_of(ENTRY),
            "more_gpus": or_null(DEGREE),
            "rule_plan": or_null(ENTRY),
            "beside": list_of(beside),
            "differences": list_of(coded("numbers")),
        },
        title="meshplan quick",
    )


def _diagnose() -> Json:
    change = object_of({"field": TEXT, "option": TEXT, "before": ANY, "after": ANY})
    action = object_of({"code": TEXT, "numbers": OPEN, "changes": list_of(change)})
    place = object_of({"rank": COUNT, "start_us": NUMBER, "end_us": NUMBER})
    finding = object_of(
        {
            "code": TEXT,
            "cost_share": or_null(NUMBER),
            "numbers": OPEN,
            "ranks": list_of(COUNT),
            "kernels": list_of(TEXT),
            "places": list_of(place),
            "action": or_null(action),
            "gain": or_null(object_of({"share": NUMBER, "basis": TEXT})),
            "confidence": TEXT,
            "reason": TEXT,
            "cost_reason": TEXT,
            "cost_s": or_null(NUMBER),
            "form": TEXT,
            "details": list_of(TEXT),
            "severity": TEXT,
        }
    )
    looked = object_of({"code": TEXT, "state": TEXT, "reason": TEXT})
    asked: Json = {
        "allocation": OPEN,
        "timeline": or_null(timeline_schema()),
        "calibration": or_null(OPEN),
    }
    measured: Json = {
        "paths": list_of(TEXT),
        "run": run_schema(),
        "findings": list_of(finding),
        "checks": list_of(looked),
        "rule_of_thumb": or_null(OPEN),
        "comparison": or_null(comparison_schema()),
    }
    return document_schema(
        ("diagnose",),
        {
            **_ABOUT_A_PLAN,
            "plan": or_null(PLAN),
            "cluster": or_null(TEXT),
            **measured,
            **asked,
        },
        optional=(*_ABOUT_A_PLAN, *measured, *asked),
        title="meshplan diagnose",
    )


VERB_SCHEMAS: dict[str, Callable[[], Json]] = {
    "emit": _emit,
    "check": _check,
    "learn": _learn,
    "validate": _validate,
    "calibrate": _calibrate,
    "diagnose": _diagnose,
    "inspect": _inspect,
    "list": _list,
    "quick": _quick,
}
"""Schemas by verb; a verb that is added puts its own here."""
