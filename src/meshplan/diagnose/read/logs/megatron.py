"""Lines of Megatron-LM and what descends from it: Megatron-DeepSpeed, GPT-NeoX, Primus, NeMo."""

from __future__ import annotations

import re

from meshplan.diagnose.read.logs.draft import Draft, StepDraft, find, pattern

__all__ = ["read_megatron", "read_nemo"]

# "iteration 2/ 100 | .. | elapsed time per iteration (ms): 5630.1 | .."
_STEP = pattern(r"\biteration\s+<count>\s*/\s*[0-9]+\s*\|")
_TIME = pattern(r"elapsed time per iteration \(ms\):\s*<real>(?:/<real>)?")
_BATCH = pattern(r"global batch size:\s*<count>")
_SPEED = pattern(r"TFLOP/s/GPU\)?:\s*<real>|approx flops per GPU:\s*<real>\s*TFLOPS")
_TOKENS = pattern(r"\(tokens/s/GPU\):\s*<real>")
_SAMPLES = pattern(r"samples/sec:\s*<real>")
_LOSS = pattern(r"lm[ _-]loss:\s*<float>")
_ALLOCATED = pattern(r"\bmax allocated:\s*<real>")
_RESERVED = pattern(r"\bmax reserved:\s*<real>")
_AFTER = pattern(r"after <count> iterations")
_GIGABYTES = pattern(r"mem-max-(allocated|reserved)-gigabytes:\s*<real>")
_RETRIES = pattern(r"mem-alloc-retires:\s*<count>")
_WEIGHTS = pattern(r"weight and optimizer=<real> MB")
_PHASES = pattern(r"time \(ms\) \|(.*)")
_PHASE = pattern(r"([A-Za-z][A-Za-z0-9_/ -]*?):\s*<real>")
_RANGE = pattern(r"^\s*([a-z][a-z0-9-]+) \.{2,}: \(\s*<real>,\s*<real>\)")
_MB = 2.0**20

_WORLD = {
    "num_gpus": pattern(r"using world size:\s*<count>"),
    "dp": pattern(r"data-parallel[- ]size:\s*<count>"),
    "tp": pattern(r"(?<!pipeline-)(?:tensor-)?model-parallel size:\s*<count>"),
    "pp": pattern(r"pipeline-model-parallel size:\s*<count>"),
    "cp": pattern(r"context-parallel size:\s*<count>"),
}
_INITIALIZED = {
    "tp": pattern(r"initialized tensor model parallel with size <count>"),
    "pp": pattern(r"initialized pipeline model parallel with size <count>"),
    "num_micro_batches": pattern(
        r"setting number of micro-?batches to constant <count>", re.IGNORECASE
    ),
}
_GROUPS = {
    "dp": pattern(r"Rank 0 has data parallel group\s*: \[([0-9, ]+)\]"),
    "tp": pattern(r"Rank 0 has tensor model parallel group\s*: \[([0-9, ]+)\]"),
    "pp": pattern(r"Rank 0 has pipeline model parallel group\s*: \[([0-9, ]+)\]"),
    "cp": pattern(r"Rank 0 has context parallel group\s*: \[([0-9, ]+)\]"),
    "ep": pattern(r"Rank 0 has expert model parallel group\s*: \[([0-9, ]+)\]"),
}
_PROCESSES = pattern(r"Starting with <count> processes")


def read_megatron(line: str, draft: Draft) -> None:
    """Take what one line says."""
    step = _STEP.search(line)
    time = _TIME.search(line) if step is not None else None
    if step is not None and time is not None:
        _read_step(line, draft, int(step[1]), time)
    elif draft.last is not None and ("TFLOP" in line or "tokens/s/GPU" in line):
        # the line went on after it was wrapped
        for name, number in _rates(line).items():
            if number is not None:
                draft.last.values.setdefault(name, number)
    if "max allocated" in line or "gigabytes" in line:
        _read_memory(line, draft)
    if "time (ms)" in line or " ....." in line:
        _read_phases(line, draft)
    if "parallel" in line or "micro" in line or "world size" in line or "processes" in line:
        _read_layout(line, draft)
    weights = find(_WEIGHTS, line)
    if weights is not None:
        draft.totals["weights_and_optimizer_bytes"] = weights * _MB


