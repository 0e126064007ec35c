"""Look for every kind of cause, and say what was looked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from meshplan.diagnose.findings import (
    console,
    conventions,
    copies,
    devices,
    experts,
    gradients,
    host,
    links,
    pipeline,
    recompute,
    tensor_parallel,
)
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import Absent, Clear, Open, Outcome
from meshplan.diagnose.findings.records import Check, Context, Diagnosis, Finding
from meshplan.diagnose.records import RunMeasures

__all__ = ["KINDS", "diagnose"]

KINDS: Mapping[str, Callable[[Facts], Outcome]] = {
    "tp_across_nodes": tensor_parallel.find,
    "stages_unbalanced": pipeline.find_unbalanced,
    "few_micro_batches": pipeline.find_few_micro_batches,
    "gradients_exposed": gradients.find_exposed,
    "sharding_over_slow_network": gradients.find_sharding,
    "slow_nic": links.find_network,
    "slow_nvlink": links.find_scale_up,
    "straggler": devices.find,
    "expert_imbalance": experts.find,
    "host_bound": host.find_launches,
    "data_loading": host.find_data,
    "memory_pressure": host.find_allocator,
    "copies_exposed": copies.find,
    "device_idle": host.find_idle,
    "recompute_not_needed": recompute.find,
    "exposed_unknown": links.find_unknown,
    "wrong_peak": conventions.find_peak,
    "mfu_convention": conventions.find_convention,
    "slow_steps": console.find_slow_steps,
    "low_utilization": console.find_low_utilization,
}
"""Causes by code, each with what looks for it."""


def diagnose(run: RunMeasures, context: Context | None = None) -> Diagnosis:
    """Look for every kind of cause.

    Args:
        run: what was measured.
        context: what is known of the run besides.

    Returns:
        What was found, the costliest first, and the state of every check.
    """
    facts = Facts(run, context or Context())
    findings: list[Finding] = []
    checks: list[Check] = []
    for code, find in KINDS.items():
        outcome = find(facts)
        if isinstance(outcome, Finding):
            findings.append(_timed(outcome, facts))
        checks.append(_check(code, outcome))
    doubt = _doubt(run)
    if doubt:
        findings = [replace(found, confidence="low", reason=doubt) for found in findings]
    findings.sort(key=lambda found: -(found.cost_share or 0.0))
    return Diagnosis(findings=tuple(findings), checks=tuple(checks))


def _timed(found: Finding, facts: Facts) -> Finding:
    """The finding with its cost in seconds, where traces or the finding itself know the step."""
    if found.cost_s is not None or found.cost_share is None or found.code in _NOT_OF_TRACES:
        return found
    return replace(found, cost_s=found.cost_share * facts.step_us / 1e6) if facts.ranks else found


_NOT_OF_TRACES = (
    "slow_steps",
    "memory_flushes",
    "low_utilization",
    "gpu_slow_clock",
    "gpu_throttled",
)
"""Causes whose cost is a share of something else than the steps of the traces."""


def _check(code: str, outcome: Outcome) -> Check:
    match outcome:
        case Finding():
            return Check(code=code, state="found")
        case Open(reason):
            return Check(code=code, state="open", reason=reason)
        case Absent():
            return Check(code=code, state="absent")
        case Clear():
            return Check(code=code, state="clear")


def _doubt(run: RunMeasures) -> str:
    """Why nothing that these files show is sure: they are not the whole of one run."""
    codes = {note.code for note in run.notes}
    return next((_DOUBTS[code] for code in _DOUBTS if code in codes), "")


_DOUBTS = {
    "truncated": "file_cut_off",
    "mixed_runs": "files_of_several_runs",
    "mixed_devices": "files_of_several_runs",
}
