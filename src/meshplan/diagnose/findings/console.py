"""What logs and tables of metrics show by themselves: slow steps, and devices that are not busy."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median
from typing import cast

from meshplan.diagnose.findings.cures import from_trace
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.records import Action, Finding
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.read.logs.records import LogMeasures, LogStep
from meshplan.diagnose.read.metrics import GpuMetrics

__all__ = ["find_low_utilization", "find_slow_steps", "slow_steps_share"]

_BUSY = ("sm_active", "graphics_active", "utilization")
"""Figures that say for how much of the time a device works, the narrowest first."""


def find_slow_steps(facts: Facts) -> Outcome:
    """Look for steps of a log that take longer than the usual ones."""
    logs = cast("tuple[LogMeasures, ...]", facts.run.logs)
    if not logs:
        return ABSENT
    known = [(share, log) for log in logs if (share := slow_steps_share(log)) is not None]
    if not known:
        return Open("no_step_times")
    share, log = max(known, key=lambda item: item[0])
    if share < threshold("least_share"):
        return CLEAR
    slow, usual = _slow_steps(log)
    every = _period(slow)
    numbers: dict[str, float | int | str] = {
        "file": log.file,
        "num_slow": len(slow),
        "num_steps": len(_timed(log)),
        "slow_s": median(step.step_time_s or 0.0 for step in slow),
        "usual_s": usual,
        "first": slow[0].number,
    }
    return Finding(
        code="slow_steps",
        cost_share=share,
        numbers=numbers,
        action=Action(code="look_every", numbers={"every": every, "first": slow[0].number})
        if every
        else Action(code="look_at_slow_steps", numbers={"first": slow[0].number}),
        gain=from_trace(share),
        confidence="medium" if every else "low",
        reason="slow_steps_regular" if every else "slow_steps_irregular",
    )


def slow_steps_share(log: LogMeasures) -> float | None:
    """What slow steps take beyond the usual one, as a share of all steps.

    None where too few steps state their time.
    """
    timed = _timed(log)
    if len(timed) < threshold("fewest_steps"):
        return None
    slow, usual = _slow_steps(log)
    beyond = sum((step.step_time_s or 0.0) - usual for step in slow)
    return beyond / sum(step.step_time_s or 0.0 for step in timed)


def _timed(log: LogMeasures) -> list[LogStep]:
    return [step for step in log.steady if step.step_time_s]


def _slow_steps(log: LogMeasures) -> tuple[list[LogStep], float]:
    """Steps that are slower than the usual one by far, and the time of that one [s]."""
    timed = _timed(log)
    usual = median(step.step_time_s or 0.0 for step in timed)
    most = usual * (1.0 + measure_constant("warm_up_excess"))
    return [step for step in timed if (step.step_time_s or 0.0) > most], usual


def _period(slow: list[LogStep]) -> int:
    """After how many steps the next slow one comes; 0 where they come at no regular distance."""
    apart = {b.number - a.number for a, b in pairwise(slow)}
    return apart.pop() if len(slow) > 2 and len(apart) == 1 else 0


def find_low_utilization(facts: Facts) -> Outcome:
    """Look for devices that are sampled at work for less of the time than the guide asks for."""
    tables = cast("tuple[GpuMetrics, ...]", facts.run.metrics)
    if not tables or facts.ranks:
        return ABSENT  # traces show more
    name = next((n for n in _BUSY if any(table.mean(n) is not None for table in tables)), None)
    if name is None:
        return Open("no_utilization")
    busy = [
        (gpu.figures[name].mean, gpu.gpu, table.file)
        for table in tables
        for gpu in table.gpus
        if name in gpu.figures and gpu.figures[name].mean >= threshold("used_share")
    ]
    if not busy:
        return ABSENT
    lowest, gpu, file = min(busy)
    if lowest >= threshold("guide_busy_share"):
        return CLEAR
    share = max(0.0, 1.0 - fmean(value for value, _, _ in busy))
    return Finding(
        code="low_utilization",
        cost_share=share,
        numbers={
            "file": file,
            "figure": name,
            "gpu": gpu,
            "lowest": lowest,
            "highest": max(value for value, _, _ in busy),
            "mean": 1.0 - share,
        },
        action=Action(code="profile_ranks"),
        gain=from_trace(share),
        confidence="low",
        reason="utilization_sampled",
    )
