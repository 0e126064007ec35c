"""Reading plain values into records: one table of fields per record.

A table serves three ends: values are read by it with all problems reported at once, keys that it
lacks are refused with the nearest one that it has, and the JSON Schema is printed from it. Values
come from YAML (numbers and text) and from the command line (text alone), so each kind of value
reads both.

pydantic is not used here: importing it takes longer (137 ms, measured) than planning 64 GPUs
may, and its messages would all have to be translated into our codes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.quantity import (
    parse_bandwidth,
    parse_duration,
    parse_flop_rate,
    parse_memory,
    parse_tokens,
)
from meshplan.inputs.vocabulary import canonical, shown, unknown
from meshplan.record import record

__all__ = [
    "BANDWIDTH",
    "DURATION",
    "FLAG",
    "FLOP_RATE",
    "MEMORY",
    "TEXT",
    "TOKENS",
    "Field",
    "Kind",
    "choice",
    "count",
    "list_of",
    "located",
    "number",
    "object_schema",
    "read_fields",
]

_WHOLE = re.compile(r"[+-]?[0-9](?:_?[0-9])*")
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@record
class Kind:
    """One kind of value.

    Attributes:
        read: makes the value from what the user wrote; takes it and its place, raises
            :class:`UserError`.
        schema: its JSON Schema.
    """

    read: Callable[[Any, str], Any]
    schema: Mapping[str, Any]


@record
class Field:
    """One key of a mapping.

    Attributes:
        name: the key.
        kind: what may stand there.
        required: whether it must be given.
        missing: code of the problem when it is not; empty when its reader says so itself.
    """

    name: str
    kind: Kind
    required: bool = False
    missing: str = "missing_key"


def read_fields(
    data: Any, fields: Sequence[Field], *, where: str, problems: ProblemList
) -> dict[str, Any]:
    """Read a mapping by a table of fields.

    Null counts as not given. What is wrong goes to ``problems``; the result holds what could be
    read.
    """
    prefix = f"{where}." if where else ""
    if not isinstance(data, Mapping):
        problems.add("not_a_mapping", where=where, value=shown(data))
        return {}
    known = {field.name: field for field in fields}
    values: dict[str, Any] = {}
    for key, given in data.items():
        place = located(data, key, f"{prefix}{key}")
        field = known.get(key) if isinstance(key, str) else None
        if field is None:
            problems.extend(unknown("unknown_key", where=place, value=str(key), names=known))
        elif given is not None:
            try:
                values[field.name] = field.kind.read(given, place)
            except UserError as error:
                problems.extend(error)
    for field in fields:
        if field.required and field.missing and data.get(field.name) is None:
            problems.add(field.missing, where=f"{prefix}{field.name}")
    return values


def located(data: Mapping[Any, Any], key: Any, place: str) -> str:
    """Put the file and line of a key in front of its place, where they are known."""
    lines: Mapping[Any, int] = getattr(data, "lines", {})
    origin = getattr(data, "origin", "")
    if key not in lines:
        return place
    # the place of a mapping in a mapping names the line of the outer one
    bare = re.sub(rf"^{re.escape(origin)}:[0-9]+: ", "", place)
    return f"{origin}:{lines[key]}: {bare}"


_FEW = 8


def count(*, least: int = 1, most: int = 10**9, example: int = 8) -> Kind:
    """A whole number between two bounds; ``example`` shows how one is written."""

    def read(value: Any, where: str) -> int:
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif _looks_whole(value):
            number = int(value.strip() if isinstance(value, str) else value)
        if most - least < _FEW and (number is None or not least <= number <= most):
            allowed = tuple(map(str, range(least, most + 1)))
            raise UserError.of("count_not_listed", where=where, value=_bare(value), allowed=allowed)
        if number is None or number < least:
            raise UserError.of(
                "bad_count",
                where=where,
                value=_bare(value),
                least=least,
                example=max(least, example),
            )
        if number > most:
            raise UserError.of("number_too_large", where=where, value=shown(value), most=most)
        return number

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Kind(read=read, schema=schema)


def _bare(value: Any) -> str:
    """A value for a sentence that puts no quotes around it: what is empty still shows."""
    return shown(value) if str(value).strip() else f"'{value}'"


def _looks_whole(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, str) and len(value) < 40 and bool(_WHOLE.fullmatch(value.strip()))


def number(*, most: float = 1e18) -> Kind:
    """A finite number above 0."""

    def read(value: Any, where: str) -> float:
        found = _finite(value)
        if found is None or found <= 0:
            raise UserError.of("number_not_positive", where=where, value=_bare(value))
        if found > most:
            raise UserError.of("number_too_large", where=where, value=shown(value), most=most)
        return found

    return Kind(read=read, schema={"type": "number", "exclusiveMinimum": 0, "maximum": most})


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _quantity(
    parse: Callable[[str], float], code: str, example: str, *, bare: bool = False
) -> Kind:
    """Text with a unit; a bare number only where no unit is needed."""

    def read(value: Any, where: str) -> float:
        try:
            found = _finite(value) if bare else None
            if found is None:
                found = parse(value) if isinstance(value, str) else None
        except ValueError:
            found = None
        if found is None or not 0 < found < math.inf:
            raise UserError.of(code, where=where, value=shown(value), example=example)
        return found

    text: dict[str, Any] = {"type": "string", "examples": [example]}
    plain = {"type": "number", "exclusiveMinimum": 0}
    return Kind(read=read, schema={"anyOf": [plain, text]} if bare else text)


BANDWIDTH = _quantity(parse_bandwidth, "bad_bandwidth", "400 Gb/s")
MEMORY = _quantity(parse_memory, "bad_memory", "80 GiB")
DURATION = _quantity(parse_duration, "bad_duration", "5 us")
FLOP_RATE = _quantity(parse_flop_rate, "bad_flop_rate", "989.4 TFLOP/s")
TOKENS = _quantity(parse_tokens, "bad_tokens", "15T", bare=True)


def _read_text(value: Any, where: str) -> str:
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    text = value.strip() if isinstance(value, str) else shown(value)
    if not plain or not text:
        raise UserError.of("not_text", where=where, value=shown(value))
    return text


TEXT = Kind(read=_read_text, schema={"type": "string", "minLength": 1})


def _read_flag(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    found = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise UserError.of("bad_flag", where=where, value=shown(value), allowed=("true", "false"))
    return found


FLAG = Kind(read=_read_flag, schema={"type": "boolean"})


def choice(names: Mapping[str, tuple[str, ...]] | Sequence[str]) -> Kind:
    """One of some names, in any accepted spelling."""
    table = names if isinstance(names, Mapping) else {name: () for name in names}

    def read(value: Any, where: str) -> str:
        found = canonical(table, value) if isinstance(value, str) else None
        if found is None:
            raise unknown("unknown_name", where=where, value=shown(value), names=table)
        return found

    return Kind(read=read, schema={"enum": list(table)})


def list_of(kind: Kind, *, most: int = 1000, least: int = 1, repeats: bool = False) -> Kind:
    """A list, or one value that stands for a list of one; equal values count once unless told."""

    def read(value: Any, where: str) -> tuple[Any, ...]:
        items = value if isinstance(value, list | tuple) else [value]
        if len(items) < least:
            raise UserError.of("list_empty", where=where)
        if len(items) > most:
            raise UserError.of("number_too_large", where=where, value=len(items), most=most)
        problems = ProblemList()
        read_items = []
        for item in items:
            try:
                read_items.append(kind.read(item, where))
            except UserError as error:
                problems.extend(error)
        problems.raise_if_any()
        return tuple(read_items if repeats else dict.fromkeys(read_items))

    listed = {"type": "array", "items": dict(kind.schema), "minItems": least}
    return Kind(read=read, schema={"anyOf": [dict(kind.schema), listed]})


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """JSON Schema of a mapping that a table of fields reads."""
    required = [field.name for field in fields if field.required]
    return {
        "type": "object",
        "properties": {field.name: dict(field.kind.schema) for field in fields},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }
