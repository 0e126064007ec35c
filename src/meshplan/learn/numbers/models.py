"""Sizes of models, from their configurations."""

from __future__ import annotations

from functools import lru_cache

from meshplan.cost.parameters import count_parameters
from meshplan.cost.shards import layer_shard, padded_vocab
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.model import Attention, Model, Moe

__all__ = [
    "active",
    "embedding_params",
    "expert_params",
    "experts",
    "head_dim",
    "heads",
    "hidden",
    "kv_heads",
    "layer_params",
    "layers",
    "padded",
    "params",
    "top_k",
    "vocab",
]


@lru_cache(maxsize=64)
def _model(name: str) -> Model:
    return load_model(name)


def _attention(name: str) -> Attention:
    return next(
        mixer
        for layer in _model(name).layer_kinds
        for mixer in layer.mixers
        if isinstance(mixer, Attention)
    )


def _moe(name: str) -> Moe:
    return next(x.ffn for x in _model(name).layer_kinds if isinstance(x.ffn, Moe))


def params(name: str) -> int:
    """Parameters in all."""
    return count_parameters(_model(name)).total


def active(name: str) -> int:
    """Parameters that one token uses."""
    return count_parameters(_model(name)).active


def embedding_params(name: str) -> int:
    """Parameters of the token embedding."""
    return count_parameters(_model(name)).embedding


def expert_params(name: str) -> int:
    """Parameters of all routed experts."""
    return count_parameters(_model(name)).experts


def layer_params(name: str) -> int:
    """Parameters of the last block."""
    model = _model(name)
    shard = layer_shard(model.layers[-1], model, tp=1, ep=1, etp=1)
    return int(shard.total)


def layers(name: str) -> int:
    """Blocks."""
    return _model(name).num_layers


def hidden(name: str) -> int:
    """Width of the residual stream."""
    return _model(name).hidden


def vocab(name: str) -> int:
    """Rows of the embedding, before padding."""
    return _model(name).vocab


def padded(vocab: int, *, multiple: int, tp: int) -> int:
    """Vocabulary after padding to a multiple on every tensor-parallel rank."""
    return int(padded_vocab(vocab, multiple=multiple, tp=tp))


def heads(name: str) -> int:
    """Query heads."""
    return _attention(name).num_heads


def kv_heads(name: str) -> int:
    """Key and value heads."""
    return _attention(name).num_kv_heads


def head_dim(name: str) -> int:
    """Width of a head."""
    return _attention(name).head_dim


def experts(name: str) -> int:
    """Routed experts of a block."""
    return _moe(name).num_experts


def top_k(name: str) -> int:
    """Routed experts per token."""
    return _moe(name).top_k
