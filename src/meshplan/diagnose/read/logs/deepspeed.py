"""Lines of DeepSpeed: its engines, its timers and its FLOP profiler."""

from __future__ import annotations

import re

from meshplan.diagnose.read.logs.draft import Draft, find
from meshplan.units import GIB

__all__ = ["read_deepspeed"]

# the pipeline engine: "steps: 1 loss: .. iter time (s): 150.471 samples/sec: 6.805"
_PIPELINE = re.compile(r"\bsteps:\s*([0-9]+)\s+loss:.*?iter time \(s\):\s*([0-9.]+)")
_SAMPLES = re.compile(r"samples/sec:\s*([0-9.]+)")
# the throughput timer: "epoch=0/micro_step=34/global_step=34, RunningAvgSamplesPerSec=7.86, .."
_GLOBAL = re.compile(r"global_step=([0-9]+)")
_RUNNING = re.compile(r"RunningAvgSamplesPerSec=([0-9.]+)")
_CURRENT = re.compile(r"CurrSamplesPerSec=([0-9.]+)")
_OLD = re.compile(r"\b([0-9]+)/([0-9]+), SamplesPerSec=([0-9.]+)")
_ALLOCATED = re.compile(r"(?<!Max)MemAllocated=([0-9.]+)GB")
_PEAK = re.compile(r"MaxMemAllocated=([0-9.]+)GB")
_TIMERS = re.compile(r"rank=0 time \(ms\) \|(.*)")
_TIMER = re.compile(r"([a-z_]+):\s*([0-9.]+)")
_FLUSHES = re.compile(r"([0-9]+) pytorch allocator cache flushes since last step")

_PROFILE = {
    "num_gpus": re.compile(r"^world size:\s*([0-9]+)"),
    "dp": re.compile(r"^data parallel size:\s*([0-9]+)"),
    "tp": re.compile(r"^model parallel size:\s*([0-9]+)"),
    "micro_batch": re.compile(r"^batch size per GPU:\s*([0-9]+)"),
}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "M": 1e6, "K": 1e3, "G": 1e9, "B": 1e9, "T": 1e12}
_QUANTITY = r"\s*([0-9.]+)\s*(us|ms|s|[KMGBT])?"
_PROFILE_TOTALS = {
    "num_parameters": re.compile(r"^params per gpu:" + _QUANTITY, re.IGNORECASE),
    "forward_s": re.compile(r"^fwd latency:" + _QUANTITY),
    "backward_s": re.compile(r"^bwd latency:" + _QUANTITY),
    "optimizer_s": re.compile(r"^step latency:" + _QUANTITY),
    "step_s": re.compile(r"^iter latency:" + _QUANTITY),
    "samples_per_s": re.compile(r"^samples/second:" + _QUANTITY),
    "forward_flop_per_s": re.compile(r"^fwd FLOPS per GPU = .*?:" + _QUANTITY),
    "backward_flop_per_s": re.compile(r"^bwd FLOPS per GPU = .*?:" + _QUANTITY),
    "flop_per_s": re.compile(r"^fwd\+bwd FLOPS per GPU = .*?:" + _QUANTITY),
}


def read_deepspeed(line: str, draft: Draft) -> None:
    """Take what one line says."""
    step = _PIPELINE.search(line)
    if step is not None:
        values = {"step_time_s": float(step[2]), "samples_per_s": find(_SAMPLES, line)}
        draft.step("deepspeed", int(step[1]), values)
    if "SamplesPerSec=" in line:
        _read_timer(line, draft)
    timers = _TIMERS.search(line)
    if timers is not None and draft.last is not None and "microstep" not in line:
        for name, number in _TIMER.findall(timers[1]):
            time_s = float(number) / 1e3
            draft.last.phases_s[name] = (time_s, time_s)
    flushes = find(_FLUSHES, line)
    if flushes is not None:
        draft.num_flushes += int(flushes)
    if (
        "latency" in line
        or "per gpu" in line.lower()
        or " size" in line
        or "samples/second" in line
    ):
        _read_profile(line.strip(), draft)


def _read_timer(line: str, draft: Draft) -> None:
    """The throughput timer: the running mean, and the rate of the last steps."""
    step, old = _GLOBAL.search(line), _OLD.search(line)
    running, current = find(_RUNNING, line), find(_CURRENT, line)
    if old is not None:
        draft.step("deepspeed-timer", int(old[2]), {"samples_per_s": float(old[3])})
        running = float(old[3])
    elif step is not None:
        draft.step("deepspeed-timer", int(step[1]), {"samples_per_s": current or running})
    if running is not None:
        draft.totals["running_samples_per_s"] = running
    allocated, peak = find(_ALLOCATED, line), find(_PEAK, line)
    if allocated is not None:
        draft.totals["allocated_bytes"] = allocated * GIB
    if peak is not None:
        draft.allocated.append(peak * GIB)
        draft.num_memory_records += 1


def _read_profile(line: str, draft: Draft) -> None:
    """The summary of the FLOP profiler."""
    for name, pattern in _PROFILE.items():
        match = pattern.match(line)
        if match is not None:
            draft.settings[name] = int(match[1])
    for name, pattern in _PROFILE_TOTALS.items():
        match = pattern.match(line)
        if match is not None:
            draft.totals[name] = float(match[1]) * _UNITS.get(match[2] or "s", 1.0)
