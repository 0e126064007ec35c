"""Other sizes of the same cluster: which ones to ask about, and how to cut them."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.cluster import Cluster, Tier
from meshplan.inputs.scenario import Scenario

__all__ = ["candidate_sizes", "resize_cluster", "with_gpus"]


def resize_cluster(cluster: Cluster, *, num_gpus: int) -> Cluster:
    """Take fewer or more GPUs of the same kind.

    Levels of the network that would hold a single group are dropped, the outermost one left
    spans the new size. A larger cluster is one of the same kind, so that it may get a further
    level; where every level was spelled out, the outermost one grows, without a claim about what
    a further one would cost.
    """
    assert num_gpus >= 1
    if num_gpus == cluster.num_gpus:
        return cluster
    if num_gpus > cluster.num_gpus and cluster.of_size is not None:
        grown = cluster.of_size(num_gpus)
        name = grown.name or f"{num_gpus}x{cluster.device.name}"
        return replace(grown, name=name, device=cluster.device, profile=cluster.profile)
    tiers: list[Tier] = []
    for tier in cluster.tiers:
        tiers.append(tier)
        if tier.num_gpus >= num_gpus:
            break
    tiers[-1] = replace(tiers[-1], num_gpus=num_gpus)
    return replace(
        cluster,
        name=f"{num_gpus}x{cluster.device.name}",
        num_gpus=num_gpus,
        gpus_per_node=min(cluster.gpus_per_node, num_gpus),
        tiers=tuple(tiers),
    )


def with_gpus(scenario: Scenario, num_gpus: int) -> Scenario:
    """The same scenario on another number of GPUs."""
    return replace(scenario, cluster=resize_cluster(scenario.cluster, num_gpus=num_gpus))


def candidate_sizes(cluster: Cluster, *, up_to: int | None = None) -> tuple[int, ...]:
    """Cluster sizes worth asking about, smallest first.

    Inside a node the divisors of its GPUs; beyond it whole nodes in counts ``2**k`` and
    ``3 * 2**k``, and the size given.

    Args:
        cluster: the cluster that is cut.
        up_to: the largest size [GPUs]; the cluster's own by default.
    """
    largest = up_to or cluster.num_gpus
    node = min(cluster.gpus_per_node, largest)
    sizes = {n for n in range(1, node + 1) if node % n == 0}
    nodes = 1
    while nodes * node <= largest:
        sizes.add(nodes * node)
        if nodes % 2 == 0 and nodes * node * 3 // 2 <= largest:
            sizes.add(nodes * node * 3 // 2)
        nodes *= 2
    sizes.add(largest)
    return tuple(sorted(sizes))
