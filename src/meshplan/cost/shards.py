"""What of the parameters of a model one device holds."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from meshplan.cost.weights import (
    Projection,
    Vector,
    Weights,
    expert_weights,
    mixer_weights,
    mlp_weights,
    router_weights,
    shared_expert_weights,
)
from meshplan.inputs.model import Layer, Mlp, Model, Moe
from meshplan.record import record

__all__ = [
    "EmbeddingShard",
    "LayerShard",
    "embedding_shard",
    "join_parameters",
    "layer_shard",
    "norm_size",
    "padded_vocab",
    "weights_shard",
]

IntArray = npt.NDArray[np.int64]
Degree = TypeVar("Degree", int, IntArray)


@record
class LayerShard(Generic[Degree]):
    """Parameters of one block on one device.

    Attributes:
        dense: sharded over the tensor-parallel axis.
        replicated: norms, routers, biases after a row split, compressed projections: the same
            on every device of the tensor-parallel group.
        expert: routed experts, sharded over the expert axes.
    """

    dense: Degree
    replicated: Degree
    expert: Degree

    @property
    def total(self) -> Degree:
        """All parameters of the block on one device."""
        return self.dense + self.replicated + self.expert


@record
class EmbeddingShard(Generic[Degree]):
    """Parameters of the two ends of the model on one device.

    A tied head shares the memory of the embedding when both stand on one device; on different
    pipeline stages each holds its copy. Both are given here; the caller knows where they stand.

    Attributes:
        embedding: rows of the token embedding, with the projection of a factorised one.
        positions: learned positions, the norm after the embedding and further weights that
            stand with it, the same on every device of the tensor-parallel group.
        head: columns of the output head (of the tied matrix too).
        final_norm: the norm before the head.
        mtp_joins: what joins the blocks that predict further tokens to the decoder.
    """

    embedding: Degree
    positions: Degree
    head: Degree
    final_norm: Degree
    mtp_joins: Degree


def padded_vocab(vocab: int, *, multiple: Degree | int, tp: Degree) -> Degree:
    r"""Round the vocabulary up so that it divides over the tensor-parallel group.

    .. math:: V' = \lceil V / (m t) \rceil m t

    Args:
        vocab: rows of the embedding before padding.
        multiple: ``make_vocab_size_divisible_by`` (128 in Megatron-LM, 1 where nothing is
            padded beyond the group), one number or one for each ``tp``.
        tp: tensor-parallel degree, a number or an array.

    Returns:
        Rows after padding, in the shape of ``tp``.

    References:
        .. [1] Megatron-LM, ``megatron/training/tokenizer`` and ``vocab_utils.py``.
    """
    step = tp * multiple
    return _ceil(vocab, step) * step


def norm_size(model: Model, *, width: int | None = None) -> int:
    """Weights of one norm over ``width`` channels (the hidden width when None)."""
    channels = model.hidden if width is None else width
    per_channel = {
        "rmsnorm": 1,
        "layernorm": 2,
        "layernorm_no_bias": 1,
        "layernorm_no_params": 0,
    }
    return channels * per_channel[model.norm]


def layer_shard(
    layer: Layer, model: Model, *, tp: Degree, ep: Degree, etp: Degree
) -> LayerShard[Degree]:
    r"""Parameters of one block that one device holds.

    A column-split matrix of :math:`u` units (heads, channels) of width :math:`w` holds
    :math:`h \lceil u/t \rceil w` on each of :math:`t` devices, so that a key-value head is
    copied when there are more devices than heads. An expert-parallel device holds
    :math:`\lceil E/e \rceil` experts, each split over :math:`t_e` devices.

    Args:
        layer: the block.
        model: the model it stands in (hidden width, kind of norm).
        tp: tensor-parallel degree, a number or an array of shape ``(num_plans,)``.
        ep: expert-parallel degree, in the shape of ``tp``.
        etp: tensor-parallel degree inside an expert, in the shape of ``tp``.

    Returns:
        Counts of parameters, in the shape of ``tp``.

    References:
        .. [1] Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3.
        .. [2] Megatron-LM, ``core/transformer/attention.py``: key-value heads are replicated
           when the group is larger.
    """
    hidden = model.hidden
    dense = tp * 0
    replicated = tp * 0 + layer.num_norms * norm_size(model) + layer.extra_parameters
    expert = tp * 0
    shared = [mixer_weights(mixer, hidden=hidden) for mixer in layer.mixers]
    match layer.ffn:
        case Mlp():
            shared.append(mlp_weights(layer.ffn, hidden=hidden))
        case Moe():
            shared.append(router_weights(layer.ffn, hidden=hidden))
            shared.append(shared_expert_weights(layer.ffn, hidden=hidden))
            split, whole = weights_shard(expert_weights(layer.ffn, hidden=hidden), etp)
            expert = _ceil(layer.ffn.num_experts, ep) * (split + whole)
        case None:
            pass
    for weights in shared:
        split, whole = weights_shard(weights, tp)
        dense = dense + split
        replicated = replicated + whole
    return LayerShard(dense=dense, replicated=replicated, expert=expert)


def embedding_shard(model: Model, *, tp: Degree, padded_vocab: Degree) -> EmbeddingShard[Degree]:
    """Parameters of the embedding and the head that one device holds.

    Args:
        model: the model.
        tp: tensor-parallel degree, a number or an array.
        padded_vocab: rows of the embedding after padding, in the shape of ``tp``.

    Returns:
        Counts of parameters, in the shape of ``tp``.
    """
    rows = -(-padded_vocab // tp)
    width = model.embedding_dim
    factor = width * model.hidden if width != model.hidden else 0
    whole = (
        model.num_positions * model.hidden
        + (norm_size(model) if model.embedding_norm else 0)
        + sum(model.extra_parameters.values())
    )
    return EmbeddingShard(
        embedding=rows * width + factor,
        positions=tp * 0 + whole,
        head=rows * width + factor + (rows if model.head_bias else tp * 0),
        final_norm=tp * 0 + (norm_size(model) if model.final_norm else 0),
        mtp_joins=_mtp_joins(model, tp),
    )


def _mtp_joins(model: Model, tp: Degree) -> Degree:
    """Parameters that join MTP blocks to the decoder, on one device.

    Each block has a column-split matrix from the two concatenated streams to one, and norms that
    every device holds [1]_.

    References:
        .. [1] Megatron-LM, ``core/transformer/multi_token_prediction.py``: ``eh_proj``.
    """
    total, blocks = join_parameters(model), len(model.mtp_layers)
    matrices = 2 * model.hidden * model.hidden * blocks
    if total < matrices:
        return tp * 0 + total
    return total - matrices + 2 * model.hidden * blocks * _ceil(model.hidden, tp)


def join_parameters(model: Model) -> int:
    """Parameters that join MTP blocks to the decoder, over all devices."""
    return sum(n for name, n in model.other_parameters.items() if name.startswith("mtp"))


def weights_shard(weights: Weights, tp: Degree) -> tuple[Degree, Degree]:
    """Sharded and replicated parameters on one of ``tp`` devices."""
    split, whole = tp * 0, tp * 0
    items: tuple[Projection | Vector, ...] = (*weights.projections, *weights.vectors)
    for item in items:
        one_split, one_whole = _item_shard(item, tp)
        split = split + one_split
        whole = whole + one_whole
    return split, whole


def _item_shard(item: Projection | Vector, tp: Degree) -> tuple[Degree, Degree]:
    zero = tp * 0
    if isinstance(item, Vector):
        if not item.num_units:
            return zero, zero + item.size
        return _ceil(item.num_units, tp) * (item.size // item.num_units), zero
    bias = item.out_features if item.bias else 0
    if item.split == "none":
        return zero, zero + item.in_features * item.out_features + bias
    units = _ceil(item.num_units, tp)
    if item.split == "column":
        width = item.out_features // item.num_units if item.num_units else 0
        return units * width * (item.in_features + int(item.bias)), zero
    return units * (item.in_features // item.num_units) * item.out_features, zero + bias


def _ceil(count: int, parts: Degree) -> Degree:
    return -(-count // parts)
