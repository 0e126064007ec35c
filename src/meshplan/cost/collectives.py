"""Seconds of collectives on a hierarchy of network levels.

A group of ``N`` devices has ``m_i`` members inside one domain of level ``i``; inside the outermost
level that is ``N``. A domain reaches the next level through the links of its members, so a group
with ``m`` members in a node drives ``m`` network cards. ``V`` is the whole buffer: what each device
holds before an all-reduce, a reduce-scatter and an all-to-all, and after an all-gather.

Inside a scale-up domain times are measured tables. Beyond it they follow NCCL's own model: the
fastest of its algorithms (ring, tree, in-network reduction) and protocols (LL, LL128, Simple),
each the sum of a latency per hop and of the bytes over the narrowest level [1]_.

References:
    .. [1] NCCL, src/graph/tuning.cc.
    .. [2] Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009 (ring).
    .. [3] Sanders, Speck and Träff, Two-tree algorithms, 2009 (double binary tree).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import reduce

import numpy as np
import numpy.typing as npt

from meshplan.cost.routes import Route, network_latency_s, network_rate, num_scale_up, route
from meshplan.cost.surfaces import constant, scale_up_time
from meshplan.cost.tuning import NEUTRAL, Tuning
from meshplan.inputs.cluster import Cluster

__all__ = [
    "Collective",
    "algorithm_times",
    "all_to_all_time",
    "collective_time",
    "in_network_all_reduce_time",
    "ring_time",
    "send_time",
    "tree_all_reduce_time",
]

FloatArray = npt.NDArray[np.float64]
PROTOCOLS = ("ll", "ll128", "simple")


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
    members: FloatArray,
    busy_share: FloatArray | float = 1.0,
    tuning: Tuning = NEUTRAL,
) -> FloatArray:
    """Time one collective, by the fastest algorithm that does it.

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
    size = members[-1]
    num_up = num_scale_up(cluster)
    inside = members[num_up - 1] if num_up else np.ones_like(size)
    seconds = _inside(cluster, kind, message_bytes=message_bytes, size=inside, tuning=tuning)
    if np.any(size > inside):
        path = route(cluster, members=members, busy_share=busy_share, tuning=tuning)
        beyond = _between(path, kind, message_bytes=message_bytes)
        if kind is Collective.ALL_TO_ALL:
            stays = message_bytes * inside / size
            own = _inside(cluster, kind, message_bytes=stays, size=inside, tuning=tuning)
            beyond = np.maximum(beyond, own)
        seconds = np.where(size > inside, beyond, seconds)
    return np.where(size > 1, seconds, 0.0)


def _inside(
    cluster: Cluster,
    kind: Collective,
    *,
    message_bytes: FloatArray,
    size: FloatArray,
    tuning: Tuning,
) -> FloatArray:
    """Time of a collective inside one scale-up domain; 0 for a lone member."""
    num_up = num_scale_up(cluster)
    if not num_up:
        return np.zeros(np.broadcast(message_bytes, size).shape)
    seconds = scale_up_time(
        cluster.device,
        cluster.tiers[num_up - 1],
        kind.value,
        message_bytes=message_bytes,
        size=size,
        speed=tuning.scale_up,
        latency=tuning.latency,
    )
    return np.where(size > 1, seconds, 0.0)


def _between(path: Route, kind: Collective, *, message_bytes: FloatArray) -> FloatArray:
    """Time of a collective over several scale-up domains, by the fastest algorithm."""
    options = _options(path, kind, message_bytes=message_bytes)
    return reduce(np.minimum, (seconds for _, _, seconds in options))


Option = tuple[str, str, FloatArray]


