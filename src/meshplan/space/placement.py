"""Where the ranks of each axis sit, and what of a group shares a node.

Every framework numbers its ranks with tensor parallelism fastest and the pipeline slowest, so
that a group of any axis is a run of ranks with one stride:

=============  =========================================  =======================================
framework      order, fastest first                       source
=============  =========================================  =======================================
Megatron-LM    tp, cp, dp, pp; experts etp, ep, edp, pp   megatron/training/initialize.py:395
torchtitan     tp, cp, dp_shard, dp_replicate, pp         torchtitan/distributed/parallel_dims.py
DeepSpeed      tp, cp (Ulysses), dp, pp                   deepspeed/runtime/pipe/topology.py:248
Accelerate     tp, cp, dp_shard, dp_replicate             accelerate/parallelism_config.py
nanotron       tp, cp, dp, pp                             nanotron/parallel/context.py
=============  =========================================  =======================================

The expert grid re-divides the ranks of one pipeline stage: experts are spread over neighbours,
whatever the dense grid does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import gcd
from typing import Literal

import numpy as np
import numpy.typing as npt

from meshplan.inputs.cluster import Cluster
from meshplan.record import record
from meshplan.space.plan import Plan, PlanGrid

__all__ = [
    "DENSE_AXES",
    "EXPERT_AXES",
    "AxisGroup",
    "AxisName",
    "axis_group",
    "coordinates",
    "members_per_tier",
    "ranks_of_group",
    "tier_groups_spanned",
]

AxisName = Literal[
    "tp",
    "cp",
    "dp",
    "dp_cp",
    "dp_shard",
    "dp_shard_cp",
    "dp_replicate",
    "pp",
    "etp",
    "ep",
    "edp",
    "edp_shard",
]
# Fastest axis first.
DENSE_AXES: tuple[AxisName, ...] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
EXPERT_AXES: tuple[AxisName, ...] = ("etp", "ep", "edp", "pp")

IntArray = npt.NDArray[np.int64]


@record
class AxisGroup:
    """The groups of one axis: ``size`` ranks each, ``stride`` apart.

    Attributes:
        size: ranks in a group, shape ``(num_plans,)``.
        stride: distance between neighbours of a group in rank order, shape ``(num_plans,)``.
    """

    size: IntArray
    stride: IntArray


def axis_group(grid: PlanGrid, axis: AxisName) -> AxisGroup:
    """Return size and stride of the groups of one axis.

    Besides the axes of the two grids there are their combinations: ``dp_cp`` are the ranks that
    hold the same dense parameters and average their gradients; ``dp_shard_cp`` those of them
    over which states are sharded (the same without HSDP), repeated over ``dp_replicate``.
    ``edp`` and ``edp_shard`` are the same for experts.

    Args:
        grid: the plans.
        axis: name of the axis or combination.

    Returns:
        Arrays of shape ``(num_plans,)``.
    """
    size, stride = _GROUPS[axis](grid)
    return AxisGroup(size=size, stride=stride)


def _experts(grid: PlanGrid) -> tuple[IntArray, IntArray]:
    block = grid.etp * grid.ep
    return grid.tp * grid.cp * grid.dp // block, block


def _expert_shards(grid: PlanGrid) -> tuple[IntArray, IntArray]:
    experts, block = _experts(grid)
    return experts // grid.dp_replicate, block


_GROUPS: Mapping[AxisName, Callable[[PlanGrid], tuple[IntArray, IntArray]]] = {
    "tp": lambda grid: (grid.tp, np.ones_like(grid.tp)),
    "cp": lambda grid: (grid.cp, grid.tp),
    "dp": lambda grid: (grid.dp, grid.tp * grid.cp),
    "dp_cp": lambda grid: (grid.dp * grid.cp, grid.tp),
    "dp_shard": lambda grid: (grid.dp_shard, grid.tp * grid.cp),
    "dp_shard_cp": lambda grid: (grid.dp_shard * grid.cp, grid.tp),
    "dp_replicate": lambda grid: (grid.dp_replicate, grid.tp * grid.cp * grid.dp_shard),
    "pp": lambda grid: (grid.pp, grid.tp * grid.cp * grid.dp),
    "etp": lambda grid: (grid.etp, np.ones_like(grid.tp)),
    "ep": lambda grid: (grid.ep, grid.etp),
    "edp": _experts,
    "edp_shard": _expert_shards,
}
"""Size and stride of the groups of each axis."""


def tier_groups_spanned(cluster: Cluster, *, size: IntArray, stride: IntArray) -> IntArray:
    """Count the groups of each tier that one group of ranks touches, for its worst group.

    A group with members ``stride < g`` apart covers a contiguous run of tier groups of ``g``
    GPUs; how many depends on where it starts. With ``stride >= g`` each member sits alone.

    Args:
        cluster: whose tiers, in rank order.
        size: ranks in a group, shape ``(n,)``.
        stride: distance between its neighbours, shape ``(n,)``.

    Returns:
        Counts, shape ``(num_tiers, n)``; 1 means that the tier is never left.
    """
    num_gpus = cluster.num_gpus
    # a grid has few distinct pairs
    pairs, inverse = np.unique(size * (num_gpus + 1) + stride, return_inverse=True)
    sizes, strides = (part.tolist() for part in np.divmod(pairs, num_gpus + 1))
    spans = [
        [_spanned(num_gpus, t.num_gpus, n, s) for n, s in zip(sizes, strides, strict=True)]
        for t in cluster.tiers
    ]
    return np.array(spans, dtype=np.int64)[:, inverse]


def members_per_tier(cluster: Cluster, size: IntArray, stride: IntArray) -> IntArray:
    """Count the members of one group of ranks that share one group of each tier.

    Where members are dealt unevenly (six ranks over nodes of four), it is the mean rounded up:
    ``ceil(size / groups spanned)``, for the group that spans the most.

    Args:
        cluster: whose tiers, in rank order.
        size: ranks in a group, shape ``(n,)``.
        stride: distance between its neighbours, shape ``(n,)``.

    Returns:
        Counts, shape ``(num_tiers, n)``; ``size`` on the last tier.
    """
    return -(-size // tier_groups_spanned(cluster, size=size, stride=stride))


@lru_cache(maxsize=65536)
def _spanned(num_gpus: int, tier_gpus: int, size: int, stride: int, /) -> int:
    """Tier groups touched by the worst group of one axis."""
    if stride >= tier_gpus:
        return size
    offset = _worst_offset(num_gpus, tier_gpus, size * stride, stride)
    return (offset + (size - 1) * stride) // tier_gpus + 1


def _worst_offset(num_gpus: int, tier_gpus: int, block: int, stride: int) -> int:
    """Largest position inside a tier group at which a group of ranks starts.

    Blocks start at multiples of ``block`` and groups at the ``stride`` first ranks of a block.
    If the tier divides the cluster, the starts of blocks visit every multiple of
    ``gcd(block, tier_gpus)`` inside a tier group; a cluster with a part-filled tier group has too
    few blocks for that and they are looked at one by one.
    """
    step = gcd(block, tier_gpus)
    num_blocks = max(1, num_gpus // block)
    if num_blocks >= tier_gpus // step:
        return tier_gpus - 1 if stride >= step else tier_gpus - step + stride - 1
    starts = np.arange(num_blocks)[:, None] * block + np.arange(stride)
    return int((starts % tier_gpus).max())


def coordinates(plan: Plan, rank: int) -> dict[AxisName, int]:
    """Return the position of a rank on every axis of the dense and the expert grid.

    ``pp`` is the same on both grids.
    """
    position: dict[AxisName, int] = {}
    for axes in (DENSE_AXES, EXPERT_AXES):
        for axis in axes:
            group = _group(plan, axis)
            position[axis] = rank // group.stride % group.size
    return position


def ranks_of_group(plan: Plan, axis: AxisName, rank: int) -> tuple[int, ...]:
    """Return the ranks of the group of an axis that a rank belongs to, itself included."""
    group = _group(plan, axis)
    first = rank - rank // group.stride % group.size * group.stride
    return tuple(range(first, first + group.size * group.stride, group.stride))


@record
class _PlanGroup:
    size: int
    stride: int


@lru_cache(maxsize=4096)
def _group(plan: Plan, axis: AxisName) -> _PlanGroup:
    group = axis_group(PlanGrid.of([plan]), axis)
    return _PlanGroup(size=int(group.size[0]), stride=int(group.stride[0]))
