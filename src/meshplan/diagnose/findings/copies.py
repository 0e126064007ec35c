"""Copies between host and device, or on a device, that nothing hides."""

from __future__ import annotations

from statistics import fmean

from meshplan.diagnose.findings import places
from meshplan.diagnose.findings.cures import from_trace
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Outcome
from meshplan.diagnose.findings.records import Action, Finding
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.names import copy_way
from meshplan.diagnose.records import KernelTotal, RankMeasures

__all__ = ["find"]


def find(facts: Facts) -> Outcome:
    """Look for copies beside which nothing computes or communicates."""
    shown = {r.rank: fmean(step.time.copy_shown_us for step in r.steady) for r in facts.ranks}
    if not any(step.time.copy_us for r in facts.ranks for step in r.steady):
        return ABSENT
    worst = max(shown, key=lambda rank: shown[rank])
    share = facts.share(shown[worst])
    if share < threshold("copy_share"):
        return CLEAR
    own = next(r for r in facts.ranks if r.rank == worst)
    names = _longest(own)
    way = copy_way(names[0].name) if names else "other"
    return Finding(
        code="copies_exposed",
        cost_share=share,
        numbers={
            "shown_s": shown[worst] / 1e6,
            "copy_s": fmean(step.time.copy_us for step in own.steady) / 1e6,
            "num_copies": sum(one.count for one in names) / len(own.steady),
            "way": way,
            "rank": worst,
        },
        ranks=(worst,),
        kernels=tuple(dict.fromkeys(one.name for one in names))[:2],
        places=places.steps(facts, [worst]),
        action=Action(code=f"copies_{way}"),
        gain=from_trace(share),
        confidence="high",
        reason="copies_measured",
    )


def _longest(rank: RankMeasures) -> list[KernelTotal]:
    """Copies of the steady steps, those that take most time first."""
    found = [k for step in rank.steady for k in step.kernels if k.kind == "copies"]
    return sorted(found, key=lambda one: -one.total_us)
