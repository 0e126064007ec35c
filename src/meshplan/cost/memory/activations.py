"""Activations that one layer saves for its backward pass, and what it needs beyond them.

Shape letters: T tokens of a micro-batch on a device, h hidden, f inner width, a query heads, k
key-value heads, d head width, s sequence length, t tensor-parallel degree, r = 1/t with sequence
parallelism and 1 without. All results are bytes of one micro-batch on one device.
"""

from __future__ import annotations

import numpy as np

from meshplan.cost.memory.experts import moe_saved, moe_working
from meshplan.cost.memory.graphs import (
    ROUTED,
    LayerGraphs,
    WorkingSet,
    layer_graphs,
    network_working,
)
from meshplan.cost.memory.mixers import kernel_output, mixer_saved, mixer_working
from meshplan.cost.memory.saved import Saved
from meshplan.cost.memory.shapes import (
    ACTIVATION_BYTES,
    FloatArray,
    Shapes,
    per_device,
    rounded,
)
from meshplan.cost.recompute import attention_norm_recompute, network_norm_recompute
from meshplan.cost.weights import block_projections
from meshplan.inputs.model import (
    Attention,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
    Model,
    Moe,
)
from meshplan.record import record
from meshplan.space.plan import Recompute

__all__ = ["LayerActivations", "layer_activations", "mlp_saved", "norm_saved"]

_LAYERNORM = 2.0
"""LayerNorm saves mean and deviation where RMSNorm saves one number."""


@record
class LayerActivations:
    """Bytes of one layer and micro-batch; arrays of shape ``(num_plans,)``.

    Attributes:
        saved: bytes by line, under the plan's module-wise recompute.
        saved_bytes: their sum.
        full_bytes: what the layer saves without any recompute.
        checkpoint_bytes: what is left under full recompute, the input of the layer.
        forward_bytes: needed in the forward pass beyond what is saved.
        backward_bytes: needed in the backward pass beyond what is saved without recompute.
        before_exchange_bytes: what of ``saved_bytes`` is there once tokens are ready for the
            exchange: that of the mixer and, with experts, of norm, router and shared experts.
        graphs: what CUDA graphs of the layer hold; None where no plan has any.
    """

    saved: dict[str, FloatArray]
    saved_bytes: FloatArray
    full_bytes: FloatArray
    checkpoint_bytes: FloatArray
    forward_bytes: FloatArray
    backward_bytes: FloatArray
    before_exchange_bytes: FloatArray
    graphs: LayerGraphs | None


def layer_activations(layer: Layer, model: Model, x: Shapes) -> LayerActivations:
    """Work out what one layer saves and needs.

    Equation:
        saved = sum of the tensors that no recompute mode of the plan drops; under torchtitan's
        per-operator mode the outputs of every second matrix product and of the attention
        kernel, with the input of the layer.

    Args:
        layer: the block.
        model: gives the hidden width and the norm.
        x: shapes of each plan.

    Returns:
        Saved, checkpointed and working bytes [bytes], shape ``(num_plans,)`` each.
    """
    mixer, network = _mixer_saved(layer, model, x), _network_saved(layer, model, x)
    tensors = [*mixer, *network]
    full = _total(tensors, x)
    kept: dict[str, FloatArray] = {}
    for tensor in tensors:
        kept[tensor.code] = kept.get(tensor.code, 0.0) + tensor.kept(x)
    selective = x.has(Recompute.SELECTIVE_OP)
    if selective.any():
        per_op = _selective_op(layer, model, x)
        kept = {code: np.where(selective, 0.0, line) for code, line in kept.items()}
        kept["selective_op"] = np.where(selective, per_op, 0.0)
    saved = np.zeros_like(x.tokens)
    for line in kept.values():
        saved = saved + line
    hidden = ACTIVATION_BYTES * model.hidden
    routed = isinstance(layer.ffn, Moe)
    before = [*mixer, *(tensor for tensor in network if routed and tensor.code != ROUTED)]
    working = _backward_working(layer, model, x)
    return LayerActivations(
        saved=kept,
        saved_bytes=saved,
        full_bytes=full,
        checkpoint_bytes=rounded(hidden * x.shared_tokens),
        forward_bytes=_forward_working(layer, model, x),
        backward_bytes=rounded(working.common + np.maximum(working.mixer, working.network)),
        before_exchange_bytes=_total(before, x, kept=True),
        graphs=layer_graphs(layer, model, x, mixer=mixer, network=network, working=working),
    )


