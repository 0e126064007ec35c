"""Lines of torchtitan, nanotron, picotron, MaxText and Composer."""

from __future__ import annotations

import re

from meshplan.diagnose.read.logs.draft import Draft, find, pattern
from meshplan.units import GIB

__all__ = ["read_composer", "read_maxtext", "read_nanotron", "read_picotron", "read_torchtitan"]

# torchtitan: "step: 10  loss: ..  memory: 30.89GiB(32.51%)  tps: 6,344  tflops: ..  mfu: 37.15%"
_TITAN_STEP = pattern(r"\bstep:\s*<count>\b")
_TITAN_TPS = pattern(r"\btps:\s*([0-9][0-9,.]*)")
_TITAN_FLOP = pattern(r"\btflops:\s*([0-9][0-9,.]*)")
_TITAN_MFU = pattern(r"\bmfu:\s*<real>%")
_TITAN_MEMORY = pattern(r"\bmemory:\s*<real>\s*GiB\(<real>%\)")
_LOSS = pattern(r"\bloss:\s*<real>", re.IGNORECASE)
# "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.18GiB memory", with "(0)" in older versions, and
# "Peak FLOPS used for computing MFU: 9.890e+14", before training starts
_TITAN_DEVICE = pattern(
    r"\bCUDA capacity:\s*(\S.{0,80}?)(?: \(<count>\))? with <real>\s*GiB memory"
)
_TITAN_PEAK = pattern(r"\bPeak FLOPS used for computing MFU:\s*<float>")
_RETRIES = pattern(r"<count> CUDA memory allocation retries")


def read_torchtitan(line: str, draft: Draft) -> None:
    """Take what one line of torchtitan says."""
    retries = find(_RETRIES, line)
    if retries is not None:
        draft.num_flushes = max(draft.num_flushes, int(retries))
    step, tps = _TITAN_STEP.search(line), find(_TITAN_TPS, line)
    if step is None:
        _read_titan_start(line, draft)
    if step is None or tps is None:
        return
    values: dict[str, float | None] = {"tokens_per_s_per_gpu": tps, "loss": find(_LOSS, line)}
    speed, mfu = find(_TITAN_FLOP, line), find(_TITAN_MFU, line)
    values["flop_per_s_per_gpu"] = None if speed is None else speed * 1e12
    values["mfu"] = None if mfu is None else mfu / 100
    memory = _TITAN_MEMORY.search(line)
    if memory is not None:
        values["memory_bytes"] = float(memory[1]) * GIB
        values["memory_share"] = float(memory[2]) / 100
        first = int(step[1]) not in draft.steps.get("torchtitan", {})
        if first:
            draft.reserved.append(float(memory[1]) * GIB)
            draft.num_memory_records += 1
        if first and float(memory[2]):
            draft.capacity.append(float(memory[1]) * GIB / float(memory[2]) * 100)
    draft.step("torchtitan", int(step[1]), values)


def _read_titan_start(line: str, draft: Draft) -> None:
    device, peak = _TITAN_DEVICE.search(line), find(_TITAN_PEAK, line)
    if device is not None:
        draft.device = draft.device or device[1]
        draft.capacity.append(float(device[3]) * GIB)
    if peak:
        draft.peak_flop_per_s = draft.peak_flop_per_s or peak


# nanotron: "iteration: 3 / 100 | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: .."
_NANO_STEP = pattern(r"\biteration:\s*<count>\s*/")
_NANO_TIME = pattern(r"elapsed_time_per_iteration_ms:\s*<number>")
_NANO_TOKENS = pattern(r"tokens_per_sec:\s*<number>")
_NANO_TPS = pattern(r"tokens_per_sec_per_gpu:\s*<number>")
_NANO_BATCH = pattern(r"global_batch_size:\s*<number>")
_NANO_FLOP = pattern(r"model_tflops_per_gpu:\s*<number>")
_NANO_LOSS = pattern(r"lm_loss:\s*<number>")
_NANO_RESERVED = pattern(r"cuda_max_memory_reserved:\s*<number>")
_NANO_ALLOCATED = pattern(r"cuda_max_memory_allocated:\s*<number>")


def read_nanotron(line: str, draft: Draft) -> None:
    """Take what one line of nanotron says; numbers are rounded to three digits."""
    step, time = _NANO_STEP.search(line), find(_NANO_TIME, line)
    if step is None or time is None:
        return
    speed = find(_NANO_FLOP, line)
    draft.step(
        "nanotron",
        int(step[1]),
        {
            "step_time_s": time / 1e3,
            "tokens_per_s": find(_NANO_TOKENS, line),
            "tokens_per_s_per_gpu": find(_NANO_TPS, line),
            "flop_per_s_per_gpu": None if speed is None else speed * 1e12,
            "loss": find(_NANO_LOSS, line),
        },
    )
    batch = find(_NANO_BATCH, line)
    if batch is not None:
        draft.settings["global_batch"] = int(batch)
    for wanted, peaks in ((_NANO_RESERVED, draft.reserved), (_NANO_ALLOCATED, draft.allocated)):
        peak = find(wanted, line)
        if peak is not None:
            peaks.append(peak)
            draft.num_memory_records += 1


