"""A device that is slower than its peers, and all that wait for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import cast

from meshplan.diagnose.findings import experts, pipeline, places
from meshplan.diagnose.findings.cures import from_trace
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.flows import quantile
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.records import Action, Finding
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.read.metrics import GpuMetrics, GpuSeries
from meshplan.diagnose.records import RunMeasures

__all__ = ["find", "sampled_utilization"]

_CLOCK = "sm_clock_hz"
_FAULTS = ("thermal", "hardware_thermal", "hardware_slowdown", "power_brake")
"""Reasons of lowered clocks that are no setting and no power limit that all GPUs share."""


def find(facts: Facts) -> Outcome:
    """Look for a device that is slower than its peers, by traces, else by metrics."""
    by_traces = _by_traces(facts) if facts.ranks else ABSENT
    if isinstance(by_traces, Finding):
        return by_traces
    by_metrics = _by_metrics(facts)
    return by_metrics if isinstance(by_metrics, Finding) or not facts.ranks else by_traces


def _by_traces(facts: Facts) -> Outcome:
    """Look for ranks on which one and the same kernel takes longer than on the others.

    More work shows as more calls or as some slower kernels; a slow device is slow in all of them.
    """
    if len(facts.ranks) < 2:
        return Open("one_rank")
    slow = {rank: ratio for rank, ratio in facts.slowdown.items() if ratio >= facts.slow_from}
    more = {} if slow else _more_work(facts)
    slow = slow or more
    if not slow:
        return CLEAR
    # with these devices as fast as the others the pace would be that of the next-longest rank
    lost = _pace_us(facts, {}) - _pace_us(facts, slow)
    share = facts.share(min(lost, _ahead_us(facts, slow)))
    if share < threshold("least_share"):
        return CLEAR
    worst = max(slow, key=lambda rank: slow[rank])
    by_excess = sorted(facts.ratios.get(worst, {}).items(), key=lambda item: -item[1][1])
    kernels = tuple(name for name, _ in by_excess[:3])
    where = places.steps(facts, sorted(slow, key=lambda rank: -slow[rank]))
    return Finding(
        code="straggler",
        form="more_work" if more else "",
        cost_share=share,
        numbers={
            "rank": worst,
            "ratio": slow[worst],
            "slower_fraction": slow[worst] - 1.0,
            "num_slow": len(slow),
            "num_ranks": len(facts.ranks),
            "node": worst // facts.gpus_per_node if facts.gpus_per_node else -1,
        },
        ranks=tuple(sorted(slow)),
        kernels=kernels,
        places=where,
        action=Action(code="even_work" if more else "replace_device", numbers={"rank": worst}),
        gain=from_trace(share),
        confidence="high" if len(facts.ranks) > 2 and not more else "medium",
        reason=_reason(facts, more),
    )


def sampled_utilization(run: RunMeasures) -> tuple[float, ...]:
    """Mean utilisation of each GPU that takes part, by metrics alone; traces show more."""
    if run.ranks:
        return ()
    tables = cast("tuple[GpuMetrics, ...]", run.metrics)
    figures = (one.figures.get("utilization") for table in tables for one in table.gpus)
    means = (min(figure.mean, 1.0) for figure in figures if figure is not None)
    return tuple(mean for mean in means if mean >= threshold("used_share"))


def _pace_us(facts: Facts, mended: Mapping[int, float]) -> float:
    """Compute time of a step at the pace of the slowest, with some devices sped up [us].

    Where experts get uneven work, a group waits before and after them: for the slowest of each
    part.
    """
    times = {r: us / mended.get(r, 1.0) for r, us in facts.compute_us.items()}
    routed = {r: us / mended.get(r, 1.0) for r, us in experts.routed_us(facts).items()}
    if facts.num_stages > 1 or not any(routed.values()):
        return pipeline.slowest_us(facts, times)
    return max(us - routed[r] for r, us in times.items()) + max(routed.values())


def _ahead_us(facts: Facts, slow: Mapping[int, float]) -> float:
    """By how much the slow ranks are busier than the others, traffic that shows included [us].

    What a slow device computes hides traffic that would show on a fast one. Not known in a
    pipeline, which hides it by the other stages too, or where waits are not told from traffic.
    """
    told = all(flow.traffic.wait_basis == "peers" for flow in facts.flows)
    uneven = any(experts.routed_us(facts).values())
    if facts.num_stages > 1 or uneven or not told or not facts.flows:
        return inf
    busy = dict(facts.compute_us)
    for flow in facts.flows:
        busy[flow.rank] += facts.shown_us(flow)
    others = [us for rank, us in busy.items() if rank not in slow]
    return max(busy.values()) - max(others) if others else inf


def _by_metrics(facts: Facts) -> Outcome:
    """Look for a GPU whose clocks are lowered, or low, beside those of the others."""
    tables = cast("tuple[GpuMetrics, ...]", facts.run.metrics)
    series = [(table.file, one) for table in tables for one in table.gpus]
    found = [outcome for outcome in (_throttled(series), _slow_clock(series)) if outcome]
    return next((one for one in found if one is not CLEAR), found[0] if found else ABSENT)


def _throttled(series: Sequence[tuple[str, GpuSeries]]) -> Outcome | None:
    """Look for a GPU whose clocks are lowered by more than what power allows to all."""
    if not any(one.throttled for _, one in series):
        return None
    share, reason, gpu, file, own = max(
        (one.throttled.get(reason, 0.0), reason, one.gpu, file, i)
        for i, (file, one) in enumerate(series)
        for reason in _FAULTS
    )
    others = [one.throttled.get(reason, 0.0) for i, (_, one) in enumerate(series) if i != own]
    usual = median(others) if others else 0.0
    if share - usual < threshold("throttle_share"):
        return CLEAR
    lost = _clock_share(series, own)
    return Finding(
        code="gpu_throttled",
        cost_share=lost,
        cost_reason="no_clocks" if lost is None else "",
        numbers={
            "gpu": gpu,
            "share": share,
            "why": reason.replace("_", " "),
            "usual": usual,
            "file": file,
        },
        action=Action(code="cool_device", numbers={"gpu": gpu}),
        gain=None if lost is None else from_trace(lost),
        confidence="medium",
        reason="clocks_sampled",
    )


def _slow_clock(series: Sequence[tuple[str, GpuSeries]]) -> Outcome | None:
    """Look for a GPU at work whose clock is below that of the others, whatever the reason."""
    busy = threshold("busy_share")
    at_work = [
        (one.figures[_CLOCK].median, one.gpu, file)
        for file, one in series
        if _CLOCK in one.figures
        and ("utilization" not in one.figures or one.figures["utilization"].median >= busy)
    ]
    if len(at_work) < 2:
        return None
    (clock, gpu, file), *others = sorted(at_work)
    usual = median(hz for hz, _, _ in others)
    if clock >= threshold("clock_share") * usual:
        return CLEAR
    return Finding(
        code="gpu_slow_clock",
        cost_share=1.0 - clock / usual,
        numbers={
            "gpu": gpu,
            "clock_mhz": clock / 1e6,
            "usual_mhz": usual / 1e6,
            "ratio": clock / usual,
            "file": file,
        },
        action=Action(code="cool_device", numbers={"gpu": gpu}),
        gain=from_trace(1.0 - clock / usual),
        confidence="medium",
        reason="clocks_sampled",
    )


def _clock_share(series: Sequence[tuple[str, GpuSeries]], place: int) -> float | None:
    """What a step is longer when all wait for a GPU with its clocks; None where they are not known.

    At most: work that memory bounds does not slow down with the clocks of the multiprocessors.

    Args:
        series: GPUs of all tables; those of several machines may have the same names.
        place: which of them is waited for.
    """
    figures = {i: one.figures[_CLOCK] for i, (_, one) in enumerate(series) if _CLOCK in one.figures}
    clocks = {i: figure.mean for i, figure in figures.items()}
    own = clocks.pop(place, None)
    return max(0.0, 1.0 - own / median(clocks.values())) if own is not None and clocks else None


def _reason(facts: Facts, more: Mapping[int, float]) -> str:
    if more:
        return "more_work"
    return "same_kernels_slower" if len(facts.ranks) > 2 else "two_ranks_only"


def _more_work(facts: Facts) -> dict[int, float]:
    """Ranks that compute longer than ranks of the same stage, which should do the same work.

    Where tokens are routed to experts that is a matter of the router, not of the rank.
    """
    if any(True for _ in facts.flows_of("ep")) or facts.stages_hidden:
        return {}
    found = {}
    for stage in facts.stages:
        work = {rank: facts.work_us[rank] for rank in stage if rank in facts.work_us}
        if len(work) < 2:
            continue
        usual = quantile(work.values(), threshold("straggler_quantile"))
        for rank, us in work.items():
            if usual > 0 and us / usual >= facts.slow_from:
                found[rank] = us / usual
    return found
