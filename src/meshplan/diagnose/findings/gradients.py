"""Traffic between replicas that shows: gradients after the backward pass, ZeRO-3 gathers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshplan.diagnose.findings import links
from meshplan.diagnose.findings.cures import best_of, change, from_trace, kept_batch
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.records import Action, Change, Finding, Gain
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.records import Kind
from meshplan.space.plan import Plan

__all__ = ["find_exposed", "find_sharding"]

_REDUCTIONS: tuple[Kind, ...] = ("all_reduce", "reduce_scatter")
_SHARDING: tuple[Kind, ...] = ("all_gather", "reduce_scatter")


def _gathers_each_time(facts: Facts) -> bool:
    """ZeRO-3: parameters are gathered for each pass, not once per step."""
    plan = facts.context.plan
    if plan is not None:
        return plan.zero == 3
    gathers = sum(f.count for f in facts.flows_of("dp", kinds=("all_gather",)))
    reduces = sum(f.count for f in facts.flows_of("dp", kinds=("reduce_scatter",)))
    return reduces > 0 and gathers >= threshold("gather_ratio") * reduces


def find_exposed(facts: Facts) -> Finding | str | None:
    """Look for gradients that are reduced while nothing computes."""
    flows = [f for f in facts.flows_of("dp", kinds=_REDUCTIONS) if f.transfer_us > 0]
    if not flows or _gathers_each_time(facts):
        return None
    if facts.host_paces:
        return ""
    shown = {r.rank: 0.0 for r in facts.ranks}
    moved, hidden, blamed = dict(shown), dict(shown), dict(shown)
    reached = links.reached_shares(facts)
    slow = {**links.excess_us(facts, network=True), **links.excess_us(facts, network=False)}
    for flow in flows:
        shown[flow.rank] += facts.shown_us(flow)
        # on links of their class they would take that long
        moved[flow.rank] += flow.transfer_us * reached.get(links.channel_of(flow), 1.0)
        hidden[flow.rank] += max(0.0, flow.total_us - flow.exposed_us)
        blamed[flow.rank] += slow.get(links.channel_of(flow), 0.0)
    rank = max(shown, key=lambda r: shown[r])
    if moved[rank] <= 0 or hidden[rank] / moved[rank] > threshold("hidden_share"):
        return ""
    own = [f for f in flows if f.rank == rank]
    # the last bucket shows in any case; what a slow link adds is its own finding
    last = max(f.transfer_us / max(f.count, 1.0) for f in own)
    part = max(0.0, 1.0 - blamed[rank] / shown[rank])
    share = facts.share((shown[rank] - last) * part)
    if share < threshold("least_share"):
        return ""
    worst = max(own, key=lambda f: f.exposed_us)
    return Finding(
        code="gradients_exposed",
        cost_share=share,
        numbers={
            "exposed_fraction": facts.share(shown[rank]),
            "hidden_fraction": hidden[rank] / moved[rank],
            "kind": worst.traffic.kind,
            "num_calls": sum(f.count for f in own),
        },
        ranks=tuple(sorted({f.rank for f in flows})),
        kernels=worst.traffic.kernels,
        places=facts.call_places(worst),
        action=Action(code="overlap_gradients", changes=_overlap(facts)),
        gain=from_trace(share),
        confidence="high" if worst.traffic.basis in ("metadata", "plan") else "medium",
        reason="axis_known" if worst.traffic.basis in ("metadata", "plan") else "axis_inferred",
    )


def _overlap(facts: Facts) -> tuple[Change, ...]:
    return (change(facts, "overlap_gradients", before="off", after="on"),)


def find_sharding(facts: Facts) -> Finding | str | None:
    """Look for gathers of parameters over a network that compute cannot hide."""
    flows = list(facts.flows_of("dp", kinds=_SHARDING))
    if not flows or not _gathers_each_time(facts):
        return None
    if facts.host_paces:
        return ""
    leaving = [f for f in flows if facts.leaves_node(f) is not False]
    if not leaving:
        return ""
    blamed = links.excess_us(facts, network=True)
    shown = {r.rank: 0.0 for r in facts.ranks}
    for flow in leaving:
        blame = blamed.get(links.channel_of(flow), 0.0)
        shown[flow.rank] += max(0.0, facts.shown_us(flow) - blame)
    rank = max(shown, key=lambda r: shown[r])
    share = facts.share(shown[rank])
    if share < threshold("sharding_share"):
        return ""
    worst = max((f for f in leaving if f.rank == rank), key=lambda f: f.exposed_us)
    action, gain = _less_traffic(facts)
    known = facts.context.cluster is not None
    return Finding(
        code="sharding_over_slow_network",
        cost_share=share,
        numbers={
            "exposed_fraction": share,
            "bus_bytes_per_s": worst.traffic.bus_bytes_per_s or 0.0,
            "group_size": worst.traffic.group_size,
            "num_gathers": sum(
                f.count for f in leaving if f.rank == rank and f.traffic.kind == "all_gather"
            ),
        },
        ranks=tuple(sorted({f.rank for f in leaving})),
        kernels=worst.traffic.kernels,
        places=facts.call_places(worst),
        action=action,
        gain=gain or from_trace(share),
        confidence="high" if known else "medium",
        reason="network_at_its_class" if known else "network_not_known",
    )


def _less_traffic(facts: Facts) -> tuple[Action, Gain | None]:
    """Shard inside a node, keep parameters gathered, or do more work for each gather."""
    plan, scenario = facts.context.plan, facts.context.scenario
    node = facts.gpus_per_node or 8
    general = Action(
        code="shard_inside_node",
        numbers={"gpus_per_node": node},
        changes=(change(facts, "dp_shard", before="", after=node),),
    )
    if plan is None or scenario is None:
        return general, None
    candidates = [kept_batch(p, facts.context) for p in _lighter(plan, node)]
    found = best_of(facts.context, candidates)
    if found is None:
        return general, None
    better = found[0].grid.plan(0)
    changes = tuple(
        change(facts, name, before=getattr(plan, name), after=getattr(better, name))
        for name in ("zero", "dp_shard", "micro_batch")
        if getattr(plan, name) != getattr(better, name)
    )
    return (
        Action(code="less_sharding", changes=changes),
        Gain(share=found[1], basis="cost_model"),
    )


def _lighter(plan: Plan, node: int) -> Iterator[Plan]:
    inside = max(1, node // (plan.tp * plan.cp))
    if plan.dp % inside == 0 and inside < plan.dp_shard:
        yield replace(plan, dp_shard=inside, dp_replicate=plan.dp // inside)
    for zero in (2, 1):
        yield replace(plan, zero=zero)
    for factor in (2, 4):
        yield replace(plan, micro_batch=plan.micro_batch * factor)
