"""Placeholder gradients that a fused gradient accumulation keeps beside its buffer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.shapes import ACTIVATION_BYTES, FloatArray, per_device
from meshplan.cost.weights import (
    Projection,
    expert_weights,
    mixer_weights,
    mlp_weights,
    shared_expert_weights,
)
from meshplan.inputs.model import Layer, Mlp, Model, Moe
from meshplan.space.plan import PlanGrid

__all__ = ["placeholder_bytes"]

IntArray = npt.NDArray[np.int64]


def placeholder_bytes(layers: Mapping[Layer, IntArray], model: Model, grid: PlanGrid) -> FloatArray:
    """Size of one 16-bit gradient per distinct shape of a weight.

    Equation:
        ``2 x sum over distinct (in, out) of in x out / t``. Query, key and value form one
        product, and so do the two branches of a gated network.

    Args:
        layers: how many blocks of each kind a stage has, ``(num_plans,)``.
        model: gives the hidden width.
        grid: plans; only their tensor-parallel degrees matter.

    Returns:
        Bytes [bytes], shape ``(num_plans,)``.

    References:
        1. Transformer Engine, ``get_dummy_wgrad``: a cached tensor per shape, returned in place
           of a gradient that was added to ``main_grad`` already.
    """
    stages: dict[tuple[int, int, str], npt.NDArray[np.bool_]] = {}
    for layer, count in layers.items():
        for shape in _shapes(layer, model):
            stages[shape] = stages.get(shape, np.bool_(False)) | (count > 0)
    total = np.zeros(len(grid))
    for (elements, units, axis), present in sorted(stages.items(), key=lambda item: item[0]):
        degree = (grid.tp if axis == "tp" else grid.etp).astype(np.float64)
        size = ACTIVATION_BYTES * elements / units * per_device(units, degree)
        total = total + np.where(present, size, 0.0)
    return total


def _shapes(layer: Layer, model: Model) -> set[tuple[int, int, str]]:
    """The distinct products of a block."""
    shapes: set[tuple[int, int, str]] = set()
    for mixer in layer.mixers:
        shapes |= _fused(mixer_weights(mixer, hidden=model.hidden).projections, "tp")
    match layer.ffn:
        case Mlp():
            shapes |= _fused(mlp_weights(layer.ffn, hidden=model.hidden).projections, "tp")
        case Moe():
            shared = shared_expert_weights(layer.ffn, hidden=model.hidden)
            shapes |= _fused(shared.projections, "tp")
            shapes |= _fused(expert_weights(layer.ffn, hidden=model.hidden).projections, "etp")
        case None:
            pass
    return shapes


def _fused(products: tuple[Projection, ...], axis: str) -> set[tuple[int, int, str]]:
    """Elements and units of the distinct products, column splits of one input joined."""
    joined: dict[int, int] = {}
    shapes: set[tuple[int, int, str]] = set()
    for p in products:
        if p.split == "column":
            joined[p.in_features] = joined.get(p.in_features, 0) + p.out_features
        elif p.split == "row":
            shapes.add((p.in_features * p.out_features, max(p.num_units, 1), axis))
        else:
            shapes.add((p.in_features * p.out_features, 1, axis))
    for in_features, out_features in joined.items():
        shapes.add((in_features * out_features, out_features, axis))
    return shapes
