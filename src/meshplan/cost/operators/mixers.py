"""Operators of the token mixers, whatever their kind."""

from __future__ import annotations

from meshplan.cost.operators.attention import (
    attention_operators,
    cross_attention_operators,
    latent_attention_operators,
)
from meshplan.cost.operators.records import Operator, Shapes
from meshplan.cost.operators.recurrent import (
    gated_recurrence_operators,
    linear_attention_operators,
    short_conv_operators,
    state_space_operators,
)
from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    GatedRecurrence,
    LatentAttention,
    LinearAttention,
    Mixer,
    ShortConv,
    StateSpace,
)

__all__ = ["mixer_operators"]


def mixer_operators(mixer: Mixer, shapes: Shapes) -> list[Operator]:
    """List the operators of a token mixer, from its input to its output projection."""
    match mixer:
        case Attention():
            return list(attention_operators(mixer, shapes))
        case LatentAttention():
            return list(latent_attention_operators(mixer, shapes))
        case CrossAttention():
            return list(cross_attention_operators(mixer, shapes))
        case StateSpace():
            return list(state_space_operators(mixer, shapes))
        case LinearAttention():
            return list(linear_attention_operators(mixer, shapes))
        case ShortConv():
            return list(short_conv_operators(mixer, shapes))
        case GatedRecurrence():
            return list(gated_recurrence_operators(mixer, shapes))
