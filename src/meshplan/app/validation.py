"""Predicted against measured runs, as a result document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshplan.app.document import document
from meshplan.errors import ProblemList
from meshplan.inputs.load.fields import FLAG, TEXT, Field, list_of, read_fields
from meshplan.validate import run

__all__ = ["validate"]

_FIELDS = (
    Field(name="runs", kind=TEXT, required=True),
    Field(name="models", kind=TEXT),
    Field(name="sources", kind=list_of(TEXT)),
    Field(name="details", kind=FLAG),
)


def validate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Predict the runs of a table and say how far off each source is.

    Args:
        request: ``runs`` and, where its rows name models, ``models`` (paths of tables),
            ``sources`` (all when not given) and ``details`` (one entry per row).
    """
    problems = ProblemList()
    given = read_fields(request, _FIELDS, where="", problems=problems)
    problems.raise_if_any()
    found = run(
        Path(given["runs"]),
        Path(given["models"]) if "models" in given else None,
        given.get("sources", ()),
        details=given.get("details", False),
    )
    return {**document("validate"), **found}
