"""Traffic inside a block: tensor, context and expert parallelism, per micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np
import numpy.typing as npt

from meshplan.cost.behaviour import gathers_again
from meshplan.cost.collectives import Collective
from meshplan.cost.communication.records import Network, Traffic
from meshplan.cost.factoring import Factored, factor
from meshplan.cost.operators import expert_rows, shapes_of
from meshplan.cost.operators.records import FIELDS, Number, Shapes
from meshplan.cost.surfaces import constant
from meshplan.cost.tuning import NEUTRAL, Tuning
from meshplan.inputs.job import LOW_PRECISIONS
from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    LatentAttention,
    Layer,
    Mixer,
    Moe,
)
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.placement import AxisGroup, axis_group
from meshplan.space.plan import CpComm, PlanGrid, Recompute
from meshplan.units import BF16_BYTES

__all__ = ["BlockCommunication", "block_communication"]

FloatArray = npt.NDArray[np.float64]


@record
class BlockCommunication:
    """Traffic of one block for one micro-batch on one device.

    ``recompute`` is what the recompute mode of each plan repeats in the backward pass, for a
    block to which it applies.

    Attributes:
        tp_forward: tensor-parallel traffic forward.
        tp_backward: the same backward.
        tp_beside_input: what of it can run beside the gradients of the inputs of split products.
        tp_beside_weight: what of it can run beside the gradients of their weights.
        tp_recompute: the same repeated.
        cp_forward: context-parallel traffic forward.
        cp_backward: the same backward.
        cp_recompute: the same repeated.
        ep_forward: dispatch to the experts and back, forward.
        ep_backward: the same backward.
        ep_recompute: the same repeated.
    """

    tp_forward: Traffic
    tp_backward: Traffic
    tp_beside_input: Traffic
    tp_beside_weight: Traffic
    tp_recompute: Traffic
    cp_forward: Traffic
    cp_backward: Traffic
    cp_recompute: Traffic
    ep_forward: Traffic
    ep_backward: Traffic
    ep_recompute: Traffic


def block_communication(
    scenario: Scenario, layer: Layer, grid: PlanGrid, *, tuning: Tuning = NEUTRAL
) -> BlockCommunication:
    """Traffic of one block under tensor, context and expert parallelism.

    Args:
        scenario: model, cluster and job.
        layer: the block.
        grid: plans.
        tuning: factors of the profile.

    Returns:
        Bytes and seconds per micro-batch, arrays ``(num_plans,)``.
    """
    # strides of the axes follow from tp, cp, etp and ep alone
    factored = factor(grid, FIELDS)
    part = factored.grid
    block = _Block(
        scenario=scenario,
        plans=grid,
        factored=factored,
        grid=part,
        shapes=shapes_of(scenario, part, tuning),
        network=Network(cluster=scenario.cluster, tuning=tuning),
        tp=axis_group(part, "tp"),
    )
    tp, beside = block.tensor_parallel(layer)
    cp = block.context_parallel(layer)
    ep = block.expert_parallel(layer)

    return BlockCommunication(
        tp_forward=tp[0].expand(factored),
        tp_backward=tp[1].expand(factored),
        tp_beside_input=beside[0].expand(factored),
        tp_beside_weight=beside[1].expand(factored),
        tp_recompute=tp[2],
        cp_forward=cp[0].expand(factored),
        cp_backward=cp[1].expand(factored),
        cp_recompute=cp[2],
        ep_forward=ep[0].expand(factored),
        ep_backward=ep[1].expand(factored),
        ep_recompute=ep[2],
    )


Passes = tuple[Traffic, Traffic, Traffic]
"""Forward and backward of distinct plans, and what recompute repeats of each plan."""
Beside = tuple[Traffic, Traffic]
"""What can run beside input gradients and beside weight gradients, of distinct plans."""


@record
class _Block:
    """One block on a grid of plans that differ in more than what they recompute.

    Attributes:
        scenario: model, cluster and job.
        plans: all plans, with what each of them recomputes.
        factored: where each of them finds its own among the distinct ones.
        grid: the distinct ones.
        shapes: their sizes.
        network: the network that they use.
        tp: their tensor-parallel groups.
    """

    scenario: Scenario
    plans: PlanGrid
    factored: Factored
    grid: PlanGrid
    shapes: Shapes
    network: Network
    tp: AxisGroup
    _streams: dict[float, Passes] = field(default_factory=dict)

    def _again(self, forward: Traffic, modules: Recompute) -> Traffic:
        """Forward traffic of the plans that run a module again, or the whole block."""
        named = (self.plans.recompute & int(modules | Recompute.FULL)) != 0
        return forward.expand(self.factored).times(np.where(named, 1.0, 0.0))

    def _no_passes(self) -> Passes:
        nothing = Traffic.none(len(self.grid))
        return nothing, nothing, Traffic.none(len(self.plans))

    def tensor_parallel(self, layer: Layer) -> tuple[Passes, Beside]:
        """Traffic of column- and row-split pairs.

        With sequence parallelism a pair gathers its input and reduce-scatters its output,
        backward the other way round; Megatron gathers the input once more for the gradient of
        the weight, others keep it. Without, it all-reduces the output, and backward the
        gradient of the input [1]_.

        The second gather can run beside the gradient of the input, which does not need it, and
        the sum of that gradient beside the gradient of the weight; the gather of the output's
        gradient is waited for [2]_.

        References:
            .. [1] Korthikanti et al., arXiv:2205.05198, section 4.2.2.
            .. [2] Megatron-LM, core/tensor_parallel/layers.py,
               ``LinearWithGradAccumulationAndAsyncCommunication.backward``.
        """
        nothing = Traffic.none(len(self.grid))
        passes, beside = self._no_passes(), (nothing, nothing)
        for width, modules in self._pairs(layer):
            pair, hideable = self._pair(width, modules)
            passes = _add(passes, pair)
            beside = beside[0] + hideable[0], beside[1] + hideable[1]
        return passes, beside

    def _pairs(self, layer: Layer) -> Iterator[tuple[float, Recompute]]:
        """Input width of each pair of split products, and the module that repeats it."""
        for mixer in layer.mixers:
            yield _input_width(mixer, self.shapes), Recompute.NONE
        hidden = float(self.shapes.hidden)
        if isinstance(layer.ffn, Moe):
            if layer.ffn.shared_ffn_hidden:
                yield hidden, Recompute.SHARED_EXPERTS
        elif layer.ffn is not None:
            yield hidden, Recompute.MLP

    def _stream(self, width: float) -> Passes:
        """Gather, scatter and all-reduce of tokens of ``width`` channels in the ``tp`` groups."""
        if width not in self._streams:
            message = BF16_BYTES * self.shapes.tokens * width
            gather, scatter, reduce = (
                self.network.collective(kind, self.tp, share * message)
                for kind, share in (
                    (Collective.ALL_GATHER, self._gathered_share()),
                    (Collective.REDUCE_SCATTER, 1.0),
                    (Collective.ALL_REDUCE, 1.0),
                )
            )
            self._streams[width] = gather, scatter, reduce
        return self._streams[width]

    def _gathered_share(self) -> FloatArray:
        """Bytes of a gather over those of a gather in 16 bits.

        What a split product reads is quantised before it is gathered, forward its input and
        backward the gradient of its output [1]_; torchtitan does so with one scale a tensor, not
        with scales of rows or blocks [2]_. Sums stay in 16 bits.

        References:
            .. [1] Transformer Engine, pytorch/module/layernorm_linear.py,
               ``with_quantized_all_gather``; torchao, float8/float8_tensor_parallel.py.
            .. [2] torchtitan, models/llama3/parallelize.py, ``enable_float8_tensorwise_tp``.
        """
        precision = self.scenario.job.precision
        if not self.network.tuning.quantised_gathers or precision not in LOW_PRECISIONS:
            return np.ones(len(self.grid))
        by_tensor = precision == "fp8"
        share = constant(f"gathered_bytes_{precision}") / BF16_BYTES
        return np.where(self.grid.is_torch_native & (not by_tensor), 1.0, share)

    def _pair(self, input_width: float, modules: Recompute) -> tuple[Passes, Beside]:
        """One pair of split products with an input of ``input_width`` channels."""
        sp = self.grid.sp.astype(bool)
        gather_in, scatter_in, reduce_in = self._stream(input_width)
        gather_out, scatter_out, reduce_out = self._stream(float(self.shapes.hidden))
        forward = _choose(sp, gather_in + scatter_out, reduce_out)
        # the gradient of a frozen weight, which needs the whole input, is never asked for
        needed = gathers_again(self.scenario, self.grid) & self.shapes.trained
        again = gather_in.times(np.where(needed, 1.0, 0.0))
        scattered = np.where(sp, 1.0, 0.0)
        early, late = again.times(scattered), _choose(sp, scatter_in, reduce_in)
        backward = gather_out.times(scattered) + early + late
        return (forward, backward, self._again(forward, modules)), (early, late)

    def context_parallel(self, layer: Layer) -> Passes:
        """Traffic of keys and values, or of heads.

        A ring passes the keys and values of a device to all others, backward those and their
        gradients; an all-gather collects them and reduce-scatters the gradients; Ulysses swaps
        heads for tokens on queries, keys, values and outputs.
        """
        passes = self._no_passes()
        for mixer in layer.mixers:
            widths = _head_widths(mixer, self.shapes)
            if widths is not None:
                passes = _add(passes, self._exchange(*widths))
        return passes

    def _exchange(self, query_width: Number, kv_width: Number) -> Passes:
        group = axis_group(self.grid, "cp")
        cp = self.shapes.cp
        own = BF16_BYTES * self.shapes.tokens * kv_width
        heads = BF16_BYTES * self.shapes.tokens * (query_width + kv_width)
        step = self.network.send(group, own)
        gather = self.network.collective(Collective.ALL_GATHER, group, own * cp)
        scatter = self.network.collective(Collective.REDUCE_SCATTER, group, own * cp)
        swap = self.network.collective(Collective.ALL_TO_ALL, group, heads)
        ring = self.grid.cp_comm == CpComm.P2P
        ulysses = self.grid.cp_comm == CpComm.ALL_TO_ALL
        forward = _choose(ring, step.times(cp - 1.0), _choose(ulysses, swap, gather))
        backward = _choose(
            ring, step.times(2.0 * cp - 1.0), _choose(ulysses, swap, gather + scatter)
        )
        active = np.where(self.grid.cp > 1, 1.0, 0.0)
        forward, backward = forward.times(active), backward.times(active)
        return forward, backward, self._again(forward, Recompute.CORE_ATTENTION)

    def expert_parallel(self, layer: Layer) -> Passes:
        """Traffic of routed tokens: to their experts and back, each way in both passes.

        With tensor parallelism inside the experts the tokens are gathered over that group on
        arrival and reduce-scattered before they go back.
        """
        if not isinstance(layer.ffn, Moe):
            return self._no_passes()
        ep = axis_group(self.grid, "ep")
        etp = axis_group(self.grid, "etp")
        width = float(layer.ffn.routed_dim(hidden=self.shapes.hidden))
        arriving = BF16_BYTES * expert_rows(layer.ffn, self.shapes) * width
        exchange = self._dispatch(layer.ffn, ep, arriving / self.shapes.etp)
        gather = self.network.collective(Collective.ALL_GATHER, etp, np.asarray(arriving))
        scatter = self.network.collective(Collective.REDUCE_SCATTER, etp, np.asarray(arriving))
        forward = exchange.times(2.0) + gather + scatter
        return forward, forward, self._again(forward, Recompute.MOE)

    def _dispatch(self, moe: Moe, group: AxisGroup, message: Number) -> Traffic:
        """One exchange of tokens between the devices of an expert-parallel group.

        An all-to-all sends every copy of a token; a deduplicated exchange sends a token once to
        each device, and over the network once to each node, that holds an expert of its choice.
        With ``k`` even choices among ``n`` places the expected share of places is
        ``1 - (1 - 1 / n)^k``.
        """
        whole = self.network.collective(Collective.ALL_TO_ALL, group, np.asarray(message))
        if not self.network.tuning.deduplicated_dispatch:
            return whole
        return self.network.deduplicated_exchange(group, np.asarray(message), moe=moe)


def _choose(condition: npt.NDArray[np.bool_], yes: Traffic, no: Traffic) -> Traffic:
    return Traffic(
        num_bytes=np.where(condition, yes.num_bytes, no.num_bytes),
        seconds=np.where(condition, yes.seconds, no.seconds),
        num_calls=np.where(condition, yes.num_calls, no.num_calls),
    )


def _add(left: Passes, right: Passes) -> Passes:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def _input_width(mixer: Mixer, shapes: Shapes) -> float:
    """Channels that are gathered before the split projections of a mixer.

    Latent attention gathers its compressed queries, keys and values instead of the stream.
    """
    if isinstance(mixer, LatentAttention):
        queries = mixer.q_lora_rank or shapes.hidden
        return float(queries + mixer.kv_lora_rank + mixer.qk_rope_head_dim)
    return float(shapes.hidden)


def _head_widths(mixer: Mixer, shapes: Shapes) -> tuple[Number, Number] | None:
    """Local widths of queries with outputs, and of keys with values; None without scores."""
    if isinstance(mixer, LatentAttention):
        qk_dim = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        both = mixer.num_heads * (qk_dim + mixer.v_head_dim) / shapes.tp
        return both, both
    if isinstance(mixer, Attention):
        v_dim = mixer.v_head_dim
    elif isinstance(mixer, CrossAttention):
        v_dim = mixer.head_dim
    else:
        return None
    kv_heads = np.maximum(mixer.num_kv_heads / shapes.tp, 1.0)
    width = float(mixer.head_dim + v_dim)
    return mixer.num_heads / shapes.tp * width, kv_heads * width
