"""Activations on their way to the host and back, and an optimizer of which a part is there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import offloaded_activations
from meshplan.cost.schedule.bound import DeviceTimes
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import PlanGrid

__all__ = ["offload_time", "offloaded_in_part"]

FloatArray = npt.NDArray[np.float64]


def offload_time(scenario: Scenario, grid: PlanGrid, devices: DeviceTimes) -> FloatArray:
    r"""Time by which offloaded activations lengthen a step.

    .. math:: m \sum_{d \in \{f, b\}} \max(0, A / \beta - (1 - 1 / L) t_d)

    The copies of a micro-batch's activations :math:`A` run one after another on a stream of their
    own, at the rate :math:`\beta` of the link to the host. They start when the first of
    :math:`L` layers is through, must end before the last one begins, and come back in the same
    way beside the backward pass.

    Args:
        scenario: model, cluster and job.
        grid: plans; only those without a pipeline offload activations.
        devices: times of one micro-batch on the devices; only those without a pipeline, which
            have one device, matter.

    Returns:
        Seconds per step, ``(num_plans,)``.

    References:
        1. Transformer Engine, ``pytorch/cpu_offload.py``: ``DefaultOffloadSynchronizer``.
    """
    seconds = np.zeros(len(grid))
    some = np.flatnonzero(grid.offload_layers > 0)
    if not len(some):
        return seconds
    moved = offloaded_activations(scenario, grid.take(some))
    copies = moved / scenario.cluster.host_link_bytes_per_s
    beside = 1.0 - 1.0 / scenario.model.num_layers
    waited = np.zeros(len(some))
    for window in (devices.forward_s[0], devices.input_s[0] + devices.weight_s[0]):
        waited = waited + np.maximum(copies - beside * window[some], 0.0)
    seconds[some] = grid.num_micro_batches[some] * waited
    return seconds


def offloaded_in_part(on_device: float, on_host: float, *, share: float) -> float:
    r"""Bound a peak or a step with a part of the optimizer in host memory.

    .. math:: (1 - s) x_0 + s x_1

    Args:
        on_device: :math:`x_0` with all of the optimizer on the device [bytes or s].
        on_host: :math:`x_1` with all of it in host memory [the same].
        share: part :math:`s` of the optimizer in host memory [1].

    Returns:
        A bound from above [bytes or s].

    Assumes:
        Peak and step are the largest of sums that are linear in the part: a convex function of it,
        which the line between its ends is never below.
    """
    return (1.0 - share) * on_device + share * on_host
