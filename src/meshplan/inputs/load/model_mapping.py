"""The model of a scenario: a name, a config's contents, or a whole record.

A name (preset, path, hub id) is what people write. A record is what is saved where no name gives
the same model any more, so that a saved scenario never depends on a file that may be gone.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import groupby
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.hf_config import load_model, model_from_config
from meshplan.inputs.model import Layer, Model
from meshplan.inputs.vocabulary import shown, unknown

__all__ = ["MODEL_SCHEMA", "MOST_LAYERS", "dump_model", "read_model"]

MODEL_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "object", "required": ["record"], "additionalProperties": False}
        | {"properties": {"record": {"type": "object"}}},
        {"type": "object", "required": ["config"], "additionalProperties": False}
        | {"properties": {"config": {"type": "object"}, "name": {"type": "string"}}},
    ]
}
MOST_LAYERS = 10_000
_MOST = 10**12


def read_model(data: Any, *, problems: ProblemList, where: str = "model") -> Model | None:
    """Read a model: a name, ``{config: {...}}`` or ``{record: {...}}``.

    Returns:
        The model, or None with the reasons in ``problems``.
    """
    try:
        if isinstance(data, str):
            return load_model(data)
        if isinstance(data, Mapping) and set(data) == {"record"}:
            record: Model = _decode(data["record"], Model, where=f"{where}.record")
            return record
        if isinstance(data, Mapping) and set(data) - {"name"} == {"config"}:
            if not isinstance(data["config"], Mapping):
                raise _bad(f"{where}.config", data["config"])
            name = str(data.get("name", "model"))
            return model_from_config(data["config"], name=name, where=f"{where}.config")
        raise UserError.of(
            "bad_model",
            where=where,
            value=shown(data),
            allowed=("llama-3.1-70b", "./config.json"),
        )
    except UserError as error:
        problems.extend(error)
        return None


def dump_model(model: Model) -> str | dict[str, Any]:
    """The shortest way to write the model that reads back the same."""
    for name in (model.name, model.source):
        try:
            if name and load_model(name) == model:
                return name
        except UserError:
            continue
    return {"record": _encode(model)}


def _encode(value: Any) -> Any:
    """Plain values of a record; its kind stands first where several kinds may stand there."""
    if is_dataclass(value) and not isinstance(value, type):
        made = {} if isinstance(value, Model | Layer) else {"kind": type(value).__name__}
        for field in fields(value):
            item = getattr(value, field.name)
            if field.default is MISSING or item != field.default:
                made[field.name] = _encode(item)
        return made
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, tuple) and value and isinstance(value[0], Layer):
        return [
            {**({"repeat": n} if n > 1 else {}), **_encode(layer)}
            for layer, n in ((layer, len(list(run))) for layer, run in groupby(value))
        ]
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _bad(where: str, value: Any) -> UserError:
    return UserError.of("bad_record", where=where, value=shown(value))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(data: Any, kind: Any, *, where: str) -> Any:
    """Make a value of a type from plain values; the inverse of ``_encode``."""
    origin = get_origin(kind)
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return _decode_record(data, kind, where=where)
    if origin in (Union, types.UnionType):
        return _decode_union(data, get_args(kind), where=where)
    if origin is Literal:
        if type(data) is bool or data not in get_args(kind):
            raise UserError.of(
                "unknown_choice", where=where, value=shown(data), allowed=get_args(kind)
            )
        return data
    if origin is tuple:
        return _decode_tuple(data, get_args(kind), where=where)
    if origin is not None:  # Mapping[str, int]
        if not isinstance(data, Mapping):
            raise _bad(where, data)
        item = get_args(kind)[1]
        return {str(k): _decode(v, item, where=f"{where}.{k}") for k, v in data.items()}
    if type(data) is not kind or (kind is int and not 0 <= data <= _MOST):
        raise _bad(where, data)
    return data


def _decode_tuple(data: Any, args: tuple[Any, ...], *, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise _bad(where, data)
    if args[-1] is not Ellipsis:
        if len(data) != len(args):
            raise _bad(where, data)
        pairs = zip(data, args, strict=True)
        return tuple(
            _decode(item, arg, where=f"{where}.{i}") for i, (item, arg) in enumerate(pairs)
        )
    if args[0] is Layer:
        return _decode_layers(data, where=where)
    return tuple(_decode(item, args[0], where=f"{where}.{i}") for i, item in enumerate(data))


def _decode_layers(data: Any, *, where: str) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for index, item in enumerate(data):
        place = f"{where}.{index}"
        if not isinstance(item, Mapping):
            raise _bad(place, item)
        repeat = _decode(item.get("repeat", 1), int, where=f"{place}.repeat")
        if not 1 <= repeat <= MOST_LAYERS - len(layers):
            raise UserError.of(
                "bad_count", where=f"{place}.repeat", value=repeat, least=1, example=8
            )
        rest = {key: value for key, value in item.items() if key != "repeat"}
        layers.extend([_decode(rest, Layer, where=place)] * repeat)
    return tuple(layers)


def _decode_union(data: Any, args: tuple[Any, ...], *, where: str) -> Any:
    if data is None and type(None) in args:
        return None
    records = {arg.__name__: arg for arg in args if is_dataclass(arg) and isinstance(arg, type)}
    if not records:
        plain = [arg for arg in args if arg is not type(None)]
        return _decode(data, plain[0], where=where)
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind not in records:
        raise unknown("unknown_name", where=f"{where}.kind", value=kind, names=records)
    rest = {key: value for key, value in data.items() if key != "kind"}
    return _decode(rest, records[kind], where=where)


def _decode_record(data: Any, kind: type, *, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise _bad(where, data)
    problems = ProblemList()
    hints = _hints(kind)
    known = {field.name: field for field in fields(kind)}
    for key in data:
        if key not in known:
            place = f"{where}.{key}"
            problems.extend(unknown("unknown_key", where=place, value=str(key), names=known))
    values = {}
    for name, field in known.items():
        if name in data:
            try:
                values[name] = _decode(data[name], hints[name], where=f"{where}.{name}")
            except UserError as error:
                problems.extend(error)
        elif field.default is MISSING and field.default_factory is MISSING:
            problems.add("missing_key", where=f"{where}.{name}")
    problems.raise_if_any()
    return kind(**values)
