"""Activations of one chunk of layers: sums over its layers and maxima of their working sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshplan.cost.memory.activations import LayerActivations
from meshplan.cost.memory.shapes import FloatArray, Shapes
from meshplan.inputs.model import Layer
from meshplan.space.plan import Recompute

__all__ = ["ChunkActivations", "chunk_activations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkActivations:
    """Bytes of one chunk and micro-batch, per combination of activation fields.

    Attributes:
        saved: saved bytes by line.
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
    layers: Sequence[Layer], tables: Mapping[Layer, LayerActivations], x: Shapes
) -> ChunkActivations:
    """Add up the layers of a chunk.

    Equation:
        ``sum over kinds: n_full x checkpoint + (n - n_full) x saved``, where n_full of the n
        layers of a kind are among the first ``recompute_layers`` (all when that is 0) and the
        plan recomputes in full. Working set: the largest ``gradients + recomputed`` of a layer.
        Activations of the first ``offload_layers`` have left the device by the time that the
        last of the others are there, and return as those are freed: at no time does the device
        hold more than those of the layers that stay.

    Args:
        layers: blocks in order.
        tables: activations of each kind of block.
        x: shapes of each combination.

    Returns:
        Bytes [bytes], shape ``(num_combinations,)``.

    References:
        1. Transformer Engine, ``pytorch/cpu_offload.py: DefaultOffloadSynchronizer``: the copy of
           layer i ends before layer ``L - n + i`` begins, for n of L layers.
    """
    full = x.has(Recompute.FULL)
    first = np.where(x.recompute_layers == 0, len(layers), x.recompute_layers)
    first = np.where(full, np.minimum(first, len(layers)), 0)
    gone = np.minimum(x.offload_layers, len(layers))
    saved: dict[str, FloatArray] = {}
    zero = np.zeros_like(x.tokens)
    forward = backward = zero
    checkpoints = offloaded = zero
    for kind in dict.fromkeys(layers):
        mask = np.array([0] + [layer == kind for layer in layers])
        num_full, num_gone = np.cumsum(mask)[first], np.cumsum(mask)[gone]
        num_kept = int(mask.sum()) - np.maximum(num_full, num_gone)
        table = tables[kind]
        offloaded = offloaded + np.maximum(num_gone - num_full, 0) * table.saved_bytes
        checkpoints = checkpoints + num_full * table.checkpoint_bytes
        for code, num_bytes in table.saved.items():
            saved[code] = saved.get(code, zero) + num_kept * num_bytes
        dropped = np.where(num_full > 0, table.full_bytes, table.full_bytes - table.saved_bytes)
        dropped = np.maximum(dropped, 0.0)
        forward = np.maximum(forward, table.forward_bytes + np.where(num_full > 0, dropped, 0.0))
        backward = np.maximum(backward, table.backward_bytes + dropped)
    saved["checkpoints"] = checkpoints
    total = zero
    for num_bytes in saved.values():
        total = total + num_bytes
    return ChunkActivations(
        saved=saved,
        saved_bytes=total,
        routed_bytes=saved.get("experts", zero),
        forward_bytes=forward,
        backward_bytes=backward,
        offloaded_bytes=offloaded,
    )
