"""What groups of devices meet on their way through the levels of a cluster."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.surfaces import bus_bandwidth, constant
from meshplan.cost.tuning import NEUTRAL, Tuning
from meshplan.inputs.cluster import Cluster, Tier
from meshplan.record import record

__all__ = ["Route", "network_latency_s", "network_rate", "num_scale_up", "route"]

FloatArray = npt.NDArray[np.float64]
SCALE_UP = frozenset({"nvlink", "xgmi", "pcie", "ici"})
NETWORKS = frozenset({"infiniband", "roce", "efa", "ethernet", "pcie", "socket"})
ORDERED = frozenset({"infiniband", "roce"})


@record
class Route:
    """What the groups of one axis meet on their way; arrays ``(n,)`` unless said otherwise.

    Attributes:
        size: devices in a group, ``N``.
        inside: members inside one scale-up domain, ``m``.
        domains: scale-up domains that a group spans.
        inner_bytes_per_s: bus bandwidth of a ring inside a domain [bytes/s]; infinite for a lone
            member.
        inner_reduce_bytes_per_s: the same of an all-reduce, which the switch may do [bytes/s].
        link_bytes_per_s: peak of one device inside a domain, in one direction [bytes/s].
        outer_bytes_per_s: what all members of a domain send out over the narrowest level
            [bytes/s].
        device_bytes_per_s: what one device sends out over the narrowest level [bytes/s].
        ramp_s: what the ends of a pipeline of chunks cost on the narrowest level with network
            cards [s].
        leaving_share: share of an all-to-all that crosses the narrowest level, over its width
            [s/byte].
        inner_latency_s: latency of a hop inside a domain [s].
        outer_latency_s: latency of a hop between domains, the outermost level's [s].
        reduces: every outer level on the way reduces in the network.
        has_ll128: every outer level on the way carries 128-byte stores in order.
    """

    size: FloatArray
    inside: FloatArray
    domains: FloatArray
    inner_bytes_per_s: FloatArray
    inner_reduce_bytes_per_s: FloatArray
    link_bytes_per_s: float
    outer_bytes_per_s: FloatArray
    device_bytes_per_s: FloatArray
    ramp_s: FloatArray
    leaving_share: FloatArray
    inner_latency_s: float
    outer_latency_s: FloatArray
    reduces: npt.NDArray[np.bool_]
    has_ll128: npt.NDArray[np.bool_]


def route(
    cluster: Cluster,
    *,
    members: FloatArray,
    busy_share: FloatArray | float = 1.0,
    tuning: Tuning = NEUTRAL,
) -> Route:
    """Describe the way of the groups of one axis through the levels of a cluster.

    Args:
        cluster: devices and network levels.
        members: members of a group inside one domain of each level, ``(num_tiers, n)``.
        busy_share: see :func:`~meshplan.cost.collectives.collective_time`.
        tuning: factors of the profile.
    """
    size = members[-1]
    num_up = num_scale_up(cluster)
    inside = members[num_up - 1] if num_up else np.ones_like(size)
    inner = _inner_rates(cluster, inside, tuning=tuning)
    outer, single = np.full_like(size, np.inf), np.full_like(size, np.inf)
    leaving, latency, ramp = np.zeros_like(size), np.zeros_like(size), np.zeros_like(size)
    reduces, ordered = np.ones(size.shape, dtype=bool), np.ones(size.shape, dtype=bool)
    below = inside
    for tier, within in zip(cluster.tiers[num_up:], members[num_up:], strict=True):
        crosses = within > below
        rate = network_rate(cluster, tier, busy_share=busy_share, tuning=tuning)
        outer = np.where(crosses, np.minimum(outer, below * rate), outer)
        single = np.where(crosses, np.minimum(single, rate), single)
        chunk = constant("send_ramp_bytes") if tier.nics_per_node else 0.0
        ramp = np.where(crosses, np.maximum(ramp, chunk / rate), ramp)
        share = (size - below) / size / rate
        leaving = np.where(crosses, np.maximum(leaving, share), leaving)
        latency = np.where(crosses, network_latency_s(tier, tuning), latency)
        reduces = np.where(crosses, reduces & tier.in_network_reduction, reduces)
        ordered = np.where(crosses, ordered & (tier.fabric in ORDERED), ordered)
        below = within
    return Route(
        size=size,
        inside=inside,
        domains=np.maximum(size / inside, 1.0),
        inner_bytes_per_s=inner[0],
        inner_reduce_bytes_per_s=inner[1],
        link_bytes_per_s=cluster.tiers[max(num_up - 1, 0)].bandwidth_bytes_per_s * tuning.scale_up,
        outer_bytes_per_s=outer,
        device_bytes_per_s=single,
        ramp_s=ramp,
        leaving_share=leaving,
        inner_latency_s=(cluster.tiers[num_up - 1].latency_s if num_up else 0.0) * tuning.latency,
        outer_latency_s=latency,
        reduces=reduces,
        has_ll128=ordered,
    )


def _inner_rates(
    cluster: Cluster, inside: FloatArray, *, tuning: Tuning
) -> tuple[FloatArray, FloatArray]:
    """Bus bandwidth of a ring and of an all-reduce inside a domain; infinite for a lone member."""
    num_up = num_scale_up(cluster)
    if not num_up:
        alone = np.full_like(inside, np.inf)
        return alone, alone
    tier = cluster.tiers[num_up - 1]
    ring, reduce = (
        bus_bandwidth(cluster.device, tier, kind, size=inside, speed=tuning.scale_up)
        for kind in ("all_gather", "all_reduce")
    )
    return np.where(inside > 1, ring, np.inf), np.where(inside > 1, reduce, np.inf)


def num_scale_up(cluster: Cluster) -> int:
    """Levels from the inside out that are one scale-up fabric.

    Where pairs of devices are bridged and meet others over PCIe, the pair is the domain.
    """
    inner = cluster.tiers[0].fabric
    if inner not in SCALE_UP:
        return 0
    count = 0
    for tier in cluster.tiers:
        if tier.fabric != inner:
            break
        count += 1
    return count


def network_rate(
    cluster: Cluster, tier: Tier, *, busy_share: FloatArray | float, tuning: Tuning
) -> FloatArray | float:
    """Bandwidth that one device gets on a level beyond the scale-up domain [bytes/s].

    A device alone on its node is bound by one network card, a full node by its share of all, and
    neither exceeds the line rate whatever a profile says.
    """
    efficiency = constant(f"network_efficiency_{_network_name(tier)}") * tuning.scale_out
    efficiency = min(efficiency, 1.0)
    share = tier.bandwidth_bytes_per_s / tier.oversubscription
    if not tier.nics_per_node:
        return share * efficiency
    card = tier.bandwidth_bytes_per_s * cluster.gpus_per_node / tier.nics_per_node
    return np.minimum(card, share / busy_share) * efficiency


def network_latency_s(tier: Tier, tuning: Tuning) -> float:
    """Latency of a hop between domains as collectives meet it [s]."""
    return tier.latency_s * tuning.latency * constant(f"network_latency_{_network_name(tier)}")


def _network_name(tier: Tier) -> str:
    """Fabric under which the constants of a network level are kept."""
    return tier.fabric if tier.fabric in NETWORKS else "other"
