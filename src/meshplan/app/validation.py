"""Predicted against measured runs, as a result document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.app.document import document
from meshplan.app.tables import models_for, read_runs
from meshplan.errors import ProblemList
from meshplan.inputs.load.fields import FLAG, TEXT, Field, list_of, read_fields
from meshplan.inputs.load.profile import cluster_profile
from meshplan.validate import run

__all__ = ["validate"]

_FIELDS = (
    Field(name="runs", kind=TEXT, required=True),
    Field(name="models", kind=TEXT),
    Field(name="sources", kind=list_of(TEXT)),
    Field(name="details", kind=FLAG),
    Field(name="profile", kind=TEXT),
)


def validate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Predict the runs of a table and say how far off each source is.

    Args:
        request: ``runs`` and, where its rows name models, ``models`` (paths of tables),
            ``sources`` (all when not given), ``details`` (one entry per row) and ``profile``
            (a cluster profile to predict with, instead of that of each source).
    """
    problems = ProblemList()
    given = read_fields(request, _FIELDS, where="", problems=problems)
    problems.raise_if_any()
    profile = given.get("profile", "")
    if profile:
        cluster_profile(profile)
    rows = read_runs(given["runs"])
    found = run(
        rows,
        models_for(rows, given.get("models")),
        given.get("sources", ()),
        details=given.get("details", False),
        profile=profile,
    )
    return {**document("validate"), **found}
