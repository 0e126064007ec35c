"""Model FLOP of a step, the numerator of MFU, and what recompute adds for HFU.

Three conventions are in use: attention counted in full, as PaLM does; with its causal mask, which
halves it for long sequences; and with the recomputed forward passes (hardware FLOP).

References:
    1. Chowdhery et al., PaLM, 2022, appendix B (MFU, attention in full).
    2. Korthikanti et al., Reducing activation recomputation, 2022, appendix A (HFU).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshplan.cost.compute import rerun_share
from meshplan.cost.operators import (
    Gemm,
    Operator,
    Scan,
    ScoreProduct,
    Shapes,
    head_operators,
    layer_operators,
    shapes_of,
)
from meshplan.cost.tuning import NEUTRAL
from meshplan.inputs.model import Layer
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import (
    CpComm,
    Framework,
    Plan,
    PlanGrid,
    Recompute,
    Schedule,
)

__all__ = ["StepFlop", "matrix_parameters", "recompute_flop", "step_flop"]

FloatArray = npt.NDArray[np.float64]


@record
class StepFlop:
    """FLOP of one step over all devices [flop].

    Attributes:
        full: attention counted in full.
        causal: attention counted inside its mask.
    """

    full: float
    causal: float


def _whole_model_grid(recompute: Recompute) -> PlanGrid:
    """One device, one sequence per micro-batch: the shapes of the whole model."""
    plan = Plan(
        framework=Framework.MEGATRON,
        tp=1,
        sp=False,
        pp=1,
        vpp=1,
        schedule=Schedule.ONE_F_ONE_B,
        cp=1,
        cp_comm=CpComm.P2P,
        ep=1,
        etp=1,
        dp=1,
        dp_shard=1,
        dp_replicate=1,
        zero=0,
        micro_batch=1,
        num_micro_batches=1,
        recompute=recompute,
    )
    return PlanGrid.of([plan])


def _products(operators: Sequence[Operator], share: Sequence[float]) -> tuple[float, float]:
    """Forward FLOP of the products, attention in full and inside the mask, weighed by shares."""
    full = causal = 0.0
    for operator, weight in zip(operators, share, strict=True):
        if isinstance(operator, Gemm | Scan):
            flop = weight * float(np.max(operator.forward_flop))
            full, causal = full + flop, causal + flop
        elif isinstance(operator, ScoreProduct):
            flop = weight * float(np.max(operator.forward_flop))
            causal += flop
            full += flop * float(np.max(operator.full_pairs)) / float(np.max(operator.pairs))
    return full, causal


def _blocks(scenario: Scenario) -> list[tuple[Layer, int]]:
    """Distinct blocks with their number, MTP blocks included."""
    layers = scenario.model.layers + scenario.model.mtp_layers
    return [(kind, layers.count(kind)) for kind in scenario.model.layer_kinds]


def _heads(scenario: Scenario, shapes: Shapes) -> list[Operator]:
    """The output head, once for the next token and once for each MTP block."""
    vocab = np.array([float(scenario.model.vocab)])
    return head_operators(scenario.model, shapes, padded_vocab=vocab)


@lru_cache(maxsize=8)
def step_flop(scenario: Scenario) -> StepFlop:
    """Count the model FLOP of one step: three forward passes of every product.

    The forward is counted once and the backward twice; adapters on frozen weights skip the
    gradient of the weights.
    """
    grid = _whole_model_grid(Recompute.NONE)
    shapes = shapes_of(scenario, grid, NEUTRAL)
    full = causal = 0.0
    for layer, count in _blocks(scenario):
        operators = layer_operators(layer, shapes)
        one = _products(operators, [1.0] * len(operators))
        full, causal = full + count * one[0], causal + count * one[1]
    heads = _heads(scenario, shapes)
    both = _products(heads, [1.0] * len(heads))
    passes = 3.0 if scenario.job.task in ("pretrain", "full_finetune") else 2.0
    sequences = passes * scenario.job.global_batch
    return StepFlop(full=sequences * (full + both[0]), causal=sequences * (causal + both[1]))


def matrix_parameters(scenario: Scenario) -> float:
    """Count the weights of matrices that one token meets, routed experts by their share.

    Equation: ``sum over products with weights of 2 m n k / (2 s)`` for one sequence; biases,
    norms, recurrences and embedding look-ups are no products.
    """
    shapes = shapes_of(scenario, _whole_model_grid(Recompute.NONE), NEUTRAL)
    groups: list[tuple[Sequence[Operator], int]] = [
        (layer_operators(layer, shapes), count) for layer, count in _blocks(scenario)
    ]
    groups.append((_heads(scenario, shapes), 1))
    flop = sum(
        count * float(np.max(operator.forward_flop))
        for operators, count in groups
        for operator in operators
        if isinstance(operator, Gemm)
    )
    return flop / (2.0 * scenario.job.seq_len)


def recompute_flop(scenario: Scenario, grid: PlanGrid) -> FloatArray:
    """Count the FLOP that recompute repeats in one step, over all devices, attention in full.

    Returns:
        FLOP, ``(num_plans,)``.
    """
    total = np.zeros(len(grid))
    per_stage = scenario.model.num_layers / (grid.pp * grid.vpp)
    first = np.where(grid.recompute_layers > 0, grid.recompute_layers, per_stage)
    share = np.minimum(first / per_stage, 1.0)
    for flags in np.flatnonzero(np.bincount(grid.recompute)):
        if flags == Recompute.NONE:
            continue
        again = _repeated_flop(scenario, Recompute(int(flags)))
        chosen = grid.recompute == flags
        total = np.where(chosen, scenario.job.global_batch * again * share, total)
    return total


@lru_cache(maxsize=64)
def _repeated_flop(scenario: Scenario, recompute: Recompute) -> float:
    """FLOP of one sequence that a recompute mode repeats in all blocks, attention in full."""
    one = _whole_model_grid(recompute)
    shapes = shapes_of(scenario, one, NEUTRAL)
    again = 0.0
    for layer, count in _blocks(scenario):
        operators = layer_operators(layer, shapes)
        shares = [float(np.max(rerun_share(op, one))) for op in operators]
        again += count * _products(operators, shares)[0]
    return again