def _rates(line: str) -> dict[str, float | None]:
    speed = _SPEED.search(line)
    return {
        "flop_per_s_per_gpu": float(speed[1] or speed[2]) * 1e12 if speed else None,
        "tokens_per_s_per_gpu": find(_TOKENS, line),
        "samples_per_s": find(_SAMPLES, line),
        "loss": find(_LOSS, line),
    }


def _read_step(line: str, draft: Draft, number: int, time: re.Match[str]) -> None:
    values = {"step_time_s": float(time[1]) / 1e3, **_rates(line)}
    draft.step("megatron", number, values)
    if time[2]:  # the time of this step, and the mean so far
        draft.totals["mean_step_s"] = float(time[2]) / 1e3
    batch = find(_BATCH, line)
    if batch is not None:
        draft.settings["global_batch"] = int(batch)


def _read_memory(line: str, draft: Draft) -> None:
    allocated = [float(n) * _MB for n in _ALLOCATED.findall(line)]
    draft.allocated.extend(allocated)
    draft.reserved.extend(float(n) * _MB for n in _RESERVED.findall(line))
    found = _GIGABYTES.findall(line)
    for name, number in found:
        (draft.allocated if name == "allocated" else draft.reserved).append(float(number) * 1e9)
    draft.num_memory_records += len(allocated) or bool(found)
    after, retries = find(_AFTER, line), find(_RETRIES, line)
    if after is not None:
        draft.memory_after = int(after)
    if retries is not None:
        draft.num_flushes = max(draft.num_flushes, int(retries))


def _read_phases(line: str, draft: Draft) -> None:
    """Times of phases belong to the step whose line came last."""
    step: StepDraft | None = draft.last
    if step is None:
        return
    table, several = _PHASES.search(line), _RANGE.match(line)
    if several is not None:
        step.phases_s[several[1]] = (float(several[2]) / 1e3, float(several[3]) / 1e3)
    elif table is not None and "samples" not in table[1]:
        for name, number in _PHASE.findall(table[1]):
            time_s = float(number.rstrip(".") or 0) / 1e3
            # the engine's own timers come first and are printed once a step
            step.phases_s.setdefault(name.strip(), (time_s, time_s))


def _read_layout(line: str, draft: Draft) -> None:
    """Note degrees that the lines of the start state."""
    if "using world size" in line:
        for name, wanted in _WORLD.items():
            match = wanted.search(line)
            if match is not None:
                draft.settings[name] = int(match[1])
    for name, wanted in _INITIALIZED.items():
        match = wanted.search(line)
        if match is not None:
            draft.settings[name] = int(match[1])
    for name, wanted in _GROUPS.items():
        match = wanted.search(line)
        if match is not None:
            draft.settings[name] = len(match[1].split(","))
    processes = find(_PROCESSES, line)
    if processes is not None:
        draft.settings["num_gpus"] = int(processes)


# NeMo 2: "Training epoch 0, iteration 1/19 | .. | global_step: 1 | train_step_timing in s: 7.5"
_NEMO_STEP = pattern(r"global_step[:=]\s*<number>")
_NEMO_TIME = pattern(r"train_step_timing in s[:=]\s*<real>")
_NEMO_BATCH = pattern(r"global_batch_size:\s*<count>")
_NEMO_SAMPLES = pattern(r"consumed_samples[:=]\s*<number>")
_NEMO_LOSS = pattern(r"reduced_train_loss[:=]\s*<real>")
_NEMO_VALIDATION = pattern(r"val_loss=<real>")


def read_nemo(line: str, draft: Draft) -> None:
    """Take what one line of NeMo says: progress bars of NeMo 1, lines of NeMo 2."""
    step, time = find(_NEMO_STEP, line), find(_NEMO_TIME, line)
    if step is None or time is None:
        return
    draft.step("nemo", int(step), {"step_time_s": time, "loss": find(_NEMO_LOSS, line)})
    batch, samples = find(_NEMO_BATCH, line), find(_NEMO_SAMPLES, line)
    validation = find(_NEMO_VALIDATION, line)
    if batch is not None:
        draft.settings["global_batch"] = int(batch)
    if samples is not None:
        draft.totals["consumed_samples"] = samples
        if batch is None and step > 0:
            draft.settings.setdefault("global_batch", round(samples / step))
    if validation is not None:
        draft.totals["validation_loss"] = validation