def _options(path: Route, kind: Collective, *, message_bytes: FloatArray) -> Iterator[Option]:
    """Algorithm, protocol and seconds of all ways to do a collective; infinite where barred."""
    if kind is Collective.ALL_TO_ALL:
        yield "peers", "", all_to_all_time(path, message_bytes=message_bytes)
        return
    algorithms: dict[str, Callable[..., FloatArray]] = {"ring": ring_time}
    if kind is Collective.ALL_REDUCE:
        algorithms = {"ring": _ring_all_reduce_time, "tree": tree_all_reduce_time}
    for name, algorithm in algorithms.items():
        for protocol in PROTOCOLS:
            seconds = algorithm(path, message_bytes=message_bytes, protocol=protocol)
            if protocol == "ll128":
                seconds = np.where(path.has_ll128, seconds, np.inf)
            yield name, protocol, seconds
    if kind is Collective.ALL_REDUCE:
        switched = in_network_all_reduce_time(path, message_bytes=message_bytes)
        yield "switch", "", np.where(path.reduces, switched, np.inf)


def algorithm_times(
    cluster: Cluster,
    kind: Collective,
    *,
    message_bytes: FloatArray,
    members: FloatArray,
    tuning: Tuning = NEUTRAL,
) -> dict[str, tuple[float, str]]:
    """Tell what :func:`collective_time` weighs for one group and message: each algorithm's best.

    Args:
        cluster: devices and network levels.
        kind: which collective.
        message_bytes: the whole buffer ``V`` [bytes], ``(1,)``.
        members: members of the group inside one domain of each level, ``(num_tiers, 1)``.
        tuning: factors of the profile.

    Returns:
        Seconds and protocol of each algorithm that can do it, fastest first: ``ring``, ``tree``,
        ``switch`` (the network reduces) or ``peers`` (each device sends to every other). Inside
        one scale-up domain nothing is chosen, since its times are measured: no entry.
    """
    num_up = num_scale_up(cluster)
    if num_up and members[num_up - 1][0] == members[-1][0]:
        return {}
    path = route(cluster, members=members, tuning=tuning)
    best: dict[str, tuple[float, str]] = {}
    for name, protocol, seconds in _options(path, kind, message_bytes=message_bytes):
        if np.isfinite(seconds[0]):
            best[name] = min(best.get(name, (np.inf, "")), (float(seconds[0]), protocol))
    return dict(sorted(best.items(), key=lambda item: item[1]))


def ring_time(path: Route, *, message_bytes: FloatArray, protocol: str) -> FloatArray:
    """Time of a ring all-gather, or of a ring reduce-scatter, which mirrors it.

    Equation: ``V (N - 1) / N / (e min(B_in, m B_out)) + (N - D) a_in + D a_out`` over ``D``
    domains [2]_: a ring enters and leaves each domain once, and all but one part of ``V``
    passes there.
    """
    moved = message_bytes * (path.size - 1.0) / path.size
    narrow = np.minimum(path.inner_bytes_per_s, path.outer_bytes_per_s)
    hops = _hops(path, algorithm="ring", protocol=protocol)
    ramp = _ramp(path, protocol)
    return moved / (narrow * constant(f"protocol_share_{protocol}")) + ramp + hops


def _ring_all_reduce_time(path: Route, *, message_bytes: FloatArray, protocol: str) -> FloatArray:
    """A reduce-scatter and an all-gather, one after the other."""
    return 2.0 * ring_time(path, message_bytes=message_bytes, protocol=protocol)


def tree_all_reduce_time(path: Route, *, message_bytes: FloatArray, protocol: str) -> FloatArray:
    """Time of an all-reduce over a double binary tree of domains, a chain inside each.

    Equation: ``2 V max((N - 1) / N / B_in, (D - 1) / D / (s m B_out)) / e
    + 2 (m - 1) a_in + 2 log2(D) a_out`` [3]_: up and down the tree, ``s`` being its share of the
    bandwidth of a ring.
    """
    inner = (path.size - 1.0) / path.size / path.inner_reduce_bytes_per_s
    outer = (path.domains - 1.0) / path.domains / path.outer_bytes_per_s / constant("tree_share")
    narrow = np.maximum(inner, outer) / constant(f"protocol_share_{protocol}")
    link = path.inner_latency_s * constant(f"latency_link_{protocol}")
    network = path.outer_latency_s * constant(f"tree_latency_network_{protocol}")
    hops = 2.0 * (path.inside - 1.0) * link + 2.0 * np.log2(path.domains) * network
    return 2.0 * (message_bytes * narrow + _ramp(path, protocol)) + hops


