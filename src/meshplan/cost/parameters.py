"""How many parameters a model has, by part; what of them one device holds is in ``shards.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshplan.cost.shards import embedding_shard, join_parameters, norm_size, weights_shard
from meshplan.cost.weights import (
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
    "ParameterCount",
    "count_parameters",
]


@record
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
    extra_mtp = join_parameters(model)
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
    split, whole = weights_shard(weights, 1)
    return split + whole
