"""What a model is made of: its blocks and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from meshplan.app.document import document
from meshplan.app.result import jsonable
from meshplan.cost.parameters import count_parameters
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.model import Layer, Model

__all__ = ["inspect"]

Json = dict[str, Any]

_NOT_SHOWN = ("layers", "mtp_layers", "notes", "other_parameters")


def inspect(request: Mapping[str, Any]) -> Json:
    """Describe a model.

    Args:
        request: ``model``: preset name, path or hub id.

    Raises:
        UserError: when it cannot be read.
    """
    name = request.get("model")
    if not isinstance(name, str):
        raise UserError.of("missing_key", where="model")
    model = load_model(name)
    count = count_parameters(model)
    parts = {f.name: getattr(count, f.name) for f in fields(count)}
    return {
        **document("inspect"),
        "model": {
            f.name: jsonable(getattr(model, f.name))
            for f in fields(Model)
            if f.name not in _NOT_SHOWN
        }
        | {"num_layers": model.num_layers, "is_moe": model.is_moe},
        "parameters": {"total": count.total, **parts},
        "outside": dict(model.other_parameters),
        "layers": _runs(model.layers),
        "mtp_layers": _runs(model.mtp_layers),
        "notes": [{"code": code, "value": value} for code, value in model.notes],
    }


def _runs(layers: tuple[Layer, ...]) -> list[Json]:
    """Equal neighbours as one entry."""
    runs: list[Json] = []
    previous: Layer | None = None
    for index, layer in enumerate(layers):
        if layer == previous:
            runs[-1]["count"] += 1
            continue
        runs.append({"first": index, "count": 1, **_layer(layer)})
        previous = layer
    return runs


def _layer(layer: Layer) -> Json:
    return {
        "mixer": _part(layer.mixer),
        "second_mixer": _part(layer.second_mixer),
        "ffn": _part(layer.ffn),
        "num_norms": layer.num_norms,
        "extra_parameters": layer.extra_parameters,
        "weight_set": layer.weight_set,
    }


def _part(part: Any) -> Json | None:
    """A mixer or feed-forward network with its kind."""
    return None if part is None else {"kind": type(part).__name__, **jsonable(part)}