# picotron: "Step: 3 | Loss: .. | Global batch size: 2.05K | Tokens/s: 10.61K | Tokens/s/GPU: 1.33K"
_PICO_STEP = pattern(r"\bStep:\s*<count>\s*\|")
_PICO_TOKENS = pattern(r"Tokens/s:\s*<number>")
_PICO_TPS = pattern(r"Tokens/s/GPU:\s*<number>")
_PICO_BATCH = pattern(r"Global batch size:\s*<number>")
_PICO_MFU = pattern(r"MFU:\s*<real>%")
_PICO_MEMORY = pattern(r"Memory usage:\s*<real>\s*GB")


def read_picotron(line: str, draft: Draft) -> None:
    """Take what one line of picotron says; its global batch is in tokens."""
    step, tokens = _PICO_STEP.search(line), find(_PICO_TOKENS, line)
    if step is None or tokens is None:
        return
    mfu, memory = find(_PICO_MFU, line), find(_PICO_MEMORY, line)
    values = {
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": find(_PICO_TPS, line),
        "mfu": None if mfu is None else mfu / 100,
        "memory_bytes": None if memory is None else memory * 1e9,
        "loss": find(_LOSS, line),
    }
    draft.step("picotron", int(step[1]), values)
    batch = find(_PICO_BATCH, line)
    if batch is not None:
        draft.totals.setdefault("tokens_per_step", batch)
    if memory is not None:
        draft.reserved.append(memory * 1e9)
        draft.num_memory_records += 1


# MaxText: "completed step: 2, seconds: 5.658, TFLOP/s/device: 135.158, Tokens/s/device: 8687.815"
_MAX_STEP = pattern(r"completed step:\s*<count>, seconds:\s*<real>")
_MAX_FLOP = pattern(r"TFLOP/s/device:\s*<real>")
_MAX_TPS = pattern(r"Tokens/s/device:\s*<real>")
_MAX_DEVICES = pattern(r"Num_devices:\s*<count>")
_MAX_USED = pattern(r"Using \(GB\) <real> / <real>")
_MAX_ESTIMATE = pattern(r"Total estimated memory size:\s*<real> GB")
_MAX_TOTAL = pattern(r"Total TFLOPs:\s*<real>")


def read_maxtext(line: str, draft: Draft) -> None:
    """Take what one line of MaxText says."""
    step = _MAX_STEP.search(line)
    if step is not None:
        speed = find(_MAX_FLOP, line)
        values = {
            "step_time_s": float(step[2]),
            "flop_per_s_per_gpu": None if speed is None else speed * 1e12,
            "tokens_per_s_per_gpu": find(_MAX_TPS, line),
            "loss": find(_LOSS, line),
        }
        draft.step("maxtext", int(step[1]), values)
        return
    devices, used = find(_MAX_DEVICES, line), _MAX_USED.search(line)
    estimate, total = find(_MAX_ESTIMATE, line), find(_MAX_TOTAL, line)
    if devices is not None:
        draft.settings["num_gpus"] = int(devices)
    if used is not None:
        draft.allocated.append(float(used[1]) * 1e9)
        draft.capacity.append(float(used[2]) * 1e9)
        draft.num_memory_records += 1
    if estimate is not None:
        draft.totals["estimated_bytes"] = estimate * 1e9
    if total is not None:
        draft.totals["flop_per_step_per_gpu"] = total * 1e12


# Composer: "[batch=3/100]:" and below it "Train loss/train/total: 10.97"
_BATCH = pattern(r"\[batch=<count>/[0-9]+\]")
_TOTAL_LOSS = pattern(r"loss/train/total:\s*<real>")
_THROUGHPUT = pattern(r"throughput/(device/)?(tokens|batches|samples)_per_sec:\s*<real>")
_COMPOSER_MFU = pattern(r"throughput/device/mfu:\s*<real>")


def read_composer(line: str, draft: Draft) -> None:
    """Take what one line of Composer (llm-foundry) says."""
    batch = _BATCH.search(line)
    if batch is not None:
        draft.step("composer", int(batch[1]), {})
    step = draft.last
    if step is None or "composer" not in draft.steps:
        return
    loss, mfu = find(_TOTAL_LOSS, line), find(_COMPOSER_MFU, line)
    if loss is not None:
        step.values["loss"] = loss
    if mfu is not None:
        step.values["mfu"] = mfu
    rate = _THROUGHPUT.search(line)
    if rate is not None and rate[2] == "batches" and not rate[1] and float(rate[3]) > 0:
        step.values["step_time_s"] = 1.0 / float(rate[3])
    elif rate is not None and rate[2] == "tokens":
        name = "tokens_per_s_per_gpu" if rate[1] else "tokens_per_s"
        step.values[name] = float(rate[3])
    elif rate is not None and rate[2] == "samples" and not rate[1]:
        step.values["samples_per_s"] = float(rate[3])
