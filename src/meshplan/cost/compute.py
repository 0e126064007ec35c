"""Seconds of computation of one block and of the two ends of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshplan.cost.behaviour import accumulated_bytes, training_vocab
from meshplan.cost.factoring import Factored, factor
from meshplan.cost.kernels import Kernels
from meshplan.cost.operators import (
    Gemm,
    Operator,
    Scan,
    ScoreProduct,
    Shapes,
    embedding_operators,
    head_operators,
    layer_operators,
    shapes_of,
)
from meshplan.cost.operators.records import FIELDS, Number
from meshplan.cost.surfaces import constant
from meshplan.cost.tuning import NEUTRAL, Tuning
from meshplan.inputs.model import Layer
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import PlanGrid, Recompute

__all__ = ["LayerTime", "embedding_time", "head_time", "layer_time", "rerun_share", "with_host"]

FloatArray = npt.NDArray[np.float64]
TINY = 1e-12
BACKWARD_LAUNCHES = 2.0
"""Kernels backward over kernels forward: two gradients for each product."""
UNFUSED_LAUNCHES = 6.0
"""Attention that stores its scores, besides softmax: two products, dropout and three layouts."""

COLUMN_SPLIT = frozenset(
    {
        "qkv_projection",
        "q_projection",
        "kv_projection",
        "q_up_projection",
        "kv_up_projection",
        "in_projection",
        "mlp_input_projection",
        "shared_expert_input_projection",
    }
)
"""Products whose output is split over the tensor-parallel group, and whose input is gathered."""
ROUTER = ("router", "top_k", "shared_expert")
FEED_FORWARD = ("mlp", "expert", "permute", "latent", "side")
"""How names of operators begin that no graph of the mixers holds."""


@record
class LayerTime:
    """Computation of one block for one micro-batch on one device; arrays ``(num_plans,)``.

    Attributes:
        forward_s: forward [s].
        input_grad_s: gradients of activations, the B of zero-bubble schedules [s].
        weight_grad_s: gradients of weights, their W [s].
        recompute_s: forward work done again in the backward pass under the recompute mode of
            each plan, for a block to which it applies [s].
        split_input_s: the part of ``input_grad_s`` in products whose input is gathered over the
            tensor-parallel group [s].
        split_weight_s: the part of ``weight_grad_s`` in the same [s].
        attention_forward_s: the score products in ``forward_s`` [s].
        attention_backward_s: the score products in ``input_grad_s`` [s].
        host_forward_s: time that the host takes to launch the forward pass [s]. Computation and
            traffic of the pass together take at least as long.
        host_backward_s: the same for the backward pass [s].
        host_recompute_s: the same for what is recomputed [s].
    """

    forward_s: FloatArray
    input_grad_s: FloatArray
    weight_grad_s: FloatArray
    recompute_s: FloatArray
    split_input_s: FloatArray
    split_weight_s: FloatArray
    attention_forward_s: FloatArray
    attention_backward_s: FloatArray
    host_forward_s: FloatArray
    host_backward_s: FloatArray
    host_recompute_s: FloatArray

    @property
    def backward_s(self) -> FloatArray:
        """Both gradients, without recompute [s]."""
        return self.input_grad_s + self.weight_grad_s


def layer_time(
    scenario: Scenario, layer: Layer, grid: PlanGrid, *, tuning: Tuning = NEUTRAL
) -> LayerTime:
    """Time one block.

    Equation: the sum over its operators of the kernel times, forward and backward; communication
    is not in it.

    Args:
        scenario: model, cluster and job.
        layer: the block.
        grid: plans.
        tuning: training factors of the profile.

    Returns:
        Seconds per micro-batch on one device, arrays ``(num_plans,)``.
    """
    return _time(scenario, grid, tuning, lambda shapes, _: layer_operators(layer, shapes))


def embedding_time(scenario: Scenario, grid: PlanGrid, *, tuning: Tuning = NEUTRAL) -> LayerTime:
    """Time the input embedding; see :func:`layer_time`."""
    return _time(
        scenario,
        grid,
        _outside_blocks(tuning),
        lambda shapes, _: embedding_operators(scenario.model, shapes),
    )


def head_time(scenario: Scenario, grid: PlanGrid, *, tuning: Tuning = NEUTRAL) -> LayerTime:
    """Time the final norm, the output head and the loss; see :func:`layer_time`."""

    def operators(shapes: Shapes, part: PlanGrid) -> list[Operator]:
        vocab = training_vocab(scenario, part).astype(np.float64)
        return head_operators(scenario.model, shapes, padded_vocab=vocab)

    time = _time(scenario, grid, _outside_blocks(tuning), operators)
    return replace(time, recompute_s=np.zeros(len(grid)))


def _outside_blocks(tuning: Tuning) -> Tuning:
    """Factors where no graph of parts of a block launches anything [1]_.

    References:
        .. [1] Megatron-LM, core/transformer/cuda_graphs.py: ``_layer_is_graphable``: layers of the
           decoder and of MTP blocks alone.
    """
    return replace(tuning, graph_attention=False, graph_router=False)


def with_host(
    time: LayerTime,
    *,
    forward_s: FloatArray,
    backward_s: FloatArray,
    recompute_s: FloatArray,
) -> LayerTime:
    """Let the device wait where the host launches slower than device and links work.

    Equation: ``max(computation + traffic, launches)`` for each pass; the wait is added to the
    computation, backward in equal shares of time to both gradients.

    Args:
        time: computation of a block.
        forward_s: traffic that shows in its forward pass [s].
        backward_s: traffic that shows in its backward pass [s].
        recompute_s: traffic that shows in what is repeated [s].
    """
    ahead = np.maximum(time.host_forward_s - time.forward_s - forward_s, 0.0)
    again = np.maximum(time.host_recompute_s - time.recompute_s - recompute_s, 0.0)
    back = np.maximum(time.host_backward_s - time.backward_s - backward_s, 0.0)
    share = back / np.maximum(time.backward_s, TINY)
    return replace(
        time,
        forward_s=time.forward_s + ahead,
        input_grad_s=time.input_grad_s * (1.0 + share),
        weight_grad_s=time.weight_grad_s * (1.0 + share),
        recompute_s=time.recompute_s + again,
    )


def _time(
    scenario: Scenario,
    grid: PlanGrid,
    tuning: Tuning,
    operators: Callable[[Shapes, PlanGrid], Sequence[Operator]],
) -> LayerTime:
    """Sum kernel times over operators, once per distinct combination of the plan fields.

    What is recomputed changes no kernel, only which of them run again.
    """
    factored = factor(grid, FIELDS)
    part = factored.grid
    kernels = Kernels(
        scenario.cluster.device,
        precision=scenario.job.precision,
        tuning=tuning,
        gradient_bytes=accumulated_bytes(scenario, part),
    )
    shapes = shapes_of(scenario, part, tuning)
    each = [_timed(kernels, operator, grid, tuning) for operator in operators(shapes, part)]
    products = [one for one in each if isinstance(one.operator, Gemm)]
    split = [one for one in products if one.operator.name in COLUMN_SPLIT]
    scores = [one for one in each if isinstance(one.operator, ScoreProduct)]

    def total(some: Iterable[_Timed], name: str) -> FloatArray:
        """Add up one of the times, operator by operator."""
        return _sum((getattr(one, name) for one in some), len(part))

    def rerun(name: str) -> FloatArray:
        """Add up what runs again, by plans."""
        return _sum(
            (_of_plans(factored, getattr(one, name)) * one.share for one in each), len(grid)
        )

    again = rerun("forward_s")
    # torch's checkpoint stops as soon as it has what the backward pass needs, which leaves out
    # the last product of a block; Megatron's and nanotron's runs to the end
    stops_early = grid.is_torch_native & ((grid.recompute & Recompute.FULL) != 0)
    last_product = products[-1].forward_s if products else np.zeros(len(part))
    again = again - np.where(stops_early, _of_plans(factored, last_product), 0.0)
    launches = total(each, "launches")
    launches = launches + float(tuning.graph_attention) + float(tuning.graph_router)
    return LayerTime(
        forward_s=factored.expand(total(each, "forward_s")),
        input_grad_s=factored.expand(total(each, "input_s")),
        weight_grad_s=factored.expand(total(each, "weight_s")),
        recompute_s=again,
        split_input_s=factored.expand(total(split, "input_s")),
        split_weight_s=factored.expand(total(split, "weight_s")),
        attention_forward_s=factored.expand(total(scores, "forward_s")),
        attention_backward_s=factored.expand(total(scores, "input_s")),
        host_forward_s=factored.expand(tuning.launch_s * launches),
        host_backward_s=factored.expand(tuning.launch_s * (BACKWARD_LAUNCHES * launches)),
        host_recompute_s=tuning.launch_s * rerun("launches"),
    )


@record
class _Timed:
    """One operator; arrays ``(num_combinations,)`` or ``(1,)``, the share ``(num_plans,)``.

    Attributes:
        operator: what runs.
        forward_s: its forward pass [s].
        input_s: gradient of its input [s].
        weight_s: gradient of its weight [s].
        launches: kernels of its forward pass that no graph launches.
        share: the part of it that the recompute mode runs again.
    """

    operator: Operator
    forward_s: FloatArray
    input_s: FloatArray
    weight_s: FloatArray
    launches: Number
    share: Number


def _timed(kernels: Kernels, operator: Operator, grid: PlanGrid, tuning: Tuning) -> _Timed:
    """Time one operator."""
    forward, inputs, weight = _passes_s(kernels, operator)
    launches = _launches(operator, quantised=kernels.quantises(operator))
    return _Timed(
        operator=operator,
        forward_s=forward,
        input_s=inputs,
        weight_s=weight,
        launches=launches * (0.0 if _in_graph(operator, tuning) else 1.0),
        share=rerun_share(operator, grid),
    )


def _sum(values: Iterable[Number], length: int) -> FloatArray:
    total = np.zeros(length)
    for value in values:
        total = total + value
    return total


def _of_plans(factored: Factored, values: Number) -> Number:
    """Values of distinct combinations, or one value for all, as values of all plans."""
    values = np.asarray(values)
    return factored.expand(values) if values.ndim and len(values) > 1 else values


def _passes_s(kernels: Kernels, operator: Operator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Time of one operator forward, of its input gradient and of its weight gradient [s]."""
    zero = np.zeros(1)
    if isinstance(operator, Gemm):
        forward, inputs, weight = kernels.products_s(operator)
        if not operator.dense_weight:
            return forward, inputs + weight, zero
        return forward, inputs, weight if operator.weight_gradient else zero
    if isinstance(operator, ScoreProduct):
        return *kernels.attention_s(operator), zero
    if isinstance(operator, Scan):
        return *kernels.scan_s(operator), zero
    return *kernels.elementwise_s(operator), zero


