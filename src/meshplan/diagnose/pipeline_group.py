"""Sends and receives that carry no metadata, and the pipeline that they belong to.

What is posted together (``batch_isend_irecv``, as Megatron-LM and torch.distributed.pipelining
do) is launched when the batch is closed, outside of the operators that PyTorch's profiler
annotates: the kernels state neither group nor size. All other kernels of such a trace do, those of
an all-to-all among them, so that a bare kernel that sends and receives is one of the pipeline, or
of a ring over a split sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from meshplan.diagnose.names import axis_of_purpose
from meshplan.diagnose.records import Axis, RankMeasures, StepMeasures, Traffic

__all__ = ["listed_pipeline", "stride_of", "with_pipeline"]

Ranks = tuple[int, ...]


def listed_pipeline(
    groups: Mapping[str, Ranks], purposes: Mapping[str, str], *, rank: int, world: int
) -> str | None:
    """Name of the pipeline's group among those that a header lists; None when it cannot be told.

    By its description, else by its ranks: the pipeline is the outermost axis in every framework,
    so that the stride of its group times its size is the job.
    """
    own = {name: ranks for name, ranks in groups.items() if rank in ranks and len(ranks) > 1}
    axes = {name: axis_of_purpose(purposes.get(name, "")) for name in own}
    if "cp" in axes.values():
        return None  # a ring sends too
    named = [name for name, axis in axes.items() if axis == "pp"]
    if named:
        return max(named, key=lambda name: len(own[name]))
    if any(axes.values()):
        return None
    found = {
        own[name]: name
        for name in reversed(own)
        if stride_of(own[name]) > 1 and stride_of(own[name]) * len(own[name]) == world
    }
    return next(iter(found.values())) if len(found) == 1 else None


def with_pipeline(rank: RankMeasures, *, world: int) -> RankMeasures:
    """The rank with its bare sends on the pipeline, where the other axes leave room for one.

    For traces whose header lists no groups: where tensor and data parallelism are known by the
    descriptions of their groups, the stages are what they leave of the job.
    """
    stated = [t for step in rank.steps for t in step.traffic if t.basis == "metadata"]
    axes = {t.axis for t in stated}
    stages = _left_over(stated, world) if axes and axes <= {"tp", "dp"} else 1
    if stages < 2:
        return rank
    return replace(rank, steps=tuple(_on_pipeline(step, stages) for step in rank.steps))


def _left_over(stated: Iterable[Traffic], world: int) -> int:
    sizes: dict[Axis, int] = {}
    for traffic in stated:
        sizes[traffic.axis] = max(sizes.get(traffic.axis, 1), traffic.group_size)
    taken = prod(sizes.values())
    return world // taken if world % taken == 0 else 1


def _on_pipeline(step: StepMeasures, stages: int) -> StepMeasures:
    bare = [
        t
        for t in step.traffic
        if (t.axis, t.kind) == ("unknown", "send_recv") and not t.ranks and not t.group_size
    ]
    others = [t for t in step.traffic if t.axis == "unknown" and t not in bare]
    if not bare or others:
        return step
    moved = [replace(t, axis="pp", basis="size", group_size=stages) for t in bare]
    exposed = dict(step.exposed_by_axis_us)
    exposed["pp"] = exposed.get("pp", 0.0) + exposed.pop("unknown", 0.0)
    kept = [t for t in step.traffic if t not in bare]
    return replace(step, traffic=(*kept, *moved), exposed_by_axis_us=exposed)


def stride_of(ranks: Ranks) -> int:
    """Distance between neighbours; 0 when it is not one and the same."""
    steps = set(np.diff(sorted(ranks)).tolist())
    return steps.pop() if len(steps) == 1 else 0
