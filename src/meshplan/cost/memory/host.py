"""Activations that wait in host memory between forward and backward pass."""

from __future__ import annotations

import numpy as np

from meshplan.cost.memory.grid import Evaluator
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
    evaluator = Evaluator(scenario, grid)
    moved = np.zeros(len(grid))
    for device, plans in evaluator.with_devices():
        here = evaluator.moving.offloaded_once[evaluator.moving.of(plans, device), 0]
        moved[plans] = np.maximum(moved[plans], here)
    return moved
