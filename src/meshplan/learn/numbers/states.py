"""Bytes and FLOP in closed form: what one writes on a whiteboard.

References:
    [1] S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
        Models", section 3.1.
    [2] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
        equation 2.
"""

from __future__ import annotations

__all__ = [
    "attention_flop_ratio",
    "gathered_bytes",
    "hidden_bytes",
    "logits_bytes",
    "state_bytes",
    "tokens_flop",
    "tp_bytes_per_layer",
]

WEIGHT, OPTIMIZER = 2.0, 12.0


def state_bytes(
    params: float, *, zero: int = 0, dp: int = 1, grad: float = 2.0, optimizer: float = OPTIMIZER
) -> float:
    """Weights, gradients and optimizer of Adam in mixed precision on one GPU [bytes] [1].

    Equation:
        ``2 P + grad P + 12 P``, each divided by ``dp`` from ZeRO stage 3, 2 and 1 on
    """
    weights = WEIGHT * params / (dp if zero >= 3 else 1)
    grads = grad * params / (dp if zero >= 2 else 1)
    return weights + grads + optimizer * params / (dp if zero >= 1 else 1)


def logits_bytes(*, tokens: int, vocab: int, each: float = 4.0, tp: int = 1) -> float:
    """Logits of some tokens [bytes]; ``each`` says how many bytes one entry takes."""
    return tokens * vocab * each / tp


def hidden_bytes(*, tokens: int, hidden: int, layers: int = 1, each: float = 2.0) -> float:
    """States of the residual stream, one per layer [bytes]."""
    return tokens * hidden * layers * each


def gathered_bytes(params: float, *, dp: int) -> float:
    """Bytes that each GPU sends under ZeRO-3 per pass: two gathers and a reduction.

    Equation:
        ``3 (dp - 1) / dp * 2 P``
    """
    return 3.0 * (dp - 1) / dp * WEIGHT * params


def tp_bytes_per_layer(*, tokens: int, hidden: int, tp: int) -> float:
    """Bytes that each GPU sends per layer, forward and backward, under tensor parallelism.

    Equation:
        ``4 * 2 (tp - 1) / tp * 2 bytes * tokens * hidden``: two all-reduces each way
    """
    return 4.0 * 2.0 * (tp - 1) / tp * 2.0 * tokens * hidden


def tokens_flop(params: float, *, tokens: float) -> float:
    """FLOP of training without attention: ``6 P T``."""
    return 6.0 * params * tokens


def attention_flop_ratio(*, layers: int, width: int, seq: int, params: float) -> float:
    """FLOP of attention scores over those of the weights: ``12 L d s / 6 P``."""
    return 12.0 * layers * width * seq / (6.0 * params)
