"""Figures of a log that mean something else than they seem: a wrong peak, another convention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from meshplan.cost.flop import recompute_flop, step_flop
from meshplan.diagnose.findings.cures import NO_TIME
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.precision import precision_of
from meshplan.diagnose.findings.records import Action, Finding
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.machine import device_named
from meshplan.diagnose.read.logs.records import LogMeasures
from meshplan.inputs.cluster import Device
from meshplan.inputs.load.presets import device_names, load_device
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import PlanGrid

__all__ = ["find_convention", "find_peak"]

_SPARSE = 2.0
"""NVIDIA prints tensor rates with 2:4 sparsity, twice the dense ones."""
_FULL = ("fp32", "tf32")
"""Formats of products that no 16-bit peak stands for."""
_PRECISIONS = ("bf16", "fp16", "fp8")


def _logs(facts: Facts) -> tuple[LogMeasures, ...]:
    return cast("tuple[LogMeasures, ...]", facts.run.logs)


def _device(facts: Facts) -> Device | None:
    cluster, _ = facts.machine
    if cluster is not None:
        return cluster.device
    named = _device_names(facts)
    return device_named(named.pop()) if len(named) == 1 else None


def _device_names(facts: Facts) -> set[str]:
    """Devices as the traces name them, else the logs."""
    return {r.device for r in facts.ranks if r.device} or {g.device for g in _logs(facts)} - {""}


def _near(value: float, other: float) -> bool:
    return abs(value / other - 1.0) <= threshold("convention_tolerance")


def find_peak(facts: Facts) -> Outcome:
    """Compare the peak that a log divides by with the dense peak of the device."""
    spoken = [
        (log, used, speed)
        for log in _logs(facts)
        if (used := log.implied_peak_flop_per_s())
        and (speed := log.steady_value("flop_per_s_per_gpu"))
    ]
    if not spoken:
        return _without_peak(facts)
    device = _device(facts)
    if device is None:
        return Open("device_not_listed" if _device_names(facts) else "device_unknown")
    precision = precision_of(facts)
    for log, used, speed in spoken:
        reading = _reading(device, used, precision)
        if isinstance(reading, Open):
            return reading
        if reading is None:
            continue
        return Finding(
            code="wrong_peak",
            cost_share=0.0,
            numbers={
                "file": log.file,
                "used_flop_per_s": used,
                "right_flop_per_s": reading.right,
                "device": device.name,
                "what": reading.what,
                "name": reading.name,
                "printed_fraction": speed / used,
                "right_fraction": speed / reading.right,
            },
            action=Action(code="right_peak", numbers={"right_flop_per_s": reading.right}),
            gain=NO_TIME,
            confidence="high" if reading.what != "unknown" and precision else "medium",
            reason="peak_recognised" if reading.what != "unknown" else "peak_not_recognised",
        )
    return CLEAR


def _without_peak(facts: Facts) -> Outcome:
    """Why no log says what it divides by."""
    if not _logs(facts):
        return ABSENT
    if any(log.steady_value("mfu") for log in _logs(facts)):
        return Open("mfu_alone")
    spoken = any(log.steady_value("flop_per_s_per_gpu") for log in _logs(facts))
    return Open("no_mfu") if spoken else Open("no_speed")


@record(kw_only=False)
class _Peak:
    """What a peak is: ``sparse``, of another ``precision`` or ``device``, or ``unknown``."""

    what: str
    name: str
    right: float


def _reading(device: Device, used: float, precision: str | None) -> _Peak | Open | None:
    """Read a peak; None when it is right, open when readings collide.

    Without the precision every dense peak of the device may be right, but for one that is the
    sparse rate of a wider precision too: 1979 TFLOP/s of an H100 are dense FP8 or sparse BF16.
    """
    own = device.peak_flop_per_s
    sparse = [p for p in _PRECISIONS if p in own and _near(used, _SPARSE * own[p])]
    dense = [p for p in own if _near(used, own[p])]
    if precision is None:
        if dense:
            return Open("precision_unknown") if sparse else None
        right = own[sparse[0]] if sparse else own.get("bf16") or own.get("fp16")
    elif precision in _FULL and precision not in own:
        return Open("peak_not_listed")
    else:
        right = own.get(precision) or own.get("bf16")
        sparse = [p for p in sparse if p == precision]
    if right is None or _near(used, right):
        return None
    if sparse:
        return _Peak("sparse", device.name, right)
    if dense:
        return _Peak("precision", dense[0], right)
    for name in device_names():
        peaks = load_device(name).peak_flop_per_s
        if any(p in peaks and _near(used, peaks[p]) for p in _PRECISIONS[:2]):
            return _Peak("device", name, right)
    return _Peak("unknown", "", right)


def find_convention(facts: Facts) -> Outcome:
    """Compare the speed that a log prints with the FLOP of the model in its step time."""
    logs = [log for log in _logs(facts) if log.steady_value("flop_per_s_per_gpu")]
    if not logs:
        return ABSENT if not _logs(facts) else Open("no_speed_printed")
    scenario, plan = facts.context.scenario, facts.context.plan
    if scenario is None or plan is None:
        return Open("model_unknown")
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
            return Open("convention_unknown")
        capacity = scenario.cluster.num_gpus * step_s
        return Finding(
            code="mfu_convention",
            cost_share=0.0,
            numbers={
                "file": log.file,
                "what": what,
                "printed_flop_per_s": printed,
                "right_flop_per_s": flop.full / capacity,
                "factor": counted / flop.full,
            },
            action=Action(code="compare_alike", numbers={"right_flop_per_s": flop.full / capacity}),
            gain=NO_TIME,
            confidence="high",
            reason="flop_recounted",
        )
    return CLEAR


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
