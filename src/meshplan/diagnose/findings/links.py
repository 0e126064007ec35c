"""Links that are slower than their class: a network card, or NVLink."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median

from meshplan.diagnose.findings import classes, pipeline, places
from meshplan.diagnose.findings.cures import from_trace
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.flows import ChannelKey, Flow, channel_of
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.records import Action, Confidence, Finding
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.machine import crossed_tier
from meshplan.inputs.cluster import Cluster

__all__ = ["find_network", "find_scale_up", "find_unknown", "reached_shares", "saved_us"]


def find_network(facts: Facts) -> Outcome:
    """Look for groups over several domains that move data slower than their network should."""
    cluster, stated = facts.machine
    if cluster is None or not stated:
        has_network = any(facts.leaves_domain(f) is not False for f in facts.flows)
        return Open("network_unknown") if has_network and facts.flows else ABSENT
    return _find(facts, cluster, network=True)


def find_scale_up(facts: Facts) -> Outcome:
    """Look for groups inside a scale-up domain that move data slower than their links should."""
    cluster, _ = facts.machine
    if cluster is None:
        named = any(rank.device for rank in facts.ranks)
        unknown = Open("device_not_listed" if named else "device_unknown")
        return unknown if facts.flows else ABSENT
    return _find(facts, cluster, network=False)


def _slow(facts: Facts, cluster: Cluster, *, network: bool) -> list[tuple[Flow, float]]:
    """Flows below their class, each with the share of the class that it reaches."""
    found = []
    # where all calls wait for a slow device, the fastest of them do too
    uneven = any(ratio >= facts.slow_from for ratio in facts.slowdown.values())
    for flow in facts.flows_of("tp", "cp", "ep", "dp"):
        if facts.leaves_domain(flow) is not network:
            continue
        if not flow.traffic.wait_basis or (flow.traffic.wait_basis == "shortest" and uneven):
            continue  # how much of a call is waiting for others is not known
        expected = classes.expected_us(facts, flow, cluster)
        taken = classes.large_transfer_us(flow)
        if expected is not None and taken > 0 and expected / taken < threshold("class_share"):
            found.append((flow, expected / taken))
    return found


def reached_shares(facts: Facts) -> dict[tuple[int, ChannelKey], float]:
    """By rank and channel: share of its class that slow traffic reaches."""
    made = {}
    for network in (True, False):
        cluster, stated = facts.machine
        if cluster is not None and (stated or not network):
            for flow, share in _slow(facts, cluster, network=network):
                made[flow.rank, channel_of(flow.traffic)] = share
    return made


def _find(facts: Facts, cluster: Cluster, *, network: bool) -> Outcome:
    if not any(facts.leaves_domain(f) is network for f in facts.flows):
        return ABSENT
    slow = _slow(facts, cluster, network=network)
    if not slow:
        known = any(f.traffic.wait_basis for f in facts.flows if facts.leaves_domain(f) is network)
        return CLEAR if known else Open("waits_unknown")
    share = facts.share(saved_us(facts, dict(slow)))
    if share < threshold("least_share"):
        return CLEAR
    reached = median(reached for _, reached in slow)
    worst = max(slow, key=lambda item: item[0].exposed_us)[0]
    group = facts.group_of(worst)
    assert group is not None  # or nothing would be expected of the flow
    tier = cluster.tiers[crossed_tier(cluster, group)]
    ranks = sorted({flow.rank for flow, _ in slow})
    return Finding(
        code="slow_nic" if network else "slow_nvlink",
        cost_share=share,
        numbers={
            "reached_fraction": reached,
            "bus_bytes_per_s": worst.traffic.bus_bytes_per_s or 0.0,
            "link_bytes_per_s": tier.bandwidth_bytes_per_s,
            "fabric": tier.fabric,
            "axis": worst.traffic.axis,
            "kind": worst.traffic.kind,
            "nodes": ", ".join(str(n) for n in _nodes(facts, slow)),
        },
        ranks=tuple(ranks),
        kernels=worst.traffic.kernels,
        places=places.calls(facts, worst),
        action=Action(
            code="check_network" if network else "check_nvlink",
            numbers={"fabric": tier.fabric},
        ),
        gain=from_trace(share),
        confidence=_confidence(facts, slow),
        reason="below_stated_class" if facts.context.cluster is not None else "below_usual_class",
    )


def saved_us(facts: Facts, factors: Mapping[Flow, float]) -> float:
    """What a step is shorter when some traffic takes another time [us].

    It is played on the rank that the others wait for, in a pipeline on one of each stage: traffic
    inside a pass lengthens what fills the pipeline too. Traffic between replicas runs before and
    after the passes: the first stage is the first to need it and the last to have it, the others
    do it while the pipeline fills and drains.

    Args:
        facts: of the run.
        factors: on the time of each flow.
    """
    if facts.num_stages < 2 or len(facts.stages) < 2:
        return _saved_on(facts, facts.pace_rank(factors), factors)
    inside = {f: factor for f, factor in factors.items() if f.traffic.axis != "dp"}
    between = {f: factor for f, factor in factors.items() if f.traffic.axis == "dp"}
    of_stage = [facts.pace_rank(f for f in inside if f.rank in ranks) for ranks in facts.stages]
    by_rank = {rank: _saved_on(facts, rank, inside) for rank in of_stage if rank is not None}
    first = facts.pace_rank(f for f in between if f.rank in facts.stages[0])
    ends = facts.pace_rank(between) if first is None else first
    return pipeline.shorter_us(facts, by_rank) + _saved_on(facts, ends, between)


def _saved_on(facts: Facts, rank: int | None, factors: Mapping[Flow, float]) -> float:
    own = {channel_of(f.traffic): factor for f, factor in factors.items() if f.rank == rank}
    return facts.saved_us(rank, own)


def _confidence(facts: Facts, slow: list[tuple[Flow, float]]) -> Confidence:
    """Sure with a stated cluster and the traces of the other ranks, which show who waits."""
    if any(flow.traffic.wait_basis != "peers" for flow, _ in slow):
        return "low"
    return "high" if facts.context.cluster is not None and len(slow) > 1 else "medium"


def _nodes(facts: Facts, slow: list[tuple[Flow, float]]) -> tuple[int, ...]:
    """Nodes that every slow group has a member in; all of them when there is no such node."""
    node = facts.gpus_per_node or 1
    touched = [{r // node for r in (f.traffic.ranks or (f.rank,))} for f, _ in slow]
    common = set.intersection(*touched) if touched else set()
    return tuple(sorted(common or set.union(*touched)))


def find_unknown(facts: Facts) -> Outcome:
    """See whether traffic that shows says what it is for; what costs time in it is left open."""
    shown = [
        facts.share(fmean(step.exposed_by_axis_us.get("unknown", 0.0) for step in rank.steady))
        for rank in facts.ranks
    ]
    return Open("group_unknown") if max(shown, default=0) >= threshold("unknown_share") else ABSENT
