"""What a collective should take on links of their class, by the cost model's own functions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshplan.cost.collectives import Collective, collective_time
from meshplan.cost.tuning import NEUTRAL, Tuning
from meshplan.cost.unit_time import tuning_of
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.flows import Flow
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.load.profile import cluster_profile, profile_of
from meshplan.space.placement import members_per_tier

__all__ = ["expected_us", "inside_node_us", "large_transfer_us"]

_KINDS = {kind.value: kind for kind in Collective}


def _tuning(facts: Facts, cluster: Cluster) -> Tuning:
    """Factors of the run; of its cluster alone where the plan is not known."""
    scenario, plan = facts.context.scenario, facts.context.plan
    if scenario is None or plan is None:
        own = cluster_profile(cluster.profile or "default", cluster.device.architecture)
        return replace(NEUTRAL, scale_up=own.scale_up, scale_out=own.scale_out, latency=own.latency)
    return tuning_of(profile_of(scenario, plan.framework.name.lower()), scenario.cluster)


def expected_us(facts: Facts, flow: Flow, cluster: Cluster) -> float | None:
    """What the large calls of a flow should take together, per step [us].

    None when the group, the kind or the sizes are not known, or no call is large.
    """
    kind, group = _KINDS.get(flow.traffic.kind), facts.group_of(flow)
    large = [s for s in flow.traffic.sizes if s.message_bytes >= threshold("class_bytes")]
    if kind is None or group is None or not large or group[0] > cluster.num_gpus:
        return None
    size, stride = np.array([group[0]]), np.array([group[1]])
    members = members_per_tier(cluster, size, stride).astype(np.float64)
    seconds = collective_time(
        cluster,
        kind,
        message_bytes=np.array([s.message_bytes for s in large]),
        members=np.repeat(members, len(large), axis=1),
        tuning=_tuning(facts, cluster),
    )
    counts = np.array([s.count for s in large])
    return float((seconds * counts).sum()) * 1e6


def large_transfer_us(flow: Flow) -> float:
    """What the large calls of a flow took without waiting, in the step that they stand for [us]."""
    large = [s for s in flow.traffic.sizes if s.message_bytes >= threshold("class_bytes")]
    return sum(s.transfer_us for s in large)


def inside_node_us(facts: Facts, flow: Flow) -> float | None:
    """What a flow would take if its group sat inside one node, per step [us]."""
    cluster, _ = facts.machine
    group = facts.group_of(flow)
    if cluster is None or group is None:
        return None
    tier = replace(cluster.tiers[0], num_gpus=max(group[0] * group[1], 2))
    inside = replace(cluster, num_gpus=tier.num_gpus, gpus_per_node=tier.num_gpus, tiers=(tier,))
    return expected_us(facts, flow, inside)
