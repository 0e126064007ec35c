"""A device that waits for its host: launches, data, or the allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import cast

from meshplan.diagnose.findings import pipeline, places
from meshplan.diagnose.findings.console import slow_steps_share
from meshplan.diagnose.findings.cures import change, from_trace, roomier
from meshplan.diagnose.findings.device_bound import device_bound_step_us
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.records import Action, Confidence, Finding
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.names import host_kind
from meshplan.diagnose.read.logs.records import LogMeasures
from meshplan.diagnose.records import RankMeasures, StepMeasures

__all__ = ["find_allocator", "find_data", "find_idle", "find_launches"]


def _launches_known(facts: Facts) -> bool:
    return any(step.idle.num_launched for r in facts.ranks for step in r.steady)


def find_launches(facts: Facts) -> Outcome:
    """Look for devices whose queue runs dry because the host launches too slowly."""
    if not facts.ranks:
        return ABSENT
    if not _launches_known(facts):
        return Open("no_launches")
    by_rank = facts.last_to_wait("host_us")
    worst = max(by_rank, key=lambda rank: by_rank[rank])
    waiting = sum(by_rank.values()) - _allocating_us(facts)
    if facts.share(waiting) < threshold("host_share"):
        return CLEAR
    played = _without_waits_us(facts) if facts.host_paces else 0.0
    if any(True for _ in facts.flows_of("unknown")):
        played = max(played, waiting)  # what waits for such traffic is not known
    share = facts.share(played if played > 0 else waiting)
    own = facts.run.rank(worst)
    steps = own.steady if own is not None else ()
    long_share, longest_us = _long_gaps(steps, allocating=facts.steps_marked)
    away = long_share >= threshold("long_gaps_share")
    more = share - facts.share(waiting) >= threshold("least_share")
    certain = _certain(facts)
    return Finding(
        code="host_bound",
        form="away" if away else "",
        details=("late_traffic",) if more else (),
        cost_share=share,
        numbers={
            "waiting_fraction": facts.share(waiting),
            **_of_kernels(facts, steps),
            "longest_s": longest_us / 1e6,
        },
        ranks=tuple(rank for rank, us in by_rank.items() if us > 0),
        kernels=(),
        places=places.gaps(facts, worst, "host"),
        action=_less_late(facts, away=away),
        gain=from_trace(share),
        confidence=certain[0],
        reason=certain[1],
    )


def _of_kernels(facts: Facts, steps: Sequence[StepMeasures]) -> dict[str, float]:
    """How many kernels there are in a step, how long they are, and how many are launched late."""
    num = fmean(step.time.num_compute_kernels for step in steps) if steps else 0.0
    compute_us = fmean(step.time.compute_us for step in steps) if steps else 0.0
    launched = fmean(step.idle.num_launched for step in steps) if steps else 0.0
    return {
        "late_fraction": median([s.idle.late_share or 0.0 for s in steps]) if steps else 0.0,
        "num_kernels": num,
        "kernel_s": compute_us / num / 1e6 if num else 0.0,
        "per_kernel_s": facts.step_us / launched / 1e6 if launched else 0.0,
    }


def _certain(facts: Facts) -> tuple[Confidence, str]:
    """How sure it is that the host is slow, and why."""
    if not facts.steps_marked:
        return "low", "no_step_marks"
    if any(rank.with_stacks for rank in facts.ranks):
        return "medium", "stacks_recorded"
    return "high", "launches_measured"


def _allocating_us(facts: Facts) -> float:
    """Wait for calls of the allocator, a cause of its own where steps are marked [us].

    Where they are not, the calls that set a run up are among them, and it is the host that waits.
    """
    return sum(facts.last_to_wait("allocate_us").values()) if facts.steps_marked else 0.0


def _long_gaps(steps: Sequence[StepMeasures], *, allocating: bool) -> tuple[float, float]:
    """Share of the wait for the host that few gaps hold, and the longest of them [us].

    Args:
        steps: of one rank.
        allocating: calls of the allocator are a cause of their own.
    """
    gaps = [gap for step in steps for gap in step.idle.longest]
    kept = [gap.end_us - gap.start_us for gap in gaps if gap.cause in ("host", "allocate")]
    calls = sum(step.idle.allocate_us for step in steps) if allocating else 0.0
    waited = sum(step.idle.host_us for step in steps) - calls
    longest = [
        gap.end_us - gap.start_us
        for gap in gaps
        if gap.cause == "host" or (gap.cause == "allocate" and not allocating)
    ]
    return ((sum(kept) - calls) / waited if waited > 0 else 0.0), max(longest, default=0.0)


def _less_late(facts: Facts, *, away: bool) -> Action:
    """Fewer launches; where the host is at something else, what that is."""
    if away:
        return Action(code="look_at_host" if facts.steps_marked else "mark_steps")
    return Action(
        code="fewer_launches",
        changes=(change(facts, "cuda_graphs", before="", after="on"),),
    )


def find_idle(facts: Facts) -> Outcome:
    """Look for time without work that neither the host nor data, nor stages that wait, explain.

    On the rank that has least of it, since others may wait for that one.
    """
    if not facts.ranks:
        return ABSENT
    if not _launches_known(facts):
        return Open("no_launches")
    if facts.num_stages > 1 or facts.stages_hidden:
        return ABSENT  # it is the bubble, which has causes of its own
    shares = {r.rank: facts.share(_unexplained_us(r)) for r in facts.ranks}
    best = min(shares, key=lambda rank: shares[rank])
    own = next(r for r in facts.ranks if r.rank == best)
    cost = facts.share(_idle_cost_us(facts, own))
    if cost < threshold("unexplained_share"):
        return CLEAR
    found = places.gaps(facts, best, "device", "unknown")
    inside = _of_steps(own, "graph_us") > _unexplained_us(own) / 2
    return Finding(
        code="device_idle",
        cost_share=cost,
        numbers={
            "idle_fraction": facts.share(fmean(step.time.idle_us for step in own.steady)),
            "unexplained_fraction": shares[best],
            "most_fraction": max(shares.values()),
            **{f"{n}_fraction": facts.share(_of_steps(own, f"{n}_us")) for n in _PARTS},
            "longest_s": max((p.end_us - p.start_us for p in found), default=0.0) / 1e6,
            "num_ranks": len(facts.ranks),
        },
        details=_idle_details(facts, own, shares=shares, cost=cost),
        ranks=tuple(sorted(shares)),
        places=found,
        action=Action(code="record_graphs" if inside else "record_waits"),
        gain=from_trace(cost),
        confidence="low",
        reason="gaps_inside_graph" if inside else "waits_not_recorded",
    )


_PARTS = ("host", "data", "held", "graph", "synced")
"""Parts of the time without work that are told apart."""


def _of_steps(rank: RankMeasures, name: str) -> float:
    """Mean over the steady steps of one attribute of their ``idle``."""
    return fmean(float(getattr(step.idle, name)) for step in rank.steady)


def _idle_details(
    facts: Facts, rank: RankMeasures, *, shares: Mapping[int, float], cost: float
) -> tuple[str, ...]:
    """What else is to be said of unexplained time: each part that is worth a word.

    Args:
        facts: of the run.
        rank: the rank that has least of it.
        shares: unexplained time of each rank.
        cost: what it costs, as a share too.
    """
    least, own = threshold("least_share"), shares[rank.rank]
    said = [f"idle_{n}" for n in _PARTS if facts.share(_of_steps(rank, f"{n}_us")) >= least]
    said += ["idle_most"] if max(shares.values()) - own >= least else []
    said += ["idle_gaps"] if cost > own else []
    return (*said, "idle_longest")


def _unexplained_us(rank: RankMeasures) -> float:
    """Time per step without work that was launched in time, or whose launch is unknown [us]."""
    return fmean(
        step.idle.device_us + step.idle.unknown_us + step.idle.held_us for step in rank.steady
    )


def _idle_cost_us(facts: Facts, rank: RankMeasures) -> float:
    """What a step is shorter without the unexplained time of a rank [us].

    Less than that time where traffic runs meanwhile, which would show instead; more where compute
    did not wait for the calls that end in the same gaps either.
    """
    known = _device_bound_us(facts)
    if known is None or facts.host_paces:
        return _unexplained_us(rank)
    copies = max(fmean(step.time.copy_shown_us for step in rank.steady) for rank in facts.ranks)
    waits = sum(sum(facts.last_to_wait(n).values()) for n in ("host_us", "data_us"))
    most = _unexplained_us(rank) + _of_steps(rank, "held_most_us") - _of_steps(rank, "held_us")
    return min(most, max(0.0, facts.step_us - known - copies - waits))


def _device_bound_us(facts: Facts) -> float | None:
    """The step with hosts that are never late, of the rank that is busy longest [us].

    None where that cannot be played on every rank.
    """
    axes = facts.axis_of_channel
    steps = [device_bound_step_us(rank, axes) for rank in facts.ranks]
    known = [us for us in steps if us is not None]
    return max(known) if known and len(known) == len(steps) else None


def _without_waits_us(facts: Facts) -> float:
    """What a step is shorter with a host that is never late [us]; 0 where that cannot be played.

    Traffic that a late launch shows would hide, and stages that wait for the hosts of others would
    not. In a pipeline the step is that of its schedule, else that of the rank that is busy longest.
    """
    other = sum(facts.last_to_wait("data_us").values())
    other += _allocating_us(facts)
    if facts.num_stages > 1:
        played = pipeline.scheduled_us(facts)
        return 0.0 if played is None else facts.step_us - played - other
    known = _device_bound_us(facts)
    if known is None:
        return 0.0
    return facts.step_us - known - other - min(_unexplained_us(rank) for rank in facts.ranks)


def find_data(facts: Facts) -> Outcome:
    """Look for devices that wait while the host loads a batch."""
    if not facts.ranks:
        return _data_by_log(facts)
    waiting = facts.last_to_wait("data_us")
    if facts.num_stages > 1:
        # later stages load while the pipeline fills
        first = facts.last_to_wait("data_us", among=facts.stages[0])
        waiting = first if sum(first.values()) > 0 else waiting
    return _waits(
        facts,
        waiting,
        code="data_loading",
        cause="data",
        least=threshold("data_share"),
        action=Action(
            code="faster_data",
            changes=(change(facts, "data_workers", before="", after="+"),),
        ),
        reason="data_annotated",
    )


def _data_by_log(facts: Facts) -> Outcome:
    """Look into the timers of logs for time in the data loader."""
    found = [
        (seconds / step_s, seconds, name, log.file)
        for log in cast("tuple[LogMeasures, ...]", facts.run.logs)
        if (step_s := log.steady_step_s())
        for name, seconds in log.timers_s().items()
        if host_kind(name) == "data"
    ]
    if not found:
        return ABSENT
    share, seconds, timer, file = max(found)
    if share < threshold("data_share"):
        return CLEAR
    return Finding(
        code="data_loading",
        form="by_log",
        cost_share=share,
        cost_s=seconds,
        numbers={"waiting_fraction": share, "waiting_s": seconds, "timer": timer, "file": file},
        action=Action(code="faster_data"),
        gain=from_trace(share),
        confidence="medium",
        reason="log_timers",
    )


def find_allocator(facts: Facts) -> Outcome:
    """Look for calls of the driver's allocator in steady steps: retries when memory is short."""
    flushed = _flushes(facts)
    if flushed is not None:
        return flushed
    if not facts.ranks:
        return ABSENT
    if not facts.steps_marked:
        return Open("no_step_marks")
    waiting = facts.last_to_wait("allocate_us")
    if sum(waiting.values()) > 0 and facts.num_stages > 1:
        # each of the other stages can have stopped for as long once more
        most = (facts.num_stages - 1) * sum(waiting.values())
        worst = max(waiting, key=lambda rank: waiting[rank])
        waiting[worst] += min(pipeline.beyond_bubble_us(facts), most)
    return _waits(
        facts,
        waiting,
        code="memory_pressure",
        cause="allocate",
        least=threshold("allocator_share"),
        action=_less_memory(facts),
        reason="allocator_calls",
    )


