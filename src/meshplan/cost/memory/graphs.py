"""Memory of CUDA graphs: a pool of their own, which no other work can use meanwhile.

Graphs are captured in the order of the schedule and share one pool. So the pool holds what graphs
save for the micro-batches in flight, the outputs that they hand over, and the working set of one
graph; beside it stand the static inputs. All of it stays where it is from one step to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from meshplan.cost.memory.experts import routed_tokens
from meshplan.cost.memory.saved import Saved
from meshplan.cost.memory.shapes import ACTIVATION_BYTES, BoolArray, FloatArray, Shapes, rounded
from meshplan.inputs.model import GatedRecurrence, Layer, Model, Moe, ShortConv, StateSpace
from meshplan.record import record

__all__ = [
    "ROUTED",
    "LayerGraphs",
    "WorkingSet",
    "layer_graphs",
    "network_working",
]

ROUTED = "experts"
"""The line of what depends on how many tokens reach a device, which no graph can hold."""
_MASK_BYTES = 1.0
"""An entry of an attention mask, a truth value."""


@record
class WorkingSet:
    """Gradients alive inside the backward pass of a layer [bytes], ``(num_plans,)``.

    Attributes:
        common: of its input and output.
        mixer: inside the mixer.
        network: inside the feed-forward network.
    """

    common: FloatArray
    mixer: FloatArray
    network: FloatArray


@record
class LayerGraphs:
    """What the graphs of one layer hold for one micro-batch [bytes], ``(num_plans,)``.

    Attributes:
        saved: what of the saved tensors is in the pool.
        static: static inputs and outputs that the layer saves for no other reason.
        working: the working set of the graphs.
        beside: by how much it and that of the rest of the layer exceed the larger one of both,
            which is all that a layer needs without graphs.
    """

    saved: FloatArray
    static: FloatArray
    working: FloatArray
    beside: FloatArray


def network_working(x: Shapes, *, ffn_hidden: int, gated: bool) -> FloatArray:
    """Gradients of the inner width of a dense network that are alive at once [bytes]."""
    elements = x.behaviours["working_ffn_elements"] * (1.0 if gated else 0.5)
    return ACTIVATION_BYTES * elements * ffn_hidden * x.tokens / x.tp


def layer_graphs(
    layer: Layer,
    model: Model,
    x: Shapes,
    *,
    mixer: Sequence[Saved],
    network: Sequence[Saved],
    working: WorkingSet,
) -> LayerGraphs | None:
    """Work out what the CUDA graphs of a layer hold.

    Equation:
        saved: what the captured modules save and do not compute again; static: a mask of ``T s``
        bytes for each graph of a mixer, ``2 h T r`` for the output of shared experts and
        ``2 h k T r`` for permuted tokens, which a graph of the router hands over; working:
        common + the larger of the captured modules + what these compute again.

    Args:
        layer: the block.
        model: gives the hidden width.
        x: shapes of each plan.
        mixer: what mixer and norm save.
        network: what the network and its norm save.
        working: working sets of the backward pass.

    Returns:
        Whole bytes; None where no plan has graphs.

    Assumes:
        What the driver allocates for an executable graph is left out: no source says how much.

    References:
        1. Megatron-LM, core/transformer/cuda_graphs.py and transformer_layer.py:
           ``get_layer_static_inputs``, ``_te_cuda_graph_capture``.
        2. Transformer Engine, pytorch/graph.py: ``_make_graphed_callables``.
    """
    b, moe = x.behaviours, layer.ffn if isinstance(layer.ffn, Moe) else None
    whole = b["graphs_layers"] != 0
    parts = b["graphs_mixers"] != 0
    # a state-space layer is captured as a whole alone
    if layer.mixer is None or isinstance(layer.mixer, StateSpace | ShortConv | GatedRecurrence):
        parts = np.zeros_like(parts)
    routers = (b["graphs_routers"] != 0) if moe is not None else np.zeros_like(parts)
    if not (whole.any() or parts.any() or routers.any()):
        return None
    routed = [tensor for tensor in network if tensor.code == ROUTED]
    before = [tensor for tensor in network if tensor.code != ROUTED]
    captured = ((mixer, whole | parts), (before, whole | routers), (routed, whole))
    inner, rest = np.where(whole | parts, working.mixer, 0.0), np.where(whole, 0.0, working.network)
    inner = np.maximum(inner, np.where(whole, working.network, 0.0))
    rest = np.maximum(rest, np.where(whole | parts, 0.0, working.mixer))
    if moe is not None:
        shared = network_working(x, ffn_hidden=moe.shared_ffn_hidden, gated=moe.gated)
        inner = np.maximum(inner, np.where(routers, shared, 0.0))
    any_graph = whole | parts | routers
    again = _sum(captured, x, again=True)
    beside = working.common + inner + rest - np.maximum(working.mixer, working.network)
    return LayerGraphs(
        saved=_sum(captured, x, again=False),
        static=rounded(_static(moe, model, x, mixers=parts & ~whole, routers=routers & ~whole)),
        working=rounded(np.where(any_graph, working.common + inner + again, 0.0)),
        beside=rounded(np.where(any_graph & ~whole, beside, 0.0)),
    )


def _sum(
    captured: Iterable[tuple[Sequence[Saved], BoolArray]], x: Shapes, *, again: bool
) -> FloatArray:
    """What captured modules keep, or what they drop and compute again."""
    total = np.zeros_like(x.tokens)
    for tensors, where in captured:
        for tensor in tensors:
            kept = tensor.kept(x)
            total = total + np.where(where, tensor.num_bytes - kept if again else kept, 0.0)
    return total


def _static(
    moe: Moe | None, model: Model, x: Shapes, *, mixers: BoolArray, routers: BoolArray
) -> FloatArray:
    """Static tensors of the graphs of parts of a layer."""
    static = np.where(mixers, _MASK_BYTES * x.tokens * x.seq_len, 0.0)
    if moe is None:
        return static
    width = model.hidden if moe.shared_ffn_hidden else 0
    shared = ACTIVATION_BYTES * width * x.shared_tokens
    permuted = routed_tokens(moe, x) / x.etp * moe.routed_dim(hidden=model.hidden)
    permuted = x.behaviours["permutes_before_exchange"] * ACTIVATION_BYTES * permuted
    return static + np.where(routers, shared + permuted, 0.0)
