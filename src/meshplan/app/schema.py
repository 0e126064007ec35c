"""JSON Schema of what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from meshplan.app.schema_parts import (
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
    or_null,
    remedy,
)
from meshplan.app.schema_verbs import VERB_SCHEMAS
from meshplan.cost.step import PARTS
from meshplan.inputs.load.scenario import scenario_schema
from meshplan.inputs.vocabulary import unknown
from meshplan.search.sensitivity import Change

__all__ = ["KINDS", "result_schema", "schema"]

Json = dict[str, Any]


def schema(request: Mapping[str, Any]) -> Json:
    """Give a schema.

    Args:
        request: ``kind``: ``scenario`` (what goes in), ``result`` (what ``plan``, ``estimate``,
            ``compare`` and ``explain`` return) or another verb (what that returns).

    Raises:
        UserError: ``unknown_name`` for another kind.
    """
    kind = str(request.get("kind") or "result").strip().lower()
    if kind not in KINDS:
        raise unknown("unknown_name", where="kind", value=kind, names=KINDS)
    return KINDS[kind]()


def _searched() -> Json:
    counts = ("candidates", "legal", "fits", "tight", "oom", "evaluated", "exact")
    return object_of(
        {
            **{f"num_{name}": COUNT for name in counts},
            "evaluations_per_s": NUMBER,
            "elapsed_s": SECONDS,
        }
    )


def _plan_only() -> Json:
    """What only ``plan`` returns."""
    flip = object_of(
        {
            "change": {"enum": list(get_args(Change))},
            "factor": NUMBER,
            "before": NUMBER,
            "after": NUMBER,
            "rank": or_null(DEGREE),
            "plan": or_null(PLAN),
            "gain": or_null(NUMBER),
        }
    )
    runner_up = object_of(
        {
            "rank": DEGREE,
            "decided_by": TEXT,
            "slower_fraction": NUMBER,
            "slower_s": NUMBER,
            "differences": object_of(dict.fromkeys(PARTS, NUMBER)),
        }
    )
    size = object_of(
        {
            "num_gpus": DEGREE,
            "fits": FLAG,
            "value_s": or_null(SECONDS),
            "days": or_null(NUMBER),
        }
    )
    return {
        "runner_up": or_null(runner_up),
        "flips": list_of(flip),
        "closest": or_null(ENTRY),
        "rejected": map_of(COUNT),
        "rejected_examples": map_of(PLAN),
        "sizes": list_of(size),
        "searched": _searched(),
    }


def _switch() -> Json:
    """A setting that ``plan`` and ``estimate`` find worth turning on."""
    switched = object_of(
        {
            "plan": PLAN,
            "step_time_s": SECONDS,
            "gain": NUMBER,
            "peak_bytes": NUMBER,
            "saved_bytes": NUMBER,
            "verdict": {"enum": ["fits", "tight", "oom"]},
        }
    )
    return object_of(
        {
            "switch": TEXT,
            "variant": TEXT,
            "flags": list_of(TEXT),
            "cautions": list_of(TEXT),
            "gain": NUMBER,
            "same": or_null(switched),
            "best": or_null(switched),
        }
    )


def _explain_only() -> Json:
    """What only ``explain`` returns."""
    value = object_of({"symbol": TEXT, "value": NUMBER, "unit": TEXT, "kind": TEXT, "source": TEXT})
    formula = object_of(
        {
            "code": TEXT,
            "group": TEXT,
            "expression": TEXT,
            "values": list_of(value),
            "result": NUMBER,
            "unit": TEXT,
            "source": TEXT,
            "subject": {"type": "object"},
            "substituted": TEXT,
        }
    )
    constant = object_of(
        {
            "area": TEXT,
            "name": TEXT,
            "value": NUMBER,
            "unit": TEXT,
            "kind": TEXT,
            "source": TEXT,
        }
    )
    return {"formulas": list_of(formula), "constants": list_of(constant)}


def result_schema() -> Json:
    """Schema of the results of ``plan``, ``estimate``, ``compare`` and ``explain``."""
    reason = object_of(
        {
            "code": TEXT,
            "topic": {"enum": ["memory", "communication", "degrees"]},
            "numbers": {"type": "object"},
        }
    )
    all_have = {
        "scenario": OPEN,
        "assumptions": list_of(coded()),
        "notes": list_of(coded()),
        "plans": list_of(ENTRY),
    }
    some = {
        "reasons": list_of(reason),
        "switches": list_of(_switch()),
        "remedies": list_of(remedy()),
        **_plan_only(),
        **_explain_only(),
        "best": or_null(DEGREE),
        "differences": list_of(object_of(dict.fromkeys(PARTS, NUMBER))),
    }
    return document_schema(
        ("plan", "estimate", "compare", "explain"),
        {**all_have, **some},
        optional=tuple(some),
        title="meshplan result",
    )


KINDS: dict[str, Callable[[], Json]] = {
    "scenario": scenario_schema,
    "result": result_schema,
    **VERB_SCHEMAS,
}
"""What a schema can be asked for: a scenario, the results about plans, and those of each verb."""