def _less_memory(facts: Facts) -> Action:
    """Recompute, or smaller micro-batches: whichever the cost model expects to cost least time."""
    if facts.context.plan is not None:
        return Action(code="less_memory", plan=roomier(facts.context))
    again = any(p.name == "recompute" for r in facts.ranks for s in r.steady for p in s.phases)
    changed = () if again else (change(facts, "recompute", before="", after="selective"),)
    return Action(code="less_memory", changes=changed)


def _flushes(facts: Facts) -> Finding | None:
    """Look into logs for an allocator that gave back its cache to go on.

    It costs at most what the slow steps of the log take longer than the usual ones.
    """
    logs = cast("tuple[LogMeasures, ...]", facts.run.logs)
    worst = max(logs, key=lambda log: log.num_allocator_flushes, default=None)
    if worst is None or not worst.num_allocator_flushes:
        return None
    share = slow_steps_share(worst)
    return Finding(
        code="memory_flushes",
        cost_share=share,
        cost_reason="no_step_times" if share is None else "",
        numbers={"num_flushes": worst.num_allocator_flushes, "file": worst.file},
        action=Action(code="less_memory"),
        gain=None if share is None else from_trace(share),
        confidence="high",
        reason="log_counts",
    )


def _waits(
    facts: Facts,
    waiting: Mapping[int, float],
    *,
    code: str,
    cause: str,
    least: float,
    action: Action,
    reason: str,
) -> Outcome:
    total = sum(waiting.values())
    worst = max(waiting, key=lambda rank: waiting[rank])
    share = facts.share(total)
    if share < least:
        return CLEAR
    ranks = tuple(rank for rank, us in waiting.items() if us > 0)
    return Finding(
        code=code,
        cost_share=share,
        numbers={
            "waiting_fraction": share,
            "waiting_s": total / 1e6,
            "num_ranks": len(ranks),
            "rank": worst,
        },
        ranks=ranks,
        places=places.gaps(facts, worst, cause),
        action=action,
        gain=from_trace(share),
        confidence="high",
        reason=reason,
    )