def norm_saved(
    model: Model,
    x: Shapes,
    *,
    code: str,
    gathered: bool = True,
    trained: bool = True,
    dropped_by: Recompute = Recompute.NONE,
) -> list[Saved]:
    """List what a norm and the product behind it save: input, output and statistics.

    Equation:
        ``2 h T r`` (input) + ``w h T r'`` (output, the input of the next product in its width w;
        r' = 1 where the gathered one is kept; not needed when that product is frozen without
        adapters) + statistics ``T r``.

    Args:
        model: gives the hidden width.
        x: shapes of each plan.
        code: line of the breakdown.
        gathered: the product behind it reads the gathered output.
        trained: that product has a gradient.
        dropped_by: what of Megatron-LM's selective recompute throws the output away [2]_.

    References:
        1. V. Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
           2022, section 4.1 (2 h each, sharded by sequence parallelism).
        2. Megatron-LM 0.19.2, core/models/gpt/gpt_layer_specs.py and transformer_layer.py:
           ``layernorm`` reaches norms that are modules of their own, those before latent attention
           and before experts; the others are part of the product behind them.
    """
    b = x.behaviours
    stats = b["norm_stat_bytes"] * (1.0 if model.norm == "rmsnorm" else _LAYERNORM)
    extra = b["norm_extra_bytes"] * model.hidden
    tokens = x.input_tokens if gathered else x.shared_tokens
    output = float(trained) * x.input_bytes * model.hidden * tokens
    inside = (b["fused_norms"] != 0).astype(np.float64)
    return [
        Saved(
            code=code,
            num_bytes=rounded(ACTIVATION_BYTES * model.hidden * x.shared_tokens),
        ),
        Saved(code=code, num_bytes=rounded(inside * output), dropped_by=dropped_by),
        Saved(code=code, num_bytes=rounded((1.0 - inside) * output), dropped_by=Recompute.NORM),
        Saved(code=code, num_bytes=rounded((stats + extra) * x.shared_tokens)),
    ]


def mlp_saved(
    x: Shapes, *, ffn_hidden: int, gated: bool, code: str, module: Recompute
) -> list[Saved]:
    """List what a dense feed-forward network saves between its two products.

    Equation:
        gated, fused: ``(2 x 2 f + w f) T / t``; gated, eager: one more ``2 f`` for the activated
        branch; plain: ``(2 f + w f) T / t``, with w the width of a saved product input.

    References:
        1. Korthikanti et al. 2022, section 4.1 (19 s b h for GELU with f = 4 h).
        2. Traced Llama blocks: 8 f / t in eager mode.
    """
    b = x.behaviours
    elements = b["gated_activation_elements"] if gated else b["plain_activation_elements"]
    width = ffn_hidden * x.tokens / x.tp
    return [
        Saved(
            code=code,
            num_bytes=rounded(ACTIVATION_BYTES * (elements - 1.0) * width),
            dropped_by=module,
        ),
        Saved(
            code=code,
            num_bytes=rounded(float(x.trains_mlp) * x.input_bytes * width),
            dropped_by=module,
        ),
    ]


def _one_norm(layer: Layer) -> bool:
    """Whether mixer and network read the same norm, beside one another."""
    return layer.mixer is not None and layer.ffn is not None and layer.num_norms == 1


def _mixer_saved(layer: Layer, model: Model, x: Shapes) -> list[Saved]:
    if layer.mixer is None:
        return []
    tensors = norm_saved(
        model,
        x,
        code="attention_norm",
        trained=x.trains_mixers,
        dropped_by=attention_norm_recompute(layer),
    )
    for mixer in layer.mixers:
        tensors += mixer_saved(mixer, x)
        tensors += _mixer_adapters(mixer, model, x)
    return tensors + _dropout_mask(model, x, code="attention")


def _network_saved(layer: Layer, model: Model, x: Shapes) -> list[Saved]:
    """What the network saves, and the norms behind both."""
    tensors: list[Saved] = []
    if layer.ffn is not None:
        if not _one_norm(layer):
            tensors += norm_saved(
                model,
                x,
                code="mlp_norm",
                gathered=not isinstance(layer.ffn, Moe),
                trained=x.trains_mlp or isinstance(layer.ffn, Moe),
                dropped_by=network_norm_recompute(layer),
            )
        match layer.ffn:
            case Mlp(ffn_hidden=f, gated=gated):
                tensors += mlp_saved(x, ffn_hidden=f, gated=gated, code="mlp", module=Recompute.MLP)
                tensors += _mlp_adapters(model, x, branches=1 + gated)
            case Moe() as moe:
                tensors += moe_saved(moe, model, x)
                tensors += mlp_saved(
                    x,
                    ffn_hidden=moe.shared_ffn_hidden,
                    gated=moe.gated,
                    code="shared_experts",
                    module=Recompute.MOE | Recompute.SHARED_EXPERTS,
                )
        tensors += _dropout_mask(model, x, code="mlp")
    sublayers = (layer.mixer is not None) + (layer.ffn is not None and not _one_norm(layer))
    for _ in range(max(0, layer.num_norms - sublayers)):
        post = ACTIVATION_BYTES * model.hidden + x.behaviours["norm_stat_bytes"]
        tensors.append(Saved(code="post_norm", num_bytes=rounded(post * x.shared_tokens)))
    return tensors


