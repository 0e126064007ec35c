"""The machine of a run: as stated, as the traces list it, or as its device is usually sold."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from meshplan.cost.routes import num_scale_up
from meshplan.errors import UserError
from meshplan.inputs.cluster import Cluster, Device
from meshplan.inputs.load.cluster import draft_cluster
from meshplan.space.placement import members_per_tier

__all__ = ["crossed_tier", "device_named", "domain_gpus", "leaves_domain", "machine_of"]


def machine_of(
    stated: Cluster | None, *, node: int | None, devices: frozenset[str], world: int
) -> tuple[Cluster | None, bool]:
    """The cluster of a run, and whether somebody stated it.

    Without one it is the machine that the device usually sits in: good for what is inside a
    scale-up domain, not for the network.

    Args:
        stated: the cluster that was given.
        node: GPUs that share a node, as the traces list them.
        devices: names of the devices of the run.
        world: ranks of the job.
    """
    if stated is not None and node in (None, stated.gpus_per_node):
        return stated, True
    if stated is not None and node is not None:
        inner, *outer = stated.tiers
        if inner.num_gpus > max(node, stated.gpus_per_node):  # a domain of several nodes
            return replace(stated, gpus_per_node=node), True
        if outer and node < outer[0].num_gpus:
            tiers = (replace(inner, num_gpus=node), *outer)
            return replace(stated, gpus_per_node=node, tiers=tiers), True
        return _usual(stated.device.name, node, max(world, node)), False
    if len(devices) != 1 or node is None:
        return None, False
    return _usual(next(iter(devices)), node, max(world, node)), False


@lru_cache(maxsize=16)
def _usual(device: str, node: int, world: int) -> Cluster | None:
    try:
        draft = draft_cluster(f"{world}x{device}", where="cluster")
        return draft.with_gpus_per_node(node).build()
    except UserError:
        return None


def device_named(name: str) -> Device | None:
    """The device that a trace or a log names; None when it is none that is known."""
    usual = _usual(name, 1, 1)
    return None if usual is None else usual.device


def domain_gpus(cluster: Cluster) -> int:
    """GPUs that meet without the network: 8 of a DGX node, 72 of a GB200 NVL72.

    A scale-up domain may hold several nodes; where it is smaller (bridged pairs, PCIe), it is the
    node.
    """
    num_up = num_scale_up(cluster)
    return max(cluster.gpus_per_node, cluster.tiers[num_up - 1].num_gpus if num_up else 0)


def crossed_tier(cluster: Cluster, group: tuple[int, int]) -> int:
    """Index of the outermost level of the network that a group has to cross.

    Args:
        cluster: its levels.
        group: size and stride of the group.
    """
    members = members_per_tier(cluster, np.array([group[0]]), np.array([group[1]]))[:, 0]
    return int(np.argmax(members >= group[0]))


def leaves_domain(cluster: Cluster, group: tuple[int, int]) -> bool:
    """Whether a group of that size and stride has to use the network."""
    return cluster.tiers[crossed_tier(cluster, group)].num_gpus > domain_gpus(cluster)
