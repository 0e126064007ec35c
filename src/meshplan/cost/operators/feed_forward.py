"""Operators of the feed-forward networks: dense, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from meshplan.cost.operators.elementwise import activation
from meshplan.cost.operators.records import Elementwise, Gemm, Number, Operator, Shapes
from meshplan.inputs.model import Ffn, Mlp, Moe
from meshplan.space.plan import Recompute
from meshplan.units import BF16_BYTES, FP32_BYTES

__all__ = ["expert_rows", "feed_forward_operators", "merged_share"]

FloatArray = npt.NDArray[np.float64]


def feed_forward_operators(ffn: Ffn, shapes: Shapes) -> list[Operator]:
    """List the operators of a feed-forward network."""
    if isinstance(ffn, Mlp):
        return list(_dense(ffn, shapes))
    return list(_mixture(ffn, shapes))


def expert_rows(moe: Moe, shapes: Shapes) -> Number:
    """Count the token copies that the experts of the busiest device receive.

    Equation: ``t r top_k E / (E + Z) etp imbalance`` with ``Z`` choices that compute nothing:
    each of the devices of an expert-parallel group brings its ``t r`` tokens (``r = 1 / tp`` with
    sequence parallelism; without it the devices of a tensor-parallel group all bring the same
    ones), each token goes to ``top_k`` experts, and the ``etp`` devices of one expert all see its
    tokens.
    """
    copies = shapes.tokens_split * moe.experts_per_token
    return copies * shapes.etp * shapes.expert_imbalance


def merged_share(places: FloatArray, moe: Moe) -> FloatArray:
    """Copies of a token that remain when those to one place are merged, over all copies.

    Equation: ``n (1 - (1 - 1/n)^k) / k`` for ``k`` even choices among ``n`` places. Where a token
    first chooses ``g`` of ``G`` groups of experts, ``n`` is the number of places that hold one of
    them: ``n' (1 - C(G - G/n', g) / C(G, g))`` of the ``n' = min(n, G)`` that hold whole groups,
    times what each holds of them.
    """
    choices, groups, chosen = moe.top_k, moe.num_groups, moe.top_groups
    if chosen < groups:
        whole = np.minimum(places, float(groups))
        # groups of a place are drawn one after another without being put back
        missed = np.ones_like(whole)
        for drawn in range(chosen):
            missed = missed * np.maximum(1.0 - groups / whole / (groups - drawn), 0.0)
        places = places * (1.0 - missed)
    remaining: FloatArray = places * (1.0 - (1.0 - 1.0 / places) ** choices) / choices
    return remaining


def _dense(ffn: Mlp, s: Shapes) -> Iterator[Operator]:
    yield from _gated_pair(
        s,
        prefix="mlp",
        rows=s.tokens,
        width=ffn.ffn_hidden / s.tp,
        gated=ffn.gated,
        rerun=Recompute.MLP,
    )


def _gated_pair(
    s: Shapes,
    *,
    prefix: str,
    rows: Number,
    width: Number,
    gated: bool,
    rerun: Recompute,
) -> Iterator[Operator]:
    """Input projection(s), non-linearity and output projection of width ``f``."""
    h = float(s.hidden)
    branches = 2 if gated else 1
    separate = s.separate & gated
    yield Gemm(
        name=f"{prefix}_input_projection",
        m=rows,
        n=np.where(separate, width, branches * width),
        k=h,
        count=np.where(separate, float(branches), 1.0),
        weight_gradient=s.trained,
        rerun=rerun,
    )
    yield activation(
        f"{prefix}_activation",
        rows * width,
        branches=branches,
        rerun=rerun | Recompute.MLP_ACTIVATION,
    )
    yield Gemm(
        name=f"{prefix}_output_projection",
        m=rows,
        n=h,
        k=width,
        weight_gradient=s.trained,
        rerun=rerun,
    )


def _mixture(moe: Moe, s: Shapes) -> Iterator[Operator]:
    """Router, dispatch, grouped experts, combine, and the shared experts beside them.

    Experts of a latent width stand between two projections that every device holds whole; they
    are dispatched and combined in that width.

    Each expert of a device gets an even share of the rows.
    """
    h = float(s.hidden)
    tokens = s.tokens_split
    yield Gemm(
        name="router",
        m=tokens,
        n=float(moe.num_experts + moe.num_zero_experts),
        k=h,
        precision="bf16",
        weight_gradient=s.trained,
        rerun=Recompute.MOE,
    )
    yield Elementwise(
        name="top_k",
        forward_bytes=4.0 * FP32_BYTES * tokens * moe.num_experts,
        backward_bytes=3.0 * FP32_BYTES * tokens * moe.num_experts,
        kernels=6.0,
        rerun=Recompute.MOE,
    )
    if moe.latent_dim:
        latent = float(moe.latent_dim)
        for name, n, k in (("latent_down", latent, h), ("latent_up", h, latent)):
            yield Gemm(
                name=f"{name}_projection",
                m=tokens,
                n=n,
                k=k,
                weight_gradient=s.trained,
                rerun=Recompute.MOE,
            )
    rows = expert_rows(moe, s)
    groups = np.maximum(moe.num_experts / s.ep, 1.0)
    moved = (
        BF16_BYTES * _permuted(moe, s, rows=rows, groups=groups) * moe.routed_dim(hidden=s.hidden)
    )
    yield Elementwise(
        name="permute",
        forward_bytes=moved,
        backward_bytes=moved,
        kernels=4.0,
        rerun=Recompute.MOE,
        fusable=False,
    )
    yield from _experts(moe, s, rows=rows, groups=groups)
    if moe.shared_ffn_hidden:
        yield from _gated_pair(
            s,
            prefix="shared_expert",
            rows=s.tokens,
            width=moe.shared_ffn_hidden / s.tp,
            gated=moe.gated,
            rerun=Recompute.SHARED_EXPERTS,
        )


def _permuted(moe: Moe, s: Shapes, *, rows: Number, groups: Number) -> Number:
    """Rows that are read and written to bring token copies to their experts and back.

    Where a token travels once to each device, what arrives is copied for every expert of its
    choice, and their outputs are summed on the way back. Otherwise all copies are made before
    they leave, and where they come from several devices for several experts they are sorted when
    they arrive; the way back does the same in reverse.
    """
    if s.merged_dispatch:
        return 2.0 * rows * (1.0 + merged_share(s.ep, moe))
    made = s.tokens_split * (1.0 + moe.top_k)
    sorts = np.where((s.ep * s.etp > 1) & (groups > 1), 1.0, 0.0)
    return 2.0 * (made + sorts * 2.0 * rows)


def _experts(moe: Moe, s: Shapes, *, rows: Number, groups: Number) -> Iterator[Operator]:
    """The grouped products of the routed experts that one device holds.

    Transformer Engine's GroupedLinear launches the product of each expert by itself [1]_; torch's
    ``grouped_mm`` is one kernel.

    References:
        .. [1] Transformer Engine, common/gemm/cublaslt_gemm.cu, multi-stream cuBLAS products.
    """
    h = float(moe.routed_dim(hidden=s.hidden))
    width = moe.expert_ffn_hidden / s.etp
    branches = 2 if moe.gated else 1
    yield Gemm(
        name="expert_input_projection",
        m=rows / groups,
        n=branches * width,
        k=h,
        groups=groups,
        weight_gradient=s.trained,
        launched_apart=~s.separate,
        rerun=Recompute.MOE,
    )
    if moe.clamped:
        yield _clamp(rows * branches * width, s)
    yield activation(
        "expert_activation",
        rows * width,
        branches=branches,
        rerun=Recompute.MOE | Recompute.MLP_ACTIVATION,
    )
    yield Gemm(
        name="expert_output_projection",
        m=rows / groups,
        n=h,
        k=width,
        groups=groups,
        weight_gradient=s.trained,
        launched_apart=~s.separate,
        rerun=Recompute.MOE,
    )
    if moe.bias:
        yield _expert_bias(rows * h, rows * branches * width, s, groups=groups)


def _clamp(elements: Number, s: Shapes) -> Elementwise:
    """Clamps before the non-linearity, which Megatron-LM does not fuse with it.

    Forward clamps each half and joins them again; backward reads gradient and input, writes, and
    joins the halves [1]_. torch's natively compiled blocks fuse them.

    References:
        .. [1] Megatron-LM, core/fusions/fused_bias_geglu.py, ``weighted_bias_quick_geglu_impl``.
    """
    apart = np.where(s.separate, 0.0, 1.0)
    return Elementwise(
        name="expert_clamp",
        forward_bytes=apart * 4.0 * BF16_BYTES * elements,
        backward_bytes=apart * 5.0 * BF16_BYTES * elements,
        kernels=3.0 * apart,
        rerun=Recompute.MOE | Recompute.MLP_ACTIVATION,
        fusable=False,
    )


def _expert_bias(outputs: Number, inner: Number, s: Shapes, *, groups: Number) -> Elementwise:
    """Biases of experts; on their outputs weighted by the router as the outputs are.

    Megatron-LM adds those on outputs expert by expert in 32 bits: products of bias and weight are
    written (4 bytes per element), added to the output (2 + 4 + 4), joined (8) and rounded (6);
    backward widens the gradient (6), rounds it for the output (6), multiplies and sums it for the
    bias and for the weights (12 each) and joins what was split (4). Those on the first product
    are added by the product itself [1]_. torchtitan spreads the biases of both products over the
    rows (2) and adds them (6); backward reads the gradients to sum them (2) [2]_.

    Each expert has kernels of its own in Megatron-LM; like its products they pass through one call
    of the framework.

    Args:
        outputs: elements of the outputs.
        inner: elements of the first product.
        s: shapes.
        groups: experts of the device.

    References:
        .. [1] Megatron-LM, core/transformer/moe/experts.py, ``TEGroupedMLP._apply_bias``.
        .. [2] torchtitan, models/gpt_oss/moe.py, ``GptOssGroupedExperts.forward``.
    """
    return Elementwise(
        name="expert_bias",
        forward_bytes=np.where(s.separate, 8.0 * (outputs + inner), 28.0 * outputs),
        backward_bytes=np.where(s.separate, 2.0 * (outputs + inner), 40.0 * outputs),
        kernels=4.0,
        groups=np.where(s.separate, 1.0, groups),
        rerun=Recompute.MOE,
        fusable=False,
    )
