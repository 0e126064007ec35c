"""Devices, links and what collectives take on them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from meshplan.cost.collectives import Collective, collective_time
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.space.placement import members_per_tier

__all__ = [
    "collective_s",
    "link",
    "memory",
    "memory_rate",
    "nodes_spanned",
    "peak",
]


@lru_cache(maxsize=64)
def _cluster(text: str) -> Cluster:
    return parse_cluster(text)


def memory(cluster: str) -> float:
    """Nominal memory of one device [bytes]."""
    return _cluster(cluster).device.memory_bytes


def peak(cluster: str, precision: str = "bf16") -> float:
    """Dense peak of one device [flop/s]."""
    return _cluster(cluster).device.peak_flop_per_s[precision]


def memory_rate(cluster: str) -> float:
    """Bandwidth of the device memory [bytes/s]."""
    return _cluster(cluster).device.memory_bandwidth_bytes_per_s


def link(cluster: str, fabric: str) -> float:
    """Peak of one GPU in one direction on the innermost level of a fabric [bytes/s].

    Raises:
        LookupError: where the cluster has no such links.
    """
    for tier in _cluster(cluster).tiers:
        if tier.fabric == fabric:
            return tier.bandwidth_bytes_per_s
    raise LookupError(f"{cluster} has no {fabric}")


def collective_s(kind: str, cluster: str, *, message: float, size: int, stride: int = 1) -> float:
    """Time of one collective of a group of ranks [s]; ``message`` is the whole buffer."""
    system = _cluster(cluster)
    members = members_per_tier(system, np.array([size]), np.array([stride])).astype(float)
    seconds = collective_time(
        system, Collective(kind), message_bytes=np.array([float(message)]), members=members
    )
    return float(seconds[0])


def nodes_spanned(cluster: str, *, size: int, stride: int = 1) -> int:
    """Nodes that a group of ranks touches."""
    inside = _cluster(cluster).gpus_per_node
    return len({rank * stride // inside for rank in range(size)})
