"""Activations of one chunk of layers: sums over its layers and maxima of their working sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.activations import LayerActivations
from meshplan.cost.memory.shapes import FloatArray, Shapes
from meshplan.inputs.model import Layer
from meshplan.space.plan import Recompute

__all__ = ["ChunkActivations", "chunk_activations"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_ALL_LAYERS = np.iinfo(np.int64).max
_ROUTED = "experts"
"""The line that grows with the tokens of the busiest experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkActivations:
    """Bytes of chunks for one micro-batch; arrays ``(n,)``.

    Attributes:
        saved: saved bytes by line, or as one line where no detail is wanted.
        saved_bytes: their sum.
        routed_bytes: the part of it that grows with the load of a device's experts.
        forward_bytes: working set of a layer in the forward pass.
        backward_bytes: working set of a layer in the backward pass, with what it recomputes.
        offloaded_bytes: saved bytes that wait in host memory.
    """

    saved: dict[str, FloatArray]
    saved_bytes: FloatArray
    routed_bytes: FloatArray
    forward_bytes: FloatArray
    backward_bytes: FloatArray
    offloaded_bytes: FloatArray


def chunk_activations(
    contents: Sequence[Sequence[Layer]],
    tables: Mapping[Layer, LayerActivations],
    x: Shapes,
    *,
    content: IntArray,
    combination: IntArray,
    detail: bool,
) -> ChunkActivations:
    """Add up the layers of chunks.

    Equation:
        ``sum over kinds: n_full x checkpoint + (n - n_full) x saved``, where n_full of the n
        layers of a kind are among the first ``recompute_layers`` (all when that is 0) and the
        plan recomputes in full. Working set: the largest ``gradients + recomputed`` of a layer.
        Activations of the first ``offload_layers`` have left the device by the time that the
        last of the others are there, and return as those are freed: at no time does the device
        hold more than those of the layers that stay.

    Args:
        contents: distinct chunks, as their blocks in order.
        tables: activations of each kind of block.
        x: shapes of each combination.
        content: which chunk each row is about, ``(n,)``.
        combination: and with which shapes, ``(n,)``.
        detail: whether saved bytes are wanted line by line.

    Returns:
        Bytes [bytes], shape ``(n,)``.

    References:
        1. Transformer Engine, ``pytorch/cpu_offload.py: DefaultOffloadSynchronizer``: the copy of
           layer i ends before layer ``L - n + i`` begins, for n of L layers.
    """
    length = np.array([len(layers) for layers in contents])[content]
    full = x.has(Recompute.FULL)
    wanted = np.where(x.recompute_layers == 0, _ALL_LAYERS, x.recompute_layers)
    first = np.minimum(np.where(full, wanted, 0)[combination], length)
    gone = np.minimum(x.offload_layers[combination], length) if x.offload_layers.any() else None
    saved: dict[str, FloatArray] = {}
    zero = np.zeros(len(content))
    forward = backward = checkpoints = offloaded = total = routed = zero
    for kind in dict.fromkeys(layer for layers in contents for layer in layers):
        among = _among_first(kind, contents)
        num_full, num = among[content, first], among[content, length]
        table = tables[kind]
        saved_bytes = table.saved_bytes[combination]
        num_kept = num - num_full
        if gone is not None:
            num_gone = among[content, gone]
            num_kept = num - np.maximum(num_full, num_gone)
            offloaded = offloaded + np.maximum(num_gone - num_full, 0) * saved_bytes
        checkpoints = checkpoints + num_full * table.checkpoint_bytes[combination]
        total = total + num_kept * saved_bytes
        for code, num_bytes in table.saved.items():
            if detail:
                saved[code] = saved.get(code, zero) + num_kept * num_bytes[combination]
            if code == _ROUTED:
                routed = routed + num_kept * num_bytes[combination]
        ahead, back = _working(table, num_full > 0, combination)
        forward = np.maximum(forward, np.where(num > 0, ahead, 0.0))
        backward = np.maximum(backward, np.where(num > 0, back, 0.0))
    total = total + checkpoints
    return ChunkActivations(
        saved=saved | {"checkpoints": checkpoints} if detail else {"activations": total},
        saved_bytes=total,
        routed_bytes=routed,
        forward_bytes=forward,
        backward_bytes=backward,
        offloaded_bytes=offloaded,
    )


def _working(
    table: LayerActivations, recomputed: BoolArray, combination: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Working set of a block in the forward and in the backward pass, ``(n,)`` each.

    Args:
        table: activations of the block for each combination.
        recomputed: where it is recomputed as a whole, ``(n,)``.
        combination: of each row, ``(n,)``.
    """
    whole = np.maximum(table.full_bytes, 0.0)
    part = np.maximum(table.full_bytes - table.saved_bytes, 0.0)
    ahead = np.stack([table.forward_bytes, table.forward_bytes + whole])
    back = np.stack([table.backward_bytes + part, table.backward_bytes + whole])
    row = recomputed.astype(np.int8)
    return ahead[row, combination], back[row, combination]


def _among_first(kind: Layer, contents: Sequence[Sequence[Layer]]) -> IntArray:
    """How many of the first n blocks of a chunk are of a kind, ``(num_contents, most n + 1)``."""
    counts = np.zeros((len(contents), 1 + max(map(len, contents))), dtype=np.int64)
    for row, layers in zip(counts, contents, strict=True):
        row[1 : len(layers) + 1] = np.cumsum([layer == kind for layer in layers])
    return counts
