"""Which modules of selective recompute reach the norms of a block."""

from __future__ import annotations

from meshplan.inputs.model import LatentAttention, Layer, Moe
from meshplan.space.plan import Recompute

__all__ = ["attention_norm_recompute", "network_norm_recompute"]


def attention_norm_recompute(layer: Layer) -> Recompute:
    """What computes the norm before the mixer again, beside full recompute.

    With Transformer Engine it is part of the first product of the mixer, and nothing does; before
    latent attention, whose first products are several, it is a module of its own [1]_.

    References:
        .. [1] Megatron-LM 0.19.2, ``megatron/core/models/gpt/gpt_layer_specs.py`` and
           ``models/hybrid/hybrid_layer_specs.py``: ``TELayerNormColumnParallelLinear``;
           ``megatron/core/transformer/transformer_layer.py``: ``recompute_input_layernorm``.
    """
    latent = any(isinstance(mixer, LatentAttention) for mixer in layer.mixers)
    return Recompute.NORM if latent else Recompute.NONE


def network_norm_recompute(layer: Layer) -> Recompute:
    """What computes the norm before the feed-forward network again, beside full recompute.

    It is a module of its own before experts, and otherwise part of the network's first product,
    which is computed again with the network [1]_.

    References:
        .. [1] As above, ``recompute_pre_mlp_layernorm`` and ``recompute_mlp``.
    """
    return Recompute.NORM if isinstance(layer.ffn, Moe) else Recompute.MLP
