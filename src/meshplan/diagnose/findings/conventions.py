"""Figures of a log that mean something else than they seem: a wrong peak, another convention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from meshplan.cost.flop import recompute_flop, step_flop
from meshplan.diagnose.findings import classes
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.records import Action, Finding
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.read.logs.records import LogMeasures
from meshplan.inputs.cluster import Device
from meshplan.inputs.load.presets import device_names, load_device
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import PlanGrid

__all__ = ["find_convention", "find_peak"]

_SPARSE = 2.0
"""NVIDIA prints tensor rates with 2:4 sparsity, twice the dense ones."""
_PRECISIONS = ("bf16", "fp16", "fp8")


def _logs(facts: Facts) -> tuple[LogMeasures, ...]:
    return cast("tuple[LogMeasures, ...]", facts.run.logs)


def _device(facts: Facts) -> Device | None:
    cluster, _ = classes.stated_or_usual(facts)
    return None if cluster is None else cluster.device


def _near(value: float, other: float) -> bool:
    return abs(value / other - 1.0) <= threshold("convention_tolerance")


def find_peak(facts: Facts) -> Finding | str | None:
    """Compare the peak that a log divides by with the dense peak of the device."""
    spoken = [
        (log, speed / mfu, speed)
        for log in _logs(facts)
        if (speed := log.steady_value("flop_per_s_per_gpu")) and (mfu := log.steady_value("mfu"))
    ]
    if not spoken:
        return None if not _logs(facts) else "no_mfu"
    device = _device(facts)
    if device is None:
        return "device_unknown"
    scenario = facts.context.scenario
    precision = scenario.job.precision if scenario is not None else "bf16"
    right = device.peak_flop_per_s.get(precision) or device.peak_flop_per_s.get("bf16")
    for log, used, speed in spoken:
        if right is None or _near(used, right):
            continue
        what, name = _peak_of(device, used, precision)
        return Finding(
            code="wrong_peak",
            cost_share=None,
            numbers={
                "file": log.file,
                "used_flop_per_s": used,
                "right_flop_per_s": right,
                "device": device.name,
                "what": what,
                "name": name,
                "printed_fraction": speed / used,
                "right_fraction": speed / right,
            },
            action=Action(code="right_peak", numbers={"right_flop_per_s": right}),
            gain=None,
            confidence="high" if what != "unknown" else "medium",
            reason="peak_recognised" if what != "unknown" else "peak_not_recognised",
        )
    return ""


def _peak_of(device: Device, used: float, precision: str) -> tuple[str, str]:
    """What a peak is: sparse, of another precision, of another device, or unknown."""
    own = device.peak_flop_per_s
    if precision in own and _near(used, _SPARSE * own[precision]):
        return "sparse", device.name
    for other, peak in own.items():
        if other != precision and _near(used, peak):
            return "precision", other
    for name in device_names():
        peaks = load_device(name).peak_flop_per_s
        if any(p in peaks and _near(used, peaks[p]) for p in _PRECISIONS[:2]):
            return "device", name
    return "unknown", ""


def find_convention(facts: Facts) -> Finding | str | None:
    """Compare the speed that a log prints with the FLOP of the model in its step time."""
    logs = [log for log in _logs(facts) if log.steady_value("flop_per_s_per_gpu")]
    if not logs:
        return None if not _logs(facts) else "no_speed_printed"
    scenario, plan = facts.context.scenario, facts.context.plan
    if scenario is None or plan is None:
        return "model_unknown"
    flop = step_flop(scenario)
    again = float(recompute_flop(scenario, PlanGrid.of([plan]))[0])
    for log in logs:
        printed, step_s = log.steady_value("flop_per_s_per_gpu"), _step_s(log, scenario)
        if printed is None or step_s is None:
            continue
        counted = printed * scenario.cluster.num_gpus * step_s
        if _near(counted, flop.full):
            continue
        what = next(
            (name for name, f in _conventions(flop.full, flop.causal, again) if _near(counted, f)),
            "",
        )
        if not what:
            return "convention_unknown"
        capacity = scenario.cluster.num_gpus * step_s
        return Finding(
            code="mfu_convention",
            cost_share=None,
            numbers={
                "file": log.file,
                "what": what,
                "printed_flop_per_s": printed,
                "right_flop_per_s": flop.full / capacity,
                "factor": counted / flop.full,
            },
            action=Action(code="compare_alike", numbers={"right_flop_per_s": flop.full / capacity}),
            gain=None,
            confidence="high",
            reason="flop_recounted",
        )
    return ""


def _step_s(log: LogMeasures, scenario: Scenario) -> float | None:
    """Step time as the log states it, or by its throughput and the batch of the job [s]."""
    stated, speed = log.steady_step_s(), log.steady_tokens_per_s_per_gpu()
    if stated is not None or not speed:
        return stated
    return scenario.job.tokens_per_step / (speed * scenario.cluster.num_gpus)


def _conventions(full: float, causal: float, again: float) -> Iterator[tuple[str, float]]:
    """Ways to count the FLOP of a step, besides attention in full and nothing twice."""
    yield "causal", causal
    if again > 0:
        yield "recompute", full + again
        yield "recompute_causal", causal + again * causal / full
    yield "four_passes", full * 4.0 / 3.0
