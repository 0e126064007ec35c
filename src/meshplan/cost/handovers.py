"""Micro-batches that pass from stage to stage of a pipeline, and what may hold them up."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.inputs.profile import ClusterProfile
from meshplan.space.plan import PlanGrid

__all__ = ["num_handovers", "possible_stall_s"]

FloatArray = npt.NDArray[np.float64]
POSSIBLE = 0.5
"""Chance from which the upper end of the 80 % band counts a stall in full: as likely as not.

A rarer one counts as much less as it is rarer, so that no plan is passed over for a stall that
hardly any run meets.
"""


def num_handovers(grid: PlanGrid) -> FloatArray:
    """Micro-batches of a step, times the share of the stages that pass them on.

    Equation: ``m (1 - 1/p)`` for ``m`` micro-batches on ``p`` stages; 0 without a pipeline.

    Args:
        grid: the plans.

    Returns:
        Numbers, shape ``(num_plans,)``.
    """
    return grid.num_micro_batches * (1.0 - 1.0 / grid.pp)


def possible_stall_s(
    cluster: ClusterProfile, handovers: FloatArray, *, num_nodes: int
) -> FloatArray:
    """What nodes that may hold up a pipeline add to the upper end of the band of a step [s].

    A step is predicted without them, since nothing about a plan tells whether one is there.

    Equation: ``h s min(1, c / POSSIBLE)`` for ``h`` handovers, where ``c = 1 - (1 - q)^n`` is the
    chance that one of ``n`` nodes does.

    Args:
        cluster: with the time of a stall ``s`` and the share of the nodes ``q`` at fault.
        handovers: of each plan, see :func:`num_handovers`, shape ``(num_plans,)``.
        num_nodes: nodes of the cluster.

    Returns:
        Seconds, shape ``(num_plans,)``.
    """
    chance = 1.0 - (1.0 - cluster.stall_share) ** num_nodes
    return handovers * (cluster.stall_s * min(1.0, chance / POSSIBLE))
