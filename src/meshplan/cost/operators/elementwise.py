"""Element-wise operators and the bytes that they move when fused as the frameworks fuse them."""

from __future__ import annotations

from meshplan.cost.operators.records import Elementwise, Number
from meshplan.space.plan import Recompute
from meshplan.units import BF16_BYTES

__all__ = ["activation", "dropout", "norm", "residual", "rotary"]


def norm(
    name: str,
    elements: Number,
    *,
    kernels: float = 1.0,
    rerun: Recompute = Recompute.NONE,
) -> Elementwise:
    """A norm: reads and writes once forward; reads input and gradient, writes one backward."""
    return Elementwise(
        name=name,
        forward_bytes=2.0 * BF16_BYTES * elements,
        backward_bytes=3.0 * BF16_BYTES * elements,
        kernels=kernels,
        rerun=rerun,
    )


def rotary(elements: Number, *, rerun: Recompute = Recompute.NONE) -> Elementwise:
    """Rotation of queries and keys: reads and writes once, forward and backward."""
    return Elementwise(
        name="rotary",
        forward_bytes=2.0 * BF16_BYTES * elements,
        backward_bytes=2.0 * BF16_BYTES * elements,
        rerun=rerun,
    )


def activation(
    name: str,
    elements: Number,
    *,
    branches: int,
    rerun: Recompute = Recompute.MLP_ACTIVATION,
) -> Elementwise:
    """A non-linearity over ``branches`` inputs of ``elements`` each, one output.

    Backward reads the inputs and the output's gradient and writes the inputs' gradients.
    """
    return Elementwise(
        name=name,
        forward_bytes=(branches + 1.0) * BF16_BYTES * elements,
        backward_bytes=(2.0 * branches + 1.0) * BF16_BYTES * elements,
        rerun=rerun,
    )


def residual(elements: Number) -> Elementwise:
    """The sum of branch and residual stream; backward adds the two gradients."""
    return Elementwise(
        name="residual",
        forward_bytes=3.0 * BF16_BYTES * elements,
        backward_bytes=3.0 * BF16_BYTES * elements,
    )


def dropout(elements: Number) -> Elementwise:
    """Dropout with a mask of one byte per element."""
    return Elementwise(
        name="dropout",
        forward_bytes=(2.0 * BF16_BYTES + 1.0) * elements,
        backward_bytes=(2.0 * BF16_BYTES + 1.0) * elements,
    )
