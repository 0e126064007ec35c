"""Traffic between replicas that shows: gradients after the backward pass, ZeRO-3 gathers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from meshplan.diagnose.findings import links, places
from meshplan.diagnose.findings.cures import best_of, change, from_trace, kept_batch
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.flows import Flow, channel_of, last_calls_us
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.records import Action, Change, Finding, Gain
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.records import CollectiveKind
from meshplan.record import record
from meshplan.space.plan import Plan

__all__ = ["find_exposed", "find_sharding"]

_OF_GRADIENTS: tuple[CollectiveKind, ...] = ("all_reduce", "reduce_scatter")
_REASONS = {"metadata": "axis_known", "plan": "axis_of_plan"}
_SHARDING: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter")


def _gathers_each_time(facts: Facts) -> bool:
    """ZeRO-3: parameters are gathered for each pass, not once per step."""
    plan = facts.context.plan
    if plan is not None:
        return plan.zero == 3
    gathers = sum(f.count for f in facts.flows_of("dp", kinds=("all_gather",)))
    reduces = sum(f.count for f in facts.flows_of("dp", kinds=("reduce_scatter",)))
    return reduces > 0 and gathers >= threshold("gather_ratio") * reduces


@record(kw_only=False)
class _Reduced:
    """Reductions of the rank that the others wait for, per step [us].

    Attributes:
        flows: its traffic.
        shown_us: what shows, without waiting for others.
        moved_us: what the traffic takes on links of its class.
        hidden_us: what runs beside compute.
        blamed_us: what shows because links are slower than their class.
        last_us: the last calls, which nothing could hide: the gradients of the first block of a
            stage, and of the embedding, which the backward pass gives last.
    """

    flows: tuple[Flow, ...]
    shown_us: float
    moved_us: float
    hidden_us: float
    blamed_us: float
    last_us: float


def _reduced(facts: Facts, flows: list[Flow]) -> _Reduced:
    rank = facts.pace_rank(flows)
    own = tuple(f for f in flows if f.rank == rank)
    # nothing computes behind the first block but the gradients of the embedding
    num_last = 2 if rank in facts.stages[0] else 1
    reached = {
        channel_of(f.traffic): share
        for f in own
        if (share := links.reached_shares(facts).get((f.rank, channel_of(f.traffic))))
    }
    return _Reduced(
        flows=own,
        shown_us=sum(facts.shown_us(f) for f in own),
        moved_us=sum(f.transfer_us * reached.get(channel_of(f.traffic), 1.0) for f in own),
        hidden_us=sum(max(0.0, f.total_us - f.exposed_us) for f in own),
        blamed_us=facts.saved_us(rank, reached),
        last_us=max(
            (last_calls_us(facts.run.rank(f.rank), f, num=num_last) for f in own), default=0.0
        ),
    )


def find_exposed(facts: Facts) -> Outcome:
    """Look for gradients that are reduced while nothing computes.

    Either they are launched when the backward pass is over, or they are launched in time and
    take longer than compute can hide.
    """
    flows = [f for f in facts.flows_of("dp", kinds=_OF_GRADIENTS) if f.transfer_us > 0]
    if not flows:
        return Open("collective_unknown") if _may_show(facts) else ABSENT
    if _gathers_each_time(facts):
        return ABSENT
    found = _reduced(facts, flows)
    if facts.host_paces or found.moved_us <= 0 or found.shown_us <= 0:
        return CLEAR
    overlaps = found.hidden_us / found.moved_us > threshold("hidden_share")
    # overlap would hide slow traffic too; what overlaps and is slow, the links answer for
    shown_us = found.shown_us - (found.blamed_us if overlaps else found.last_us)
    share = facts.share(shown_us)
    if share < threshold("gradient_share" if overlaps else "least_share"):
        return CLEAR
    worst = max(found.flows, key=lambda f: f.exposed_us)
    sure = worst.traffic.basis in ("metadata", "plan") and not overlaps
    alone = overlaps and worst.traffic.wait_basis != "peers"
    return Finding(
        code="gradients_exposed",
        form="slow" if overlaps else "",
        details=(*(["bus"] if worst.traffic.bus_bytes_per_s else []), *(["one_rank"] * alone)),
        cost_share=share,
        numbers={
            "bus_bytes_per_s": worst.traffic.bus_bytes_per_s or 0.0,
            "exposed_fraction": facts.share(found.shown_us),
            "hidden_fraction": found.hidden_us / max(found.hidden_us + found.shown_us, 1e-9),
            "kind": worst.traffic.kind,
            "num_calls": sum(f.count for f in found.flows),
        },
        ranks=tuple(sorted({f.rank for f in flows})),
        kernels=worst.traffic.kernels,
        places=places.calls(facts, worst),
        action=_lighter_gradients(facts) if overlaps else _overlap(facts, worst.traffic.kind),
        gain=from_trace(share),
        confidence="high" if sure else "medium",
        reason="network_not_known"
        if overlaps
        else _REASONS.get(worst.traffic.basis, "axis_inferred"),
    )


def _may_show(facts: Facts) -> bool:
    """Whether traffic shows that may be the reduction of gradients and does not say so."""
    sums: dict[int, float] = {}
    unnamed = facts.flows_of("dp", kinds=("other",))
    for flow in (*facts.flows_of("unknown", kinds=(*_OF_GRADIENTS, "other")), *unnamed):
        sums[flow.rank] = sums.get(flow.rank, 0.0) + facts.shown_us(flow)
    return facts.share(min(sums.values(), default=0.0)) >= threshold("gradient_share")


def _overlap(facts: Facts, kind: CollectiveKind) -> Action:
    """Reduce gradients in time; where they are scattered, gather parameters in time too."""
    names = ["overlap_gradients"]
    names += ["overlap_parameters"] if kind == "reduce_scatter" else []
    changes = [change(facts, name, before="", after="on") for name in names]
    return Action(code="overlap_gradients", changes=tuple(changes))


def _lighter_gradients(facts: Facts) -> Action:
    """More work for each reduction, where it overlaps already."""
    plan = facts.context.plan
    return Action(
        code="fewer_reductions",
        changes=(change(facts, "num_micro_batches", before="", after="+"),),
        plan=None if plan is None else replace(plan, num_micro_batches=2 * plan.num_micro_batches),
    )


def find_sharding(facts: Facts) -> Outcome:
    """Look for gathers of parameters over a network that compute cannot hide."""
    flows = list(facts.flows_of("dp", kinds=_SHARDING))
    if not flows or not _gathers_each_time(facts):
        return ABSENT
    leaving = [f for f in flows if facts.leaves_domain(f) is not False]
    if not leaving:
        return CLEAR
    saved = {rank: _sharding_us(facts, leaving, rank) for rank in sorted({f.rank for f in leaving})}
    rank = facts.pace_rank(leaving)
    assert rank is not None
    if facts.share(saved[rank]) < threshold("sharding_share"):
        return CLEAR
    # ranks gather alike, and compute that a trace lacks hides gathers: the middle lacks no more
    # than most
    share = facts.share(max(saved[rank], median(saved.values())))
    worst = max((f for f in leaving if f.rank == rank), key=lambda f: f.exposed_us)
    action, gain = _less_traffic(facts, worst)
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
        places=places.calls(facts, worst),
        action=action,
        gain=gain or from_trace(share),
        confidence="high" if known else "medium",
        reason="network_at_its_class" if known else "network_not_known",
    )


def _sharding_us(facts: Facts, leaving: list[Flow], rank: int) -> float:
    """What a step is shorter without this traffic, beyond what links of their class save [us]."""
    own = [flow for flow in leaving if flow.rank == rank]
    at_class = links.reached_shares(facts)
    gone = {channel_of(flow.traffic): 0.0 for flow in own}
    slow = {key: share for key in gone if (share := at_class.get((rank, key)))}
    shown = facts.saved_us(rank, gone) - facts.saved_us(rank, slow)
    if not facts.host_paces:
        return shown
    # with a host in time, compute could run beside all but the rest of it
    moved = sum(flow.transfer_us for flow in own)
    return min(shown, max(0.0, moved - facts.compute_us.get(rank, 0.0)))


def _split(facts: Facts, flow: Flow, domain: int) -> tuple[Change, ...]:
    """Shards for the members of a group inside one domain, replicas for the domains of a group."""
    group = facts.group_of(flow)
    inside = domain if group is None else max(1, domain // group[1])
    replicas = 0 if group is None or group[0] % inside else group[0] // inside
    return (
        change(facts, "dp_shard", before="", after=inside),
        *([change(facts, "dp_replicate", before="", after=replicas)] if replicas > 1 else []),
    )


def _less_traffic(facts: Facts, worst: Flow) -> tuple[Action, Gain | None]:
    """Shard inside a scale-up domain, keep parameters gathered, or do more work for each gather."""
    plan, scenario = facts.context.plan, facts.context.scenario
    domain = facts.domain_gpus or round(threshold("usual_domain"))
    general = Action(
        code="shard_inside_node",
        numbers={"domain_gpus": domain},
        changes=_split(facts, worst, domain),
    )
    if plan is None or scenario is None:
        return general, None
    candidates = [kept_batch(p, facts.context) for p in _lighter(plan, domain)]
    found = best_of(facts.context, candidates)
    if found is None:
        return general, None
    return (
        Action(code="less_sharding", plan=found[0].grid.plan(0)),
        Gain(share=found[1], basis="cost_model"),
    )


def _lighter(plan: Plan, domain: int) -> Iterator[Plan]:
    inside = max(1, domain // (plan.tp * plan.cp))
    if plan.dp % inside == 0 and inside < plan.dp_shard:
        yield replace(plan, dp_shard=inside, dp_replicate=plan.dp // inside)
    for zero in (2, 1):
        yield replace(plan, zero=zero)
    for factor in (2, 4):
        yield replace(plan, micro_batch=plan.micro_batch * factor)
