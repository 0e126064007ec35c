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
from meshplan.diagnose.read.metrics import BUSY, GpuMetrics
from meshplan.record import record

__all__ = ["find_low_utilization", "find_slow_steps", "slow_steps_share"]

_SPEEDS = ("tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "flop_per_s_per_gpu")
"""What a step is told by where its time is not: the work of all steps is the same."""


@record(kw_only=False)
class _Steps:
    """Steps of a log and how long each took, in seconds or beside each other."""

    steps: tuple[LogStep, ...]
    lengths: tuple[float, ...]
    in_seconds: bool

    @property
    def usual(self) -> float:
        """How long the usual step takes."""
        return median(self.lengths)

    @property
    def slow(self) -> list[tuple[LogStep, float]]:
        """Steps that are slower than the usual one by far."""
        most = self.usual * (1.0 + measure_constant("warm_up_excess"))
        both = zip(self.steps, self.lengths, strict=True)
        return [(step, length) for step, length in both if length > most]

    @property
    def share(self) -> float:
        """What slow steps take beyond the usual one, as a share of all steps."""
        return sum(length - self.usual for _, length in self.slow) / sum(self.lengths)


def find_slow_steps(facts: Facts) -> Outcome:
    """Look for steps of a log that take longer than the usual ones."""
    logs = cast("tuple[LogMeasures, ...]", facts.run.logs)
    if not logs:
        return ABSENT
    known = [(steps, log.file) for log in logs if (steps := _timed(log)) is not None]
    if not known:
        return Open("no_step_times")
    steps, file = max(known, key=lambda item: item[0].share)
    if steps.share < threshold("least_share"):
        return CLEAR
    slow = [step for step, _ in steps.slow]
    length = median(length for _, length in steps.slow)
    every, first = _period(slow), slow[0].number
    numbers: dict[str, float | int | str] = {
        "file": file,
        "num_slow": len(slow),
        "num_steps": len(steps.steps),
        "ratio": length / steps.usual,
        "first": first,
    }
    if steps.in_seconds:
        numbers |= {"slow_s": length, "usual_s": steps.usual}
    return Finding(
        code="slow_steps",
        form="" if steps.in_seconds else "by_rate",
        cost_share=steps.share,
        cost_s=steps.share * fmean(steps.lengths) if steps.in_seconds else None,
        numbers=numbers,
        action=Action(code="look_every", numbers={"every": every, "first": first})
        if every
        else Action(code="look_at_slow_steps", numbers={"first": first}),
        gain=from_trace(steps.share),
        confidence="medium" if every else "low",
        reason="slow_steps_regular" if every else "slow_steps_irregular",
    )


def slow_steps_share(log: LogMeasures) -> float | None:
    """What slow steps take beyond the usual one, as a share of all steps.

    None where too few steps state their time or their speed.
    """
    steps = _timed(log)
    return None if steps is None else steps.share


def _timed(log: LogMeasures) -> _Steps | None:
    """The steady steps by their times, else by their speed; None where too few state either."""
    for name in ("step_time_s", *_SPEEDS):
        known = [(step, value) for step in log.steady if (value := getattr(step, name))]
        if len(known) < threshold("fewest_steps"):
            continue
        in_seconds = name == "step_time_s"
        lengths = tuple(value if in_seconds else 1.0 / value for _, value in known)
        return _Steps(tuple(step for step, _ in known), lengths, in_seconds)
    return None


def _period(slow: list[LogStep]) -> int:
    """After how many steps the next slow one comes; 0 where they come at no regular distance."""
    apart = {b.number - a.number for a, b in pairwise(slow)}
    return apart.pop() if len(slow) > 2 and len(apart) == 1 else 0


def find_low_utilization(facts: Facts) -> Outcome:
    """Look for devices that are sampled at work for less of the time than the guide asks for."""
    tables = cast("tuple[GpuMetrics, ...]", facts.run.metrics)
    if not tables or facts.ranks:
        return ABSENT  # traces show more
    name = next((n for n in BUSY if any(table.mean(n) is not None for table in tables)), None)
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
    # the others wait for this one in collectives, which samples count as work
    share = 1.0 - lowest
    return Finding(
        code="low_utilization",
        cost_share=share,
        numbers={
            "file": file,
            "figure": name,
            "gpu": gpu,
            "lowest": lowest,
            "highest": max(value for value, _, _ in busy),
            "mean": fmean(value for value, _, _ in busy),
        },
        action=Action(code="profile_ranks"),
        gain=from_trace(share),
        confidence="low",
        reason="utilization_sampled",
    )
