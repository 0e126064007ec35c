"""Where in the timeline a finding can be seen, as narrow as it is known."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.flows import Flow, calls_of
from meshplan.diagnose.findings.records import Place

__all__ = ["calls", "gaps", "kernels_of", "pipeline_waits", "steps"]

_MOST = 4
"""Places that are shown of one finding."""


def steps(facts: Facts, ranks: Iterable[int]) -> tuple[Place, ...]:
    """The first steady step of some ranks."""
    made = []
    for rank in list(ranks)[:_MOST]:
        found = facts.run.rank(rank)
        if found is not None and found.steady:
            window = found.steady[0].time.window
            made.append(Place(rank=rank, start_us=window.start, end_us=window.end))
    return tuple(made)


def calls(facts: Facts, *flows: Flow) -> tuple[Place, ...]:
    """The longest calls of some traffic in the first steady step."""
    made: list[Place] = []
    for flow in flows:
        found = facts.run.rank(flow.rank)
        if found is None or not found.steady:
            continue
        own, start, end = calls_of(found, flow), found.calls.start, found.calls.end
        longest = own[np.argsort(-(end - start)[own], kind="stable")][:_MOST]
        made += [
            Place(rank=flow.rank, start_us=float(start[i]), end_us=float(end[i])) for i in longest
        ]
    return _longest(made)


def pipeline_waits(facts: Facts, stage: tuple[int, ...]) -> tuple[Place, ...]:
    """The longest sends and receives of the first rank of a stage; its step without them.

    A stage without traces has no place to show.
    """
    first = stage[:1]
    found = calls(facts, *(flow for flow in facts.flows_of("pp") if flow.rank in first))
    return found or steps(facts, first)


def gaps(facts: Facts, rank: int, *causes: str) -> tuple[Place, ...]:
    """The longest gaps of some causes in the first steady step that has some; else the step."""
    found = facts.run.rank(rank)
    for step in found.steady if found is not None else ():
        own = [
            Place(rank=rank, start_us=gap.start_us, end_us=gap.end_us)
            for gap in step.idle.longest
            if gap.cause in causes
        ]
        if own:
            return _longest(own)
    return steps(facts, [rank])


def _longest(places: list[Place]) -> tuple[Place, ...]:
    kept = sorted(places, key=lambda place: place.start_us - place.end_us)[:_MOST]
    return tuple(sorted(kept, key=lambda place: (place.rank, place.start_us)))


def kernels_of(facts: Facts, rank: int, *, most: int = 3) -> tuple[str, ...]:
    """The compute kernels that take most time on a rank."""
    found = facts.per_call_us.get(rank, {})
    return tuple(sorted(found, key=lambda name: -found[name][1])[:most])
