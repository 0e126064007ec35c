"""Experts that get unequal work: the busiest device of an expert-parallel group sets the pace."""

from __future__ import annotations

from statistics import fmean

from meshplan.diagnose.findings import places
from meshplan.diagnose.findings.cures import change, from_trace
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.records import Action, Finding
from meshplan.diagnose.findings.thresholds import threshold

__all__ = ["find", "routed_us"]


def find(facts: Facts) -> Outcome:
    """Look for kernels that take longer on some ranks of a group that exchanges tokens."""
    flows = list(facts.flows_of("ep"))
    if not flows:
        return ABSENT
    groups = _groups(facts)
    if not groups:
        return Open("one_rank")
    worst = max(groups, key=lambda group: _excess_us(facts, group))
    hot = max(worst, key=lambda rank: facts.work_us[rank])
    uneven = _uneven_kernels(facts, worst, hot)
    share = facts.share(_lost_us(facts, groups, uneven))
    if share < threshold("least_share") or not uneven:
        return CLEAR
    ratio = sum(r * t for _, r, t in uneven) / sum(t for _, _, t in uneven)
    hot_ranks = [r for group in groups for r in group if _is_hot(facts, r, group)]
    return Finding(
        code="expert_imbalance",
        cost_share=share,
        numbers={
            "rank": hot,
            "ratio": ratio,
            "ep": len(worst),
            "busiest_s": facts.work_us[hot] / 1e6,
            "mean_s": fmean(facts.work_us[rank] for rank in worst) / 1e6,
        },
        ranks=tuple(sorted(hot_ranks)),
        kernels=tuple(name for name, _, _ in uneven[:3]),
        places=places.steps(facts, [hot]),
        action=Action(
            code="balance_experts",
            changes=(change(facts, "router_balance", before="", after="on"),),
        ),
        gain=from_trace(share),
        confidence="high" if len(worst) > 2 else "medium",
        reason="only_some_kernels_differ",
    )


def _excess_us(facts: Facts, group: tuple[int, ...]) -> float:
    work = [facts.work_us[rank] for rank in group]
    return max(work) - fmean(work)


def _lost_us(
    facts: Facts, groups: list[tuple[int, ...]], uneven: list[tuple[str, float, float]]
) -> float:
    """What the busiest rank takes longer than the slowest one would with equal work [us].

    Tokens are exchanged before and after the experts, so that a group waits there for each of its
    ranks, and the groups for each other when gradients are reduced.
    """
    names = {name for name, _, _ in uneven}
    now, even = [], []
    for group in groups:
        times = _time_in(facts, group, names)
        slow = {rank: _slowness(facts, rank) for rank in group}
        now.append(max(times.values()))
        even.append(fmean(times[r] / slow[r] for r in group) * max(slow.values()))
    return max(now) - max(even)


def routed_us(facts: Facts) -> dict[int, float]:
    """Time of a step by rank in kernels whose work is uneven in an expert-parallel group [us]."""
    made = {rank.rank: 0.0 for rank in facts.ranks}
    if not any(True for _ in facts.flows_of("ep")):
        return made
    for group in _groups(facts):
        hot = max(group, key=lambda rank: facts.work_us[rank])
        names = {name for name, _, _ in _uneven_kernels(facts, group, hot)}
        made |= _time_in(facts, group, names)
    return made


def _time_in(facts: Facts, group: tuple[int, ...], names: set[str]) -> dict[int, float]:
    return {
        rank: sum(us for name, (_, us) in facts.per_call_us[rank].items() if name in names)
        for rank in group
    }


def _slowness(facts: Facts, rank: int) -> float:
    """By how much a device is slow; 1 for one that is no straggler."""
    ratio = facts.slowdown.get(rank, 1.0)
    return ratio if ratio >= facts.slow_from else 1.0


def _groups(facts: Facts) -> list[tuple[int, ...]]:
    """Expert-parallel groups with at least two measured ranks.

    Where their ranks are not known, the ranks of a stage stand in for them.
    """
    known = {rank.rank for rank in facts.ranks}
    named = {f.traffic.ranks for f in facts.flows_of("ep") if len(f.traffic.ranks) > 1}
    groups = [tuple(r for r in ranks if r in known) for ranks in sorted(named)]
    if not groups:
        groups = list(facts.stages)
    return [group for group in groups if len(group) > 1]


def _uneven_kernels(
    facts: Facts, group: tuple[int, ...], hot: int
) -> list[tuple[str, float, float]]:
    """Kernels of the busy rank that take longer than its group's mean: name, ratio, time."""
    least = threshold("routed_ratio")
    found = []
    for name, (call, total) in facts.per_call_us.get(hot, {}).items():
        calls = [facts.per_call_us[r][name][0] for r in group if name in facts.per_call_us[r]]
        if len(calls) < 2:
            continue
        ratio = call / facts.slowdown.get(hot, 1.0) / fmean(calls)
        if ratio >= least:
            found.append((name, ratio, total))
    return sorted(found, key=lambda item: -item[2])


def _is_hot(facts: Facts, rank: int, group: tuple[int, ...]) -> bool:
    mean = fmean(facts.work_us[r] for r in group)
    return facts.work_us[rank] > mean * (1.0 + threshold("least_share"))
