"""The scenario: model, cluster, job and what the search may choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from meshplan.inputs.cluster import Cluster
from meshplan.inputs.job import Job
from meshplan.inputs.model import Model
from meshplan.record import record

__all__ = ["Objective", "Scenario"]

Objective = Literal["fastest", "cheapest", "fewest_gpus", "pareto"]


@record
class Scenario:
    """All that a plan is made for.

    Attributes:
        model: what is computed.
        cluster: on what.
        job: for how long and in which numbers.
        frameworks: frameworks whose plans are considered.
        axes: allowed values by plan field, such as ``{"tp": (1, 2, 4)}``; an axis that is
            missing takes all values that make sense.
        objective: what the ranking is for.
        profile: name of the cluster profile, or the path or the text of a calibrated one, that
            overrides ``cluster.profile``; empty for none.
        variant: named behaviour of a framework at another time, such as ``megatron-2021``;
            empty for the current one. Settings of the job may follow, each with a plus sign
            before it: ``megatron-bridge+alltoall+graph-router``.
    """

    model: Model
    cluster: Cluster
    job: Job
    frameworks: tuple[str, ...] = ("megatron",)
    axes: Mapping[str, tuple[object, ...]] = field(default_factory=dict, hash=False)
    objective: Objective = "fastest"
    profile: str = ""
    variant: str = ""
