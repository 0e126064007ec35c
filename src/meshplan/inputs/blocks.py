"""What is special about the blocks of a model, in words that runs can be counted under."""

from __future__ import annotations

from collections.abc import Iterator

from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    Ffn,
    GatedRecurrence,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    Moe,
    ShortConv,
    StateSpace,
)

__all__ = ["KINDS", "kinds_of"]

_MIXERS: tuple[tuple[type[Mixer], str], ...] = (
    (LatentAttention, "latent_attention"),
    (CrossAttention, "cross_attention"),
    (StateSpace, "state_space"),
    (LinearAttention, "linear_attention"),
    (ShortConv, "short_convolution"),
    (GatedRecurrence, "gated_recurrence"),
)
KINDS = (
    *("attention", "window", "sinks"),
    *(kind for _, kind in _MIXERS),
    "sparse_attention",
    *("mlp", "experts", "latent_experts", "clamped_experts"),
)
"""All kinds that :func:`kinds_of` tells apart."""


def kinds_of(layer: Layer) -> frozenset[str]:
    """Kinds of computation in a block, whose kernels differ from those of others.

    ``attention``, ``window`` and ``sinks`` (which attention may have besides),
    ``latent_attention``, ``sparse_attention``, ``cross_attention``, ``state_space``,
    ``linear_attention``, ``short_convolution``, ``gated_recurrence``, ``mlp``, ``experts``,
    ``latent_experts`` and ``clamped_experts``.
    """
    found = {kind for mixer in layer.mixers for kind in _of_mixer(mixer)}
    return frozenset(found | set(_of_network(layer.ffn)))


def _of_mixer(mixer: Mixer) -> Iterator[str]:
    if isinstance(mixer, Attention):
        yield "attention"
        if mixer.window_size is not None:
            yield "window"
        if mixer.sinks:
            yield "sinks"
        return
    yield next(kind for record, kind in _MIXERS if isinstance(mixer, record))
    if isinstance(mixer, LatentAttention) and mixer.index_top_k:
        yield "sparse_attention"


def _of_network(ffn: Ffn | None) -> Iterator[str]:
    if ffn is None:
        return
    if not isinstance(ffn, Moe):
        yield "mlp"
        return
    yield "experts"
    if ffn.latent_dim:
        yield "latent_experts"
    if ffn.clamped:
        yield "clamped_experts"
