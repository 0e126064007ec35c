"""Seconds of collectives on a hierarchy of network levels.

A group of ``N`` devices has ``m_i`` members inside one domain of level ``i``; inside the outermost
level that is ``N``. A domain reaches the next level through the links of its members, so a group
with ``m`` members in a node drives ``m`` network cards. ``V`` is the whole buffer: what each device
holds before an all-reduce, a reduce-scatter and an all-to-all, and after an all-gather.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from meshplan.cost.tuning import Tuning
from meshplan.inputs.cluster import Cluster, Tier

__all__ = [
    "Collective",
    "all_gather_time",
    "all_reduce_time",
    "all_to_all_time",
    "collective_time",
    "send_time",
]

FloatArray = npt.NDArray[np.float64]
NEUTRAL = Tuning()
SCALE_UP = frozenset({"nvlink", "xgmi", "pcie", "ici"})
LINK_EFFICIENCY = {"nvlink": 0.8, "xgmi": 0.75, "pcie": 0.7, "ici": 0.85}
NETWORK_EFFICIENCY = 0.85


class Collective(Enum):
    """What a group of devices does together."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


def collective_time(
    cluster: Cluster,
    kind: Collective,
    *,
    message_bytes: FloatArray,
    members: npt.NDArray[np.float64],
    busy_share: FloatArray | float = 1.0,
    tuning: Tuning = NEUTRAL,
) -> FloatArray:
    """Time one collective.

    Args:
        cluster: devices and network levels.
        kind: which collective.
        message_bytes: the whole buffer ``V`` [bytes], ``(n,)``.
        members: members of the group inside one domain of each level, ``(num_tiers, n)``.
        busy_share: share of the devices of a domain that use its outer links at the same time;
            devices that are idle leave them their part.
        tuning: factors of the profile.

    Returns:
        Seconds, ``(n,)``; 0 for groups of one device.
    """
    if kind is Collective.ALL_REDUCE:
        function = all_reduce_time
    elif kind is Collective.ALL_TO_ALL:
        function = all_to_all_time
    else:
        function = all_gather_time
    return function(
        cluster, message_bytes=message_bytes, members=members, busy_share=busy_share, tuning=tuning
    )


def all_gather_time(
    cluster: Cluster,
    *,
    message_bytes: FloatArray,
    members: FloatArray,
    busy_share: FloatArray | float = 1.0,
    tuning: Tuning = NEUTRAL,
) -> FloatArray:
    """Time a ring all-gather, or a ring reduce-scatter, which mirrors it.

    Equation: ``max_i V (N - 1) / N / (m_(i-1) B_i) + hops``: a ring crosses the edge of each domain
    once, and all but one part of ``V`` passes there.
    """
    size = members[-1]
    moved = message_bytes * (size - 1.0) / size
    seconds = np.zeros_like(moved)
    latency = np.zeros_like(moved)
    below = np.ones_like(size)
    for tier, inside in zip(cluster.tiers, members, strict=True):
        crosses = inside > below
        rate = below * _rate(cluster, tier, busy_share=busy_share, tuning=tuning)
        seconds = np.where(crosses, np.maximum(seconds, moved / rate), seconds)
        hops = np.where(crosses, size / below - size / inside, 0.0)
        latency = latency + hops * tier.latency_s * tuning.latency
        below = inside
    return np.where(size > 1, seconds + latency, 0.0)


def all_reduce_time(
    cluster: Cluster,
    *,
    message_bytes: FloatArray,
    members: FloatArray,
    busy_share: FloatArray | float = 1.0,
    tuning: Tuning = NEUTRAL,
) -> FloatArray:
    """Time an all-reduce as a reduce-scatter and an all-gather."""
    return 2.0 * all_gather_time(
        cluster, message_bytes=message_bytes, members=members, busy_share=busy_share, tuning=tuning
    )


def all_to_all_time(
    cluster: Cluster,
    *,
    message_bytes: FloatArray,
    members: FloatArray,
    busy_share: FloatArray | float = 1.0,
    tuning: Tuning = NEUTRAL,
) -> FloatArray:
    """Time an all-to-all in which each device sends ``V / N`` to every other.

    Equation: ``max_i V (N - m_(i-1)) / N / B_i + latency``: what leaves a domain of level ``i - 1``
    shares the outer links of that domain.
    """
    size = members[-1]
    seconds = np.zeros_like(message_bytes + size)
    latency = np.zeros_like(seconds)
    below = np.ones_like(size)
    for tier, inside in zip(cluster.tiers, members, strict=True):
        crosses = inside > below
        rate = _rate(cluster, tier, busy_share=busy_share, tuning=tuning)
        leaving = message_bytes * (size - below) / size
        seconds = np.where(crosses, np.maximum(seconds, leaving / rate), seconds)
        latency = latency + np.where(crosses, 2.0 * tier.latency_s * tuning.latency, 0.0)
        below = inside
    return np.where(size > 1, seconds + latency, 0.0)


def send_time(
    cluster: Cluster,
    *,
    message_bytes: FloatArray,
    tier_index: npt.NDArray[np.int64],
    busy_share: FloatArray | float = 1.0,
    tuning: Tuning = NEUTRAL,
) -> FloatArray:
    """Time a point-to-point send over one level of the network.

    Equation: ``V / B_i + latency_i``.

    Args:
        cluster: devices and network levels.
        message_bytes: what one device sends [bytes], ``(n,)``.
        tier_index: the innermost level that holds both ends, ``(n,)``.
        busy_share: see :func:`collective_time`.
        tuning: factors of the profile.
    """
    seconds = np.zeros_like(message_bytes)
    for index, tier in enumerate(cluster.tiers):
        rate = _rate(cluster, tier, busy_share=busy_share, tuning=tuning)
        time = message_bytes / rate + tier.latency_s * tuning.latency
        seconds = np.where(tier_index == index, time, seconds)
    return seconds


def _rate(
    cluster: Cluster, tier: Tier, *, busy_share: FloatArray | float, tuning: Tuning
) -> FloatArray | float:
    """Bandwidth that one device gets on a level [bytes/s].

    A device alone on its node is bound by one network card, a full node by its share of all.
    """
    if tier.fabric in SCALE_UP:
        return tier.bandwidth_bytes_per_s * LINK_EFFICIENCY[tier.fabric] * tuning.scale_up
    share = tier.bandwidth_bytes_per_s / tier.oversubscription
    efficiency = NETWORK_EFFICIENCY * tuning.scale_out
    if not tier.nics_per_node:
        return share * efficiency
    card = tier.bandwidth_bytes_per_s * cluster.gpus_per_node / tier.nics_per_node
    return np.minimum(card, share / busy_share) * efficiency