def _in_graph(operator: Operator, tuning: Tuning) -> bool:
    """Whether an operator is launched with a CUDA graph, which is one launch for all of it."""
    if operator.name.startswith(ROUTER):
        return tuning.graph_router
    return tuning.graph_attention and not operator.name.startswith(FEED_FORWARD)


def _launches(operator: Operator, *, quantised: bool) -> Number:
    """Launches of one operator forward, in those of a kernel of its own.

    A product in few bits launches the cast of its input too. Groups that are launched apart pass
    through one call of the framework; each more costs a share of that.
    """
    share = constant("group_launch_share")
    if isinstance(operator, Gemm):
        more = np.where(operator.launched_apart, operator.groups - 1.0, 0.0)
        each = (1.0 + share * more) * (2.0 if quantised else 1.0)
        return np.where(np.asarray(operator.n) > 0, operator.count * each, 0.0)
    if isinstance(operator, ScoreProduct):
        if operator.fused:
            return operator.rounds
        return operator.rounds * (UNFUSED_LAUNCHES + operator.softmax_kernels)
    if isinstance(operator, Scan):
        return operator.kernels
    return operator.kernels * (1.0 + share * (operator.groups - 1.0))


def rerun_share(operator: Operator, grid: PlanGrid) -> FloatArray:
    """Share of the forward time of an operator that each plan's recompute mode repeats."""
    if isinstance(operator, Gemm):
        kept = 0.5
    elif isinstance(operator, ScoreProduct):
        kept = 1.0
    else:
        kept = 0.0
    share: FloatArray = _rerun_shares(_module_of(operator), kept)[grid.recompute]
    return share


@lru_cache(maxsize=64)
def _rerun_shares(module: Recompute, kept: float) -> FloatArray:
    """The share by recompute mode.

    Args:
        module: modules that contain the operator.
        kept: share that is kept where single operators are chosen [1].
    """
    modes = np.arange(2 * Recompute.FULL)
    share = np.where((modes & module) != 0, 1.0, 0.0)
    share = np.where((modes & Recompute.SELECTIVE_OP) != 0, 1.0 - kept, share)
    return np.where((modes & Recompute.FULL) != 0, 1.0, share)


def _module_of(operator: Operator) -> Recompute:
    """Modules of selective recompute that contain the operator."""
    return Recompute.NONE if isinstance(operator, Scan) else operator.rerun
