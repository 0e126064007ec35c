"""Lines of DeepSpeed: its engines, its timers and its FLOP profiler."""

from __future__ import annotations

import re

from meshplan.diagnose.read.logs.draft import Draft, find, pattern
from meshplan.units import GIB

__all__ = ["read_deepspeed"]

# the pipeline engine: "steps: 1 loss: .. iter time (s): 150.471 samples/sec: 6.805"
_PIPELINE = pattern(r"\bsteps:\s*<count>\s+loss:.*?iter time \(s\):\s*<real>")
_SAMPLES = pattern(r"samples/sec:\s*<real>")
# the throughput timer: "epoch=0/micro_step=34/global_step=34, RunningAvgSamplesPerSec=7.86, .."
_GLOBAL = pattern(r"global_step=<count>")
_RUNNING = pattern(r"RunningAvgSamplesPerSec=<real>")
_CURRENT = pattern(r"CurrSamplesPerSec=<real>")
_OLD = pattern(r"\b<count>/<count>, SamplesPerSec=<real>")
_ALLOCATED = pattern(r"(?<!Max)MemAllocated=<real>GB")
_PEAK = pattern(r"MaxMemAllocated=<real>GB")
_TIMERS = pattern(r"rank=0 time \(ms\) \|(.*)")
_TIMER = pattern(r"([a-z_]+):\s*<real>")
_FLUSHES = pattern(r"<count> pytorch allocator cache flushes since last step")

_PROFILE = {
    "num_gpus": pattern(r"^world size:\s*<count>"),
    "dp": pattern(r"^data parallel size:\s*<count>"),
    "tp": pattern(r"^model parallel size:\s*<count>"),
    "micro_batch": pattern(r"^batch size per GPU:\s*<count>"),
}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "M": 1e6, "K": 1e3, "G": 1e9, "B": 1e9, "T": 1e12}
_QUANTITY = r"\s*<real>\s*(us|ms|s|[KMGBT])?"
_PROFILE_TOTALS = {
    "num_parameters": pattern(r"^params per gpu:" + _QUANTITY, re.IGNORECASE),
    "forward_s": pattern(r"^fwd latency:" + _QUANTITY),
    "backward_s": pattern(r"^bwd latency:" + _QUANTITY),
    "optimizer_s": pattern(r"^step latency:" + _QUANTITY),
    "step_s": pattern(r"^iter latency:" + _QUANTITY),
    "samples_per_s": pattern(r"^samples/second:" + _QUANTITY),
    "forward_flop_per_s": pattern(r"^fwd FLOPS per GPU = .*?:" + _QUANTITY),
    "backward_flop_per_s": pattern(r"^bwd FLOPS per GPU = .*?:" + _QUANTITY),
    "flop_per_s": pattern(r"^fwd\+bwd FLOPS per GPU = .*?:" + _QUANTITY),
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
    for name, wanted in _PROFILE.items():
        match = wanted.match(line)
        if match is not None:
            draft.settings[name] = int(match[1])
    for name, wanted in _PROFILE_TOTALS.items():
        match = wanted.match(line)
        if match is not None:
            draft.totals[name] = float(match[1]) * _UNITS.get(match[2] or "s", 1.0)
