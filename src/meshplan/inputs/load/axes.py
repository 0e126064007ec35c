"""Axes that a scenario pins: ``tp: [1, 2, 4]``, ``recompute: [none, full:4]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.load.fields import FLAG, Field, Kind, choice, count, list_of
from meshplan.inputs.vocabulary import AXES, FRAMEWORKS, Axis, canonical, unknown

__all__ = ["AXES_FIELDS", "PLAN_FIELDS"]


def _names(axis: Axis) -> Kind:
    """Names joined by ``+``, some of which carry a count, as ``full:4``."""
    table: Mapping[str, tuple[str, ...]] = {**(axis.names or {}), **{e: () for e in axis.extra}}

    def read(value: Any, where: str) -> str:
        # YAML reads a bare "no" or "off" as text here, but a caller may hand over a bool
        text = "none" if value is False else value
        if not isinstance(text, str):
            raise unknown("unknown_name", where=where, value=value, names=table)
        head, colon, tail = text.partition(":")
        found = []
        for part in head.split("+"):
            name = canonical(table, part)
            if name is None:
                raise unknown("unknown_name", where=where, value=part.strip(), names=table)
            found.append(name)
        if len(found) > 1 and any(n in ("none", "full", *axis.extra) for n in found):
            raise UserError.of("names_do_not_combine", where=where, value=text)
        # the order of the table, so that a+b and b+a are one value
        joined = "+".join(name for name in table if name in found)
        return joined if not colon else _with_count(axis, joined, tail, where=where, text=text)

    schema = {"type": "string", "examples": list(table)}
    return Kind(read=read, schema=schema)


def _with_count(axis: Axis, joined: str, tail: str, *, where: str, text: str) -> str:
    digits = tail.strip()
    if not axis.suffix or joined != "full" or not digits.isdecimal() or not 0 < int(digits) < 10**6:
        raise UserError.of("bad_recompute_layers", where=where, value=text, allowed=("full:4",))
    return f"{joined}:{int(digits)}"


def _kind(axis: Axis) -> Kind:
    if axis.kind == "flag":
        return FLAG
    if axis.kind == "count":
        return count(least=axis.minimum, most=axis.maximum or 10**9)
    if axis.kind == "name":
        assert axis.names is not None
        return choice(axis.names)
    return _names(axis)


AXES_FIELDS = tuple(Field(name=name, kind=list_of(_kind(axis))) for name, axis in AXES.items())

PLAN_FIELDS = (
    *(Field(name=name, kind=_kind(axis)) for name, axis in AXES.items()),
    Field(name="framework", kind=choice(FRAMEWORKS)),
    Field(name="recompute_layers", kind=count(least=0)),
    Field(name="stage_layers", kind=list_of(count(least=0), least=0, repeats=True)),
)
