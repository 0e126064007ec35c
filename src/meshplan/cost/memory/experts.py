"""What a mixture of experts saves and needs, for balanced routing.

Shape letters: T tokens of a micro-batch on a device after sequence parallelism, h hidden, E
experts, k experts per token, f inner width of an expert, x tensor-parallel degree in an expert.
"""

from __future__ import annotations

import numpy as np

from meshplan.cost.memory.saved import Saved
from meshplan.cost.memory.shapes import ACTIVATION_BYTES, FloatArray, Shapes, rounded
from meshplan.inputs.model import Model, Moe
from meshplan.space.plan import Recompute

__all__ = ["moe_saved", "moe_working", "routed_tokens"]

_ROUTER_BYTES = 12.0
"""Scores, dense probabilities and scores of the balancing loss in 32 bits, per expert and token."""
_MAP_BYTES = 8.0
"""Index and probability of each routed copy of a token."""


def routed_tokens(moe: Moe, x: Shapes) -> FloatArray:
    """Tokens that the experts of one device work on, under balanced routing.

    Equation:
        ``k T x``: dispatch keeps their number, and the devices that share an expert by tensor
        parallelism gather each other's tokens. Choices that compute nothing are not dispatched.
    """
    return moe.experts_per_token * x.shared_tokens * x.etp


def moe_saved(moe: Moe, model: Model, x: Shapes) -> list[Saved]:
    """List what router, dispatch and routed experts save.

    Equation:
        ``12 E T`` (router) + ``8 k T`` (permutation) + ``w h R`` (dispatched input) +
        ``2 (2 f) R / x`` (both branches) + ``w f R / x`` (product), with R routed tokens; and
        ``2 h R`` more where expert outputs are weighed afterwards. Experts of a latent width l
        have l in place of h, and ``w l T`` more for the projection back.

    References:
        1. D. Liu et al., MoE Parallel Folding, 2025, section 3 (dispatch with etp and ep).
    """
    b, routed = x.behaviours, routed_tokens(moe, x)
    inner = moe.expert_ffn_hidden * routed / x.etp
    elements = b["gated_activation_elements"] if moe.gated else b["plain_activation_elements"]
    width, trained = moe.routed_dim(hidden=model.hidden), float(x.trains_mlp)
    scores = _ROUTER_BYTES * moe.num_experts + _MAP_BYTES * moe.top_k
    router = scores + trained * x.input_bytes * moe.latent_dim
    return [
        Saved(
            code="router",
            num_bytes=rounded(router * x.shared_tokens),
            dropped_by=Recompute.MOE,
        ),
        Saved(
            code="experts",
            num_bytes=rounded(trained * x.input_bytes * width * routed),
            dropped_by=Recompute.MOE,
        ),
        Saved(
            code="experts",
            num_bytes=rounded(ACTIVATION_BYTES * (elements - 1.0) * inner),
            dropped_by=Recompute.MOE,
        ),
        Saved(
            code="experts",
            num_bytes=rounded(trained * x.input_bytes * inner),
            dropped_by=Recompute.MOE | Recompute.MLP_ACTIVATION,
        ),
        Saved(
            code="experts",
            num_bytes=rounded(b["saves_expert_output"] * ACTIVATION_BYTES * width * routed / x.etp),
            dropped_by=Recompute.MOE,
        ),
    ]


def moe_working(moe: Moe, model: Model, x: Shapes) -> FloatArray:
    """Dispatch and combine buffers, or the gradients of the inner width [bytes].

    Equation:
        ``max(2 x 2 h R, 2 h R + 2 (2 f) R / x)``: a permuted and an exchanged copy, or the
        gradient of the output beside those of both branches. The exchange is over before the
        products of the experts begin.
    """
    routed = routed_tokens(moe, x)
    branches = 2.0 if moe.gated else 1.0
    inner = branches * moe.expert_ffn_hidden * routed / x.etp
    copy = moe.routed_dim(hidden=model.hidden) * routed
    return ACTIVATION_BYTES * np.maximum(2.0 * copy, copy + inner)
