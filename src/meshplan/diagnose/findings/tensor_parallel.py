"""Tensor parallelism that leaves its scale-up domain: collectives over the slow network."""

from __future__ import annotations

from math import gcd

from meshplan.diagnose.findings import classes, links, places
from meshplan.diagnose.findings.cures import best_of, change, from_trace, kept_batch
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.flows import Flow
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.records import Action, Finding, Gain
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.search.carry import with_degree
from meshplan.space.plan import Plan

__all__ = ["find"]


def find(facts: Facts) -> Outcome:
    """Look for tensor-parallel groups that leave their scale-up domain."""
    flows = [f for f in facts.flows_of("tp") if f.traffic.group_size != 1]
    if not flows:
        return ABSENT
    domain = facts.domain_gpus
    if domain is None:
        return Open("gpus_per_node_unknown")
    left = [(f, facts.leaves_domain(f)) for f in flows]
    if all(leaves is None for _, leaves in left):
        return Open("group_ranks_unknown")
    crossing = [f for f, leaves in left if leaves]
    if not crossing:
        return CLEAR
    share = facts.share(_lost_us(facts, crossing))
    if share < threshold("least_share"):
        return CLEAR
    return _across(facts, crossing, domain=domain, share=share)


def _across(facts: Facts, crossing: list[Flow], *, domain: int, share: float) -> Finding:
    """The finding: which groups leave their domain, and the degree that would not."""
    size = max(max(f.traffic.group_size, len(f.traffic.ranks)) for f in crossing)
    inside = gcd(size, domain)
    worst = max(crossing, key=lambda f: f.exposed_us)
    better, gain = _inside_node(facts, inside)
    rates = [f.traffic.bus_bytes_per_s for f in crossing if f.traffic.bus_bytes_per_s]
    return Finding(
        code="tp_across_nodes",
        cost_share=share,
        numbers={
            "tp": size,
            "domain_gpus": domain,
            "exposed_fraction": facts.share(facts.last_to_come_us("tp")),
            "bus_bytes_per_s": min(rates) if rates else 0.0,
            "basis": worst.traffic.basis,
        },
        ranks=tuple(sorted({f.rank for f in crossing})),
        kernels=worst.traffic.kernels,
        places=places.calls(facts, worst),
        action=Action(
            code="tp_inside_node",
            numbers={"tp": inside},
            changes=(change(facts, "tp", before=size, after=inside),),
            plan=better,
        ),
        gain=gain or from_trace(share),
        confidence="high" if worst.traffic.ranks else "medium",
        reason="ranks_leave_node" if worst.traffic.ranks else "size_exceeds_node",
    )


def _lost_us(facts: Facts, crossing: list[Flow]) -> float:
    """What a step would save with the same traffic inside a node [us]."""
    factors = {}
    for flow in crossing:
        # nothing is expected of small calls: all that they show is lost then, at most
        expected = classes.inside_node_us(facts, flow) or 0.0
        factors[flow] = min(1.0, expected / max(flow.transfer_us, 1e-9))
    return links.saved_us(facts, factors)


def _inside_node(facts: Facts, inside: int) -> tuple[Plan | None, Gain | None]:
    """The plan with tensor parallelism of that degree, and what the cost model expects of it."""
    plan = facts.context.plan
    if plan is None or facts.context.scenario is None:
        return None, None
    found = best_of(facts.context, [kept_batch(with_degree(plan, "tp", inside), facts.context)])
    if found is None:
        return None, None
    return found[0].grid.plan(0), Gain(share=found[1], basis="cost_model")