def in_network_all_reduce_time(path: Route, *, message_bytes: FloatArray) -> FloatArray:
    """Time of an all-reduce that the switches of the network do [s].

    Equation: ``V max(2 (N - 1) / N / B_in, 1 / (m B_out)) + 2 a_out``: each contribution goes up
    once and the sum comes down once, at the same time.
    """
    inner = 2.0 * (path.size - 1.0) / path.size / path.inner_reduce_bytes_per_s
    hops = 2.0 * path.outer_latency_s * constant("ring_latency_network_simple")
    return message_bytes * np.maximum(inner, 1.0 / path.outer_bytes_per_s) + hops


def all_to_all_time(path: Route, *, message_bytes: FloatArray) -> FloatArray:
    """Time of an all-to-all in which each device sends ``V / N`` to every other [s].

    Equation: ``max_i V (N - m_(i-1)) / N / B_i + (N - m) a_out``: what leaves a domain of level
    ``i - 1`` shares its outer links, no device can use the card of another, and each remote peer
    is a message of its own.
    """
    peers = (path.size - path.inside) * constant("peer_latency")
    hops = path.outer_latency_s * (constant("ring_latency_network_simple") + peers)
    return message_bytes * path.leaving_share + hops


def _ramp(path: Route, protocol: str) -> FloatArray:
    """What the ends of the pipeline of chunks cost on the network [s]; LL has tiny chunks."""
    return path.ramp_s * (0.0 if protocol == "ll" else 1.0)


def _hops(path: Route, *, algorithm: str, protocol: str) -> FloatArray:
    """Latency of passing through every member of a ring once [s]."""
    link = path.inner_latency_s * constant(f"latency_link_{protocol}")
    network = path.outer_latency_s * constant(f"{algorithm}_latency_network_{protocol}")
    return (path.size - path.domains) * link + path.domains * network


def send_time(
    cluster: Cluster,
    *,
    message_bytes: FloatArray,
    tier_index: npt.NDArray[np.int64],
    busy_share: FloatArray | float = 1.0,
    tuning: Tuning = NEUTRAL,
) -> FloatArray:
    """Time a point-to-point send.

    Equation: inside a domain half of an all-to-all between two devices; beyond it
    ``(V + V_0) / B_i + a_i``, ``V_0`` being what the pipeline of chunks costs at its ends.

    Args:
        cluster: devices and network levels.
        message_bytes: what one device sends [bytes], ``(n,)``.
        tier_index: the innermost level that holds both ends, ``(n,)``.
        busy_share: see :func:`collective_time`.
        tuning: factors of the profile.
    """
    num_up = num_scale_up(cluster)
    pair = np.full_like(message_bytes, 2.0)
    local = _inside(
        cluster,
        Collective.ALL_TO_ALL,
        message_bytes=2.0 * message_bytes,
        size=pair,
        tuning=tuning,
    )
    seconds = np.where(tier_index < num_up, local, 0.0)
    for index, tier in enumerate(cluster.tiers):
        if index < num_up:
            continue
        rate = network_rate(cluster, tier, busy_share=busy_share, tuning=tuning)
        hop = network_latency_s(tier, tuning) * constant("ring_latency_network_simple")
        chunk = constant("send_ramp_bytes") if tier.nics_per_node else 0.0
        time = (message_bytes + chunk) / rate + hop
        seconds = np.where(tier_index == index, time, seconds)
    return seconds
