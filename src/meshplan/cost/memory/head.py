"""The two ends of the model: final norm, output head, loss, embedding.

Shape letters: T tokens of a micro-batch on a device, h hidden, V' padded vocabulary, t
tensor-parallel degree, r as in :mod:`meshplan.cost.memory.activations`.
"""

from __future__ import annotations

import numpy as np

from meshplan.cost.memory.activations import norm_saved
from meshplan.cost.memory.shapes import ACTIVATION_BYTES, FloatArray, Shapes, rounded
from meshplan.inputs.model import Model
from meshplan.record import record

__all__ = ["HeadActivations", "head_activations"]

_JOIN_STREAMS = 4.0
"""Two inputs of norms and their concatenated outputs, in widths of the residual stream."""


@record
class HeadActivations:
    """Bytes of the head for one micro-batch; arrays of shape ``(num_plans,)``.

    Attributes:
        norm: input and output of the final norm, and what joins MTP blocks to the decoder.
        logits: what the loss keeps until its backward pass.
        forward: what the forward pass of the loss needs, kept part included.
        backward: what its backward pass needs, kept part included.
        gradient: gradient of the logits, once the loss is through.
        hidden: gradient of the input of the head, with the gathered input.
    """

    norm: FloatArray
    logits: FloatArray
    forward: FloatArray
    backward: FloatArray
    gradient: FloatArray
    hidden: FloatArray


def head_activations(model: Model, x: Shapes, *, vocab: FloatArray) -> HeadActivations:
    """Work out what head and loss need.

    Equation:
        ``n T V' / t`` bytes with n bytes per logit as the framework's loss keeps them (16-bit
        logits, 32-bit copies, softmax, gradient); MTP blocks compute logits of their own and
        keep them until the backward pass, with the inputs of the two norms and of the product
        that join them to the decoder, ``2 x 2 h + 4 h`` bytes per token, and their own final norm.

    Args:
        model: gives hidden width, norm and MTP blocks.
        x: shapes of each plan.
        vocab: padded vocabulary V', shape ``(num_plans,)``.

    Returns:
        Bytes [bytes], shape ``(num_plans,)`` each.

    References:
        1. Korthikanti et al. 2022, section 4.3 (4 s b h (1 + V / h) / t with 32-bit logits).
    """
    b = x.behaviours
    shards = np.where(b["loss_gathers_vocab"] != 0, 1.0, x.tp)
    logits = x.tokens * vocab / shards
    forward = np.where(shards > 1, b["loss_sharded_bytes"], b["loss_forward_bytes"])
    extra = 1.0 * len(model.mtp_layers) * b["loss_saved_bytes"]
    norm = np.zeros_like(x.tokens)
    if model.final_norm:
        for tensor in norm_saved(model, x, code="final_norm"):
            norm = norm + tensor.num_bytes
    joins = _JOIN_STREAMS * ACTIVATION_BYTES * model.hidden * x.shared_tokens
    norm = norm + len(model.mtp_layers) * (rounded(joins) + norm)
    gathered = np.where(b["keeps_gathered_input"] != 0, 0.0, x.tokens)
    hidden = ACTIVATION_BYTES * model.hidden * (x.tokens + gathered)
    return HeadActivations(
        norm=norm,
        logits=rounded((b["loss_saved_bytes"] + extra) * logits),
        forward=rounded((forward + extra) * logits),
        backward=rounded((b["loss_backward_bytes"] + extra) * logits),
        gradient=rounded((ACTIVATION_BYTES + extra) * logits),
        hidden=rounded(hidden),
    )
