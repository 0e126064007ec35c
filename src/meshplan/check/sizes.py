"""How many GPUs files and the name of a cluster state."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshplan.check.records import Reading
from meshplan.space.plan import Framework

__all__ = ["gpus_of", "is_default", "least_gpus", "num_gpus", "product_of", "states_gpus"]


def num_gpus(reading: Reading, said: Mapping[str, object]) -> int | None:
    """GPUs that files state; None where only a run would show them."""
    if any(unread.value == "num_nodes" for unread in reading.unknown):
        return None  # a number of nodes that only a run would show
    gpus, nodes, each = (said.get(n) for n in ("num_gpus", "num_nodes", "gpus_per_node"))
    if isinstance(gpus, int):
        return gpus
    if isinstance(each, int):
        return each * (nodes if isinstance(nodes, int) else 1)
    return None


def is_default(reading: Reading) -> bool:
    """Whether the number of GPUs in the files holds only where a run says nothing else."""
    names = ("num_gpus", "num_nodes", "gpus_per_node")
    return any(name in reading.settings and reading.settings[name].soft for name in names)


def product_of(reading: Reading, said: Mapping[str, object]) -> int | None:
    """GPUs of a config that states all degrees, as nanotron's does."""
    if reading.framework is not Framework.NANOTRON or not {"dp", "tp", "pp"} <= said.keys():
        return None
    return math.prod(int(str(said.get(axis, 1))) for axis in ("dp", "tp", "pp", "cp"))


def gpus_of(cluster: object) -> int | None:
    """GPUs that the name of a cluster states."""
    head = str(cluster).lower().partition("x")[0]
    return int(head) if head.isdecimal() and len(head) < 9 else None


def states_gpus(cluster: object) -> bool:
    """Whether the name of a cluster states how many GPUs it has."""
    return gpus_of(cluster) is not None


def least_gpus(said: Mapping[str, object]) -> int:
    """GPUs that the degrees of a plan take at least."""
    tp, cp, ep, etp, pp = (
        degree if isinstance(degree := said.get(axis), int) else 1
        for axis in ("tp", "cp", "ep", "etp", "pp")
    )
    return pp * max(tp * cp, ep * etp)
