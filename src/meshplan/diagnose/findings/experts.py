"""Experts that get unequal work: the busiest device of an expert-parallel group sets the pace."""

from __future__ import annotations

from statistics import fmean

from meshplan.diagnose.findings.cures import change, from_trace
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.records import Action, Finding
from meshplan.diagnose.findings.thresholds import threshold

__all__ = ["find"]


def find(facts: Facts) -> Finding | str | None:
    """Look for kernels that take longer on some ranks of a group that exchanges tokens."""
    flows = list(facts.flows_of("ep"))
    if not flows:
        return None
    groups = _groups(facts)
    if not groups:
        return "one_rank"
    lost, worst = 0.0, groups[0]
    for group in groups:
        work = [facts.work_us[rank] for rank in group]
        if max(work) - fmean(work) > lost:
            lost, worst = max(work) - fmean(work), group
    share = facts.share(lost)
    if share < threshold("least_share"):
        return ""
    hot = max(worst, key=lambda rank: facts.work_us[rank])
    uneven = _uneven_kernels(facts, worst, hot)
    if not uneven:
        return ""
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
        places=facts.step_places([hot]),
        action=Action(
            code="balance_experts",
            changes=(change(facts, "router_balance", before="", after="aux_loss"),),
        ),
        gain=from_trace(share),
        confidence="high" if len(worst) > 2 else "medium",
        reason="only_some_kernels_differ",
    )


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
