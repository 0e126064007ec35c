"""Operators of the two ends of the model: the embedding, and the head with the loss."""

from __future__ import annotations

import numpy as np

from meshplan.cost.operators.elementwise import norm
from meshplan.cost.operators.records import ALIGNED, Elementwise, Gemm, Number, Operator, Shapes
from meshplan.cost.surfaces import constant, per_framework
from meshplan.inputs.model import Model
from meshplan.units import BF16_BYTES, FP32_BYTES

__all__ = ["embedding_operators", "head_operators"]


def embedding_operators(model: Model, shapes: Shapes) -> list[Operator]:
    """List the operators of the input embedding.

    Each device looks up all tokens in its part of the vocabulary; backward scatters the
    gradients of the tokens, read and added in fp32.
    """
    width = shapes.tokens * float(model.embedding_dim)
    return [
        Elementwise(
            name="embedding",
            forward_bytes=2.0 * BF16_BYTES * width,
            backward_bytes=(BF16_BYTES + 2.0 * FP32_BYTES) * width,
            kernels=3.0,
            fusable=False,
        )
    ]


def head_operators(model: Model, shapes: Shapes, *, padded_vocab: Number) -> list[Operator]:
    """List the operators of the final norm, the output head and the loss.

    The head is a product of ``t`` rows, ``V / tp`` columns and ``h`` deep in bf16 whatever the
    precision of the job; the loss works on fp32 logits. Each block that predicts a further token
    joins two streams by a product of its own and then passes through the same head and loss.

    Args:
        model: the model.
        shapes: the sizes.
        padded_vocab: rows of the output head after padding, before it is split.
    """
    h = float(shapes.hidden)
    operators: list[Operator] = []
    for index in range(1 + len(model.mtp_layers)):
        stream = shapes.tokens_split * h
        if index:
            operators.extend((norm("mtp_norm", stream), norm("mtp_norm", stream)))
            operators.append(
                Gemm(
                    name="mtp_projection",
                    m=shapes.tokens,
                    n=h / shapes.tp,
                    k=2.0 * h,
                    weight_gradient=shapes.trained,
                )
            )
        if model.final_norm:
            operators.append(norm("final_norm", stream))
        operators.extend(_head(model, shapes, vocab=padded_vocab / shapes.tp))
    return operators


def _head(model: Model, shapes: Shapes, *, vocab: Number) -> list[Operator]:
    """The product with the output embedding, and the loss over its columns."""
    logits = shapes.tokens * vocab
    operators: list[Operator] = []
    if model.embedding_dim != model.hidden:
        operators.append(
            Gemm(
                name="head_factor",
                m=shapes.tokens,
                n=float(model.embedding_dim),
                k=float(model.hidden),
                precision="bf16",
                weight_gradient=shapes.trained,
            )
        )
    operators.append(
        Gemm(
            name="head",
            m=shapes.tokens,
            n=vocab,
            k=float(model.embedding_dim),
            precision="bf16",
            weight_gradient=shapes.trained,
            peak_share=_peak_share(vocab),
        )
    )
    operators.append(
        Elementwise(
            name="loss",
            forward_bytes=_loss_bytes("forward", shapes) * logits,
            backward_bytes=_loss_bytes("backward", shapes) * logits,
            kernels=8.0,
            fusable=False,
        )
    )
    return operators


def _peak_share(vocab: Number) -> Number:
    """Share of the peak that products with so many columns reach at most, where odd ones are slow.

    The largest part counts where a vocabulary does not split evenly.
    """
    columns = np.ceil(vocab)
    odd = np.where(
        columns % (ALIGNED // 2) == 0,
        constant("half_aligned_vocabulary"),
        constant("unaligned_vocabulary"),
    )
    return np.where(columns % ALIGNED == 0, 1.0, odd)


def _loss_bytes(direction: str, shapes: Shapes) -> Number:
    """Bytes that the loss moves for each logit."""
    if shapes.fused_loss:
        return constant(f"fused_loss_{direction}_bytes")
    return per_framework(f"loss_{direction}_bytes", shapes.framework)
