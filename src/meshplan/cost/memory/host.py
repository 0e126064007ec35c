"""Activations that wait in host memory between forward and backward pass."""

from __future__ import annotations

from meshplan.cost.memory.evaluator import Evaluator
from meshplan.cost.memory.shapes import FloatArray
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import PlanGrid

__all__ = ["offloaded_activations"]


def offloaded_activations(scenario: Scenario, grid: PlanGrid) -> FloatArray:
    """Activations of one micro-batch that the fullest device moves to its host.

    Args:
        scenario: model, cluster and job.
        grid: plans, in any number.

    Returns:
        Bytes in one direction [bytes], shape ``(num_plans,)``; 0 where nothing is offloaded.
    """
    return Evaluator(scenario, grid).offloaded_once()