def _mixer_adapters(mixer: Mixer, model: Model, x: Shapes) -> list[Saved]:
    """Copies of inputs that the adapters of attention projections keep of their own.

    Equation:
        ``2 (n - 1) h T + 2 a v T / t``, with n projections that read the normed input (query,
        key and value; two compressions for latent attention): one of their copies is the line
        of the norm, and the kernel saves the input of the output projection itself.
    """
    match mixer:
        case Attention(num_heads=heads, v_head_dim=width):
            shared = 2.0
        case LatentAttention(num_heads=heads, v_head_dim=width):
            shared = 1.0
        case _:
            return []
    if not (x.adapters and x.trains_mixers):
        return []
    copied = shared * model.hidden + heads * width / x.tp
    return [_copied("attention", copied * x.tokens, x)]


def _mlp_adapters(model: Model, x: Shapes, *, branches: int) -> list[Saved]:
    """Copies of its input that the adapters of a feed-forward network keep beyond the first."""
    if not (x.adapters and x.trains_mlp):
        return []
    return [_copied("mlp", (branches - 1) * model.hidden * x.tokens, x)]


def _copied(code: str, elements: FloatArray, x: Shapes) -> Saved:
    copies = x.behaviours["adapters_copy_inputs"]
    return Saved(code=code, num_bytes=rounded(copies * ACTIVATION_BYTES * elements))


def _dropout_mask(model: Model, x: Shapes, *, code: str) -> list[Saved]:
    """One byte per element of the residual stream where dropout is on."""
    if not x.dropout:
        return []
    return [Saved(code=code, num_bytes=rounded(model.hidden * x.shared_tokens))]


def _total(tensors: list[Saved], x: Shapes, *, kept: bool = False) -> FloatArray:
    total = np.zeros_like(x.tokens)
    for tensor in tensors:
        total = total + (tensor.kept(x) if kept else tensor.num_bytes)
    return total


def _selective_op(layer: Layer, model: Model, x: Shapes) -> FloatArray:
    """Bytes kept by torchtitan's per-operator recompute.

    Equation:
        input ``2 h r`` + outputs of the first, third, ... matrix product + output and statistics
        of the attention kernel, per token. For attention and a gated network that is q, v, gate
        and down projection: ``2 (h + h_q + h_kv + h_q + f + h)`` over t where sharded.

    References:
        1. torchtitan ``activation_checkpoint.py``, selective mode ``op``: every second ``mm`` is
           recomputed.
    """
    total = ACTIVATION_BYTES * model.hidden * x.shared_tokens
    for product in block_projections(layer, hidden=model.hidden)[::2]:
        if product.split == "column":
            units = per_device(product.num_units, x.tp)
            width = units * (product.out_features // max(product.num_units, 1))
            total = total + ACTIVATION_BYTES * width * x.tokens
        else:
            total = total + ACTIVATION_BYTES * product.out_features * x.shared_tokens
    for mixer in layer.mixers:
        total = total + kernel_output(mixer, x)
    return rounded(total)


def _forward_working(layer: Layer, model: Model, x: Shapes) -> FloatArray:
    """Tensors of the forward pass that are not saved.

    Equation:
        ``2 h T (1 + r)`` (gathered input and output of a product) or, with experts, the copies
        of a dispatch.
    """
    gathered = np.where(x.behaviours["keeps_gathered_input"] != 0, 0.0, x.tokens)
    working = ACTIVATION_BYTES * model.hidden * (gathered + x.shared_tokens)
    if isinstance(layer.ffn, Moe):
        working = np.maximum(working, moe_working(layer.ffn, model, x))
    return rounded(working)


def _backward_working(layer: Layer, model: Model, x: Shapes) -> WorkingSet:
    """Sets of gradients alive inside the backward pass of a layer.

    Equation:
        ``2 h T (c r + g)`` with c copies in the sharded and g in the gathered region, beside
        those of the mixer or of the network.
    """
    b = x.behaviours
    hidden = ACTIVATION_BYTES * model.hidden
    common = hidden * (
        b["working_hidden_copies"] * x.shared_tokens + b["gathered_hidden_copies"] * x.tokens
    )
    inner = np.zeros_like(x.tokens)
    for mixer in layer.mixers:
        inner = np.maximum(inner, mixer_working(mixer, x))
    network = np.zeros_like(x.tokens)
    match layer.ffn:
        case Mlp(ffn_hidden=f, gated=gated):
            network = network_working(x, ffn_hidden=f, gated=gated)
        case Moe() as moe:
            network = moe_working(moe, model, x)
    return WorkingSet(common=common, mixer=inner, network=network)
