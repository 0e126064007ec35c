"""How many parameters low-rank adapters add, and how many of them one device holds."""

from __future__ import annotations

from typing import Literal

from meshplan.cost.shards import Degree, LayerShard
from meshplan.cost.weights import (
    Weights,
    expert_weights,
    mixer_weights,
    mlp_weights,
    shared_expert_weights,
)
from meshplan.inputs.model import Layer, Mlp, Model, Moe

__all__ = ["adapter_shard"]


def adapter_shard(
    layer: Layer,
    model: Model,
    *,
    rank: int,
    targets: Literal["attention", "mlp", "all"],
    tp: Degree,
    ep: Degree,
    etp: Degree,
) -> LayerShard[Degree]:
    r"""Parameters of the low-rank adapters of one block that one device holds.

    .. math:: r (d_{in} + d_{out}) \text{ per adapted matrix}

    The factor on the sharded side of a matrix is sharded with it, the other one is replicated.

    Args:
        layer: the block.
        model: the model it stands in.
        rank: rank of the adapters.
        targets: ``attention`` (projections of mixers), ``mlp`` (feed-forward projections,
            experts included) or ``all``.
        tp: tensor-parallel degree, a number or an array.
        ep: expert-parallel degree, in the shape of ``tp``.
        etp: tensor-parallel degree inside an expert, in the shape of ``tp``.

    Returns:
        Counts of trainable parameters, in the shape of ``tp``.

    References:
        .. [1] Hu et al., LoRA, arXiv 2106.09685, section 4.
    """
    hidden = model.hidden
    groups: list[Weights] = []
    expert = tp * 0
    if targets in ("attention", "all"):
        groups += [mixer_weights(mixer, hidden=hidden) for mixer in layer.mixers]
    if targets in ("mlp", "all"):
        match layer.ffn:
            case Mlp():
                groups.append(mlp_weights(layer.ffn, hidden=hidden))
            case Moe():
                groups.append(shared_expert_weights(layer.ffn, hidden=hidden))
                split, whole = _adapters(expert_weights(layer.ffn, hidden=hidden), rank, etp)
                expert = -(-layer.ffn.num_experts // ep) * (split + whole)
            case None:
                pass
    dense, replicated = tp * 0, tp * 0
    for weights in groups:
        split, whole = _adapters(weights, rank, tp)
        dense = dense + split
        replicated = replicated + whole
    return LayerShard(dense=dense, replicated=replicated, expert=expert)


def _adapters(weights: Weights, rank: int, tp: Degree) -> tuple[Degree, Degree]:
    split, whole = tp * 0, tp * 0
    for p in weights.projections:
        units = -(-p.num_units // tp)
        if p.split == "column":
            split = split + units * (p.out_features // p.num_units) * rank
            whole = whole + p.in_features * rank
        elif p.split == "row":
            split = split + units * (p.in_features // p.num_units) * rank
            whole = whole + p.out_features * rank
        else:
            whole = whole + (p.in_features + p.out_features) * rank
    return split, whole
