"""Element-wise operators and the bytes that they move when fused as the frameworks fuse them."""

from __future__ import annotations

from meshplan.cost.operators.records import Elementwise, Number
from meshplan.cost.surfaces import constant
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


def dropout(elements: Number, *, fused: bool) -> Elementwise:
    """Dropout of a branch before it is added to the residual stream, a mask byte per element.

    Megatron-LM adds bias, drops out and adds to the stream in one kernel [1]_: forward only the
    mask is written besides. Otherwise the branch is read and written once more. Backward the
    residual stream does not pass through it, so that it is a kernel of its own everywhere. Its
    launch is counted everywhere too: to enter a scripted function costs the host more than one
    plain operator (assumed).

    Args:
        elements: elements of the branch on a device, ``(num_plans,)``.
        fused: the kernel of the sum drops out too.

    References:
        .. [1] Megatron-LM, megatron/core/fusions/fused_bias_dropout.py,
           ``bias_dropout_add_fused_train``; megatron/model/transformer.py before.
    """
    mask_bytes, apart_bytes = 1.0, constant("unfused_dropout_bytes")
    return Elementwise(
        name="dropout",
        forward_bytes=(mask_bytes if fused else apart_bytes) * elements,
        backward_bytes=apart_bytes * elements,
    )
