"""How many parameters a model has, and how many of them one device holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
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

__all__ = [
    "EmbeddingShard",
    "LayerShard",
    "ParameterCount",
    "count_parameters",
    "embedding_shard",
    "layer_shard",
    "norm_size",
    "padded_vocab",
]

IntArray = npt.NDArray[np.int64]
Degree = TypeVar("Degree", int, IntArray)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters of the text decoder by part, each an exact count.

    ``total`` is the sum of the parts from ``embedding`` to ``other``. ``mtp`` and ``outside``
    stand apart, since published totals leave them out.

    Attributes:
        embedding: the token embedding.
        positions: learned position embeddings.
        head: the output head beyond the embedding that it may share (its bias included).
        attention: all token mixers, state-space and linear ones included.
        mlp: dense feed-forward networks.
        experts: routed experts.
        shared_experts: experts that see every token, with their gates.
        router: routers.
        norms: norms over the hidden width.
        other: weights of the decoder that belong to no other part.
        mtp: blocks that predict further tokens, with what joins them to the decoder.
        outside: parts of the checkpoint that are not the text decoder.
        active: parameters that one token uses, embedding and head included.
    """

    embedding: int
    positions: int
    head: int
    attention: int
    mlp: int
    experts: int
    shared_experts: int
    router: int
    norms: int
    other: int
    mtp: int
    outside: int
    active: int

    @property
    def total(self) -> int:
        """Parameters of the text decoder."""
        return (
            self.embedding
            + self.positions
            + self.head
            + self.attention
            + self.mlp
            + self.experts
            + self.shared_experts
            + self.router
            + self.norms
            + self.other
        )


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
            split, whole = _shard(expert_weights(layer.ffn, hidden=hidden), etp)
            expert = _ceil(layer.ffn.num_experts, ep) * (split + whole)
        case None:
            pass
    for weights in shared:
        split, whole = _shard(weights, tp)
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
    total, blocks = _join_parameters(model), len(model.mtp_layers)
    matrices = 2 * model.hidden * model.hidden * blocks
    if total < matrices:
        return tp * 0 + total
    return total - matrices + 2 * model.hidden * blocks * _ceil(model.hidden, tp)


def _join_parameters(model: Model) -> int:
    return sum(n for name, n in model.other_parameters.items() if name.startswith("mtp"))


def count_parameters(model: Model) -> ParameterCount:
    """Count the parameters of a model by part.

    Every count is exact and follows from the weights that ``cost.weights`` lists. Blocks that
    share one set of weights count once. A token uses its top-k experts of each mixture, and of
    experts that compute nothing the expected share.

    Args:
        model: the model.

    Returns:
        Counts of parameters.
    """
    blocks = _sum_blocks(_distinct(model.layers), model)
    extra_mtp = _join_parameters(model)
    ends = embedding_shard(model, tp=1, padded_vocab=model.vocab)
    untied = 0 if model.tied_embeddings else ends.head
    head_bias = model.vocab if model.head_bias and model.tied_embeddings else 0
    factor_out = (
        model.embedding_dim * model.hidden
        if model.tied_embeddings and model.embedding_dim != model.hidden
        else 0
    )
    positions = model.num_positions * model.hidden
    parts = ParameterCount(
        embedding=ends.embedding,
        positions=positions,
        head=untied + head_bias + factor_out,
        attention=blocks.attention,
        mlp=blocks.mlp,
        experts=blocks.experts,
        shared_experts=blocks.shared_experts,
        router=blocks.router,
        norms=blocks.norms + ends.final_norm + (norm_size(model) if model.embedding_norm else 0),
        other=blocks.other + sum(model.extra_parameters.values()),
        mtp=_sum_blocks(model.mtp_layers, model).total + extra_mtp,
        outside=sum(model.other_parameters.values()) - extra_mtp,
        active=0,
    )
    return replace(parts, active=parts.total - blocks.idle)


@dataclass(slots=True, kw_only=True)
class _Blocks:
    """Sums over blocks; ``idle`` are the expert weights that one token leaves alone."""

    attention: int = 0
    mlp: int = 0
    experts: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    other: int = 0
    idle: int = 0

    @property
    def total(self) -> int:
        return (
            self.attention
            + self.mlp
            + self.experts
            + self.shared_experts
            + self.router
            + self.norms
            + self.other
        )


def _distinct(layers: tuple[Layer, ...]) -> list[Layer]:
    """Blocks that own weights: of those that share a set, the first."""
    seen: set[int] = set()
    owners = []
    for layer in layers:
        if layer.weight_set is None or layer.weight_set not in seen:
            owners.append(layer)
        if layer.weight_set is not None:
            seen.add(layer.weight_set)
    return owners


def _sum_blocks(layers: Sequence[Layer], model: Model) -> _Blocks:
    blocks = _Blocks()
    hidden = model.hidden
    for layer, times in Counter(layers).items():
        blocks.norms += times * layer.num_norms * norm_size(model)
        blocks.other += times * layer.extra_parameters
        for mixer in layer.mixers:
            blocks.attention += times * _size(mixer_weights(mixer, hidden=hidden))
        if isinstance(layer.ffn, Mlp):
            blocks.mlp += times * _size(mlp_weights(layer.ffn, hidden=hidden))
        elif isinstance(layer.ffn, Moe):
            moe = layer.ffn
            one = _size(expert_weights(moe, hidden=hidden))
            used = moe.top_k * moe.num_experts // (moe.num_experts + moe.num_zero_experts)
            blocks.experts += times * moe.num_experts * one
            blocks.shared_experts += times * _size(shared_expert_weights(moe, hidden=hidden))
            blocks.router += times * _size(router_weights(moe, hidden=hidden))
            blocks.idle += times * (moe.num_experts - used) * one
    return blocks


def _size(weights: Weights) -> int:
    split, whole = _shard(weights, 1)
    return split + whole


def _shard(weights: Weights, tp: Degree) -> tuple[Degree, Degree]:
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
