"""What of the traffic is seen: the part that no computation hides, and what hiding it costs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.communication import BlockCommunication
from meshplan.cost.compute import LayerTime
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.profile import FrameworkProfile
from meshplan.space.plan import CpComm, PlanGrid

__all__ = [
    "exposed",
    "exposed_context",
    "exposed_experts",
    "exposed_tensor",
    "hidden_behind",
    "visible_tensor",
]

FloatArray = npt.NDArray[np.float64]


def hidden_behind(
    traffic_s: FloatArray, window_s: FloatArray, *, share: float | FloatArray
) -> FloatArray:
    """Return the part of some traffic that runs beside computation.

    ``min(traffic, share * window)``

    Args:
        traffic_s: time of the traffic alone [s].
        window_s: computation that could run at the same time [s].
        share: share of the window that the framework uses [1].

    Returns:
        Hidden time [s].
    """
    return np.minimum(traffic_s, share * window_s)


def exposed(
    traffic_s: FloatArray,
    window_s: FloatArray,
    *,
    share: float | FloatArray,
    contention: float,
    least: FloatArray | float = 0.0,
) -> FloatArray:
    """Return by how much traffic lengthens the computation that it runs beside.

    ``max(traffic - hidden, least) + contention * hidden``: what is not hidden, and the slowdown
    of the kernels that share compute units and memory with the communication kernels.

    Args:
        traffic_s: time of the traffic alone [s].
        window_s: computation that could run at the same time [s].
        share: share of the window that the framework uses; 0 exposes all [1].
        contention: slowdown of computation while traffic runs beside it [1].
        least: what is exposed in any case, such as the last bucket [s].

    Returns:
        Seconds to add to the computation.
    """
    hidden = hidden_behind(traffic_s, window_s, share=share)
    least = np.minimum(np.where(share > 0, least, 0.0), traffic_s)
    return np.maximum(traffic_s - hidden, least) + contention * hidden


def visible_tensor(framework: FrameworkProfile, grid: PlanGrid, cluster: Cluster) -> FloatArray:
    """Share of the tensor-parallel traffic that products in pieces leave, ``(num_plans,)``.

    Devices write into buffers of one another, which they reach inside a host or a domain of links
    alone [1]_.

    References:
        .. [1] Transformer Engine, common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp;
           torch.distributed._symmetric_memory.
    """
    return 1.0 - np.where(grid.tp <= cluster.joined_gpus, framework.overlap_tensor, 0.0)


def exposed_tensor(
    framework: FrameworkProfile,
    time: LayerTime,
    traffic: BlockCommunication,
    *,
    visible: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Exposed tensor-parallel traffic, forward and backward; see :func:`visible_tensor`."""
    early, late = traffic.tp_beside_input.seconds, traffic.tp_beside_weight.seconds
    backward = visible * (traffic.tp_backward.seconds - early - late)
    for beside_s, window_s in ((early, time.split_input_s), (late, time.split_weight_s)):
        backward = backward + exposed(
            visible * beside_s,
            window_s,
            share=framework.overlap_weight_gradient,
            contention=framework.contention,
        )
    return visible * traffic.tp_forward.seconds, backward


def exposed_context(
    framework: FrameworkProfile,
    grid: PlanGrid,
    time: LayerTime,
    forward_s: FloatArray,
    backward_s: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Exposed context-parallel traffic: a ring hides behind the attention of its steps."""
    share = np.where(grid.cp_comm == CpComm.P2P, framework.overlap_context, 0.0)
    share = share * (grid.cp - 1) / grid.cp
    window = time.attention_forward_s, time.attention_backward_s
    return (
        exposed(forward_s, window[0], share=share, contention=framework.contention),
        exposed(backward_s, window[1], share=share, contention=framework.contention),
    )


def exposed_experts(
    framework: FrameworkProfile, time: LayerTime, traffic: BlockCommunication
) -> tuple[FloatArray, FloatArray]:
    """Exposed expert-parallel traffic, forward and backward.

    Where the forward pass of one micro-batch runs beside the backward pass of another, the traffic
    of each hides behind the computation of the other.
    """
    share, contention = framework.overlap_experts, framework.contention_experts
    forward_s, backward_s = traffic.ep_forward.seconds, traffic.ep_backward.seconds
    return (
        exposed(forward_s, time.backward_s, share=share, contention=contention),
        exposed(backward_s, time.forward_s, share=share, contention=contention),
    )
