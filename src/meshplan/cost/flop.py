"""FLOP of a model and of what a plan repeats, in the three conventions of utilisation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.compute import rerun_share
from meshplan.cost.operators import (
    Elementwise,
    Gemm,
    Operator,
    ScoreProduct,
    head_operators,
    layer_operators,
    shapes_of,
)
from meshplan.cost.tuning import Tuning
from meshplan.inputs.model import Layer
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import CpComm, Framework, Plan, PlanGrid, Recompute, Schedule

__all__ = ["ModelFlop", "model_flop", "recompute_flop"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlop:
    """FLOP of one step over all devices, forward and backward, recompute left out.

    Attributes:
        full: attention counted over all query-key pairs (PaLM's convention) [flop].
        causal: attention counted inside its mask [flop].
    """

    full: float
    causal: float


def model_flop(scenario: Scenario) -> ModelFlop:
    """Count the FLOP of one step.

    Equation: ``sum over products of 2 m n k (1 + 1 + w)`` plus three times the score products,
    ``w`` being 1 where the weight is trained [1]_. Routed experts count by the tokens that they
    receive, the output head counts, embedding look-ups do not.

    References:
        .. [1] Chowdhery et al., PaLM, arXiv:2204.02311, appendix B.
    """
    full, causal = 0.0, 0.0
    counts: dict[Layer, int] = {}
    for layer in scenario.model.layers + scenario.model.mtp_layers:
        counts[layer] = counts.get(layer, 0) + 1
    shapes = shapes_of(scenario, PlanGrid.of([_whole(Recompute.NONE)]), Tuning())
    groups: list[tuple[list[Operator], int]] = [
        (layer_operators(layer, shapes), count) for layer, count in counts.items()
    ]
    vocab = float(scenario.model.vocab)
    groups.append((head_operators(scenario.model, shapes, padded_vocab=vocab), 1))
    for operators, count in groups:
        for operator in operators:
            one_full, one_causal = _training_flop(operator)
            full += count * one_full
            causal += count * one_causal
    sequences = scenario.job.global_batch
    return ModelFlop(full=full * sequences, causal=causal * sequences)


def recompute_flop(scenario: Scenario, layer: Layer, grid: PlanGrid) -> FloatArray:
    """FLOP that each plan's recompute mode repeats in one block for one sequence, all devices.

    Attention is counted in full, as in :attr:`ModelFlop.full`.

    Returns:
        An array ``(num_plans,)`` [flop].
    """
    modes = np.unique(grid.recompute)
    plans = PlanGrid.of([_whole(Recompute(int(mode))) for mode in modes])
    shapes = shapes_of(scenario, plans, Tuning())
    repeated = np.zeros(len(plans))
    for operator in layer_operators(layer, shapes):
        forward = _forward_flop(operator)[0]
        repeated = repeated + forward * rerun_share(operator, plans)
    result: FloatArray = repeated[np.searchsorted(modes, grid.recompute)]
    return result


def _forward_flop(operator: Operator) -> tuple[FloatArray | float, FloatArray | float]:
    """Forward FLOP with full and with masked attention."""
    if isinstance(operator, Elementwise):
        return 0.0, 0.0
    causal = operator.forward_flop
    if isinstance(operator, ScoreProduct):
        return replace(operator, pairs=operator.full_pairs).forward_flop, causal
    return causal, causal


def _training_flop(operator: Operator) -> tuple[float, float]:
    """Forward and backward FLOP of one operator, with full and with masked attention."""
    full, causal = _forward_flop(operator)
    passes = 3.0
    if isinstance(operator, Gemm) and operator.dense_weight and not operator.weight_gradient:
        passes = 2.0
    return passes * float(np.sum(full)), passes * float(np.sum(causal))


def _whole(recompute: Recompute) -> Plan:
    """One sequence on one device that holds everything."""
    return Plan(
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
