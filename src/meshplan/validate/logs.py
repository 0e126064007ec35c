"""Step times from the console logs of Megatron-LM, DeepSpeed, torchtitan and nanotron.

A log is read line by line; lines of other ranks that repeat a step count once, colours and
prefixes of launchers are ignored. The first step warms up and is left out of the steady figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from meshplan.errors import UserError

__all__ = ["Log", "read_log"]

_COLOUR = re.compile(r"\x1b?\[[0-9;]*m")
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_NUMBER = r"([0-9][0-9,.]*(?:[eE][+-]?[0-9]+)?)\s*([KMGBT]?)"
_LARGEST = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a log says about speed.

    Attributes:
        framework: whose log it is: ``megatron``, ``deepspeed``, ``torchtitan`` or ``nanotron``.
        step_time_s: time of each step that was logged [s], by step.
        tokens_per_s_per_gpu: throughput per device of each step, by step.
        settings: degrees and batches that the log states, by plan or job field.
        peak_gib: largest peak memory that it states [GiB]; None when it states none.
    """

    framework: str
    step_time_s: Mapping[int, float]
    tokens_per_s_per_gpu: Mapping[int, float]
    settings: Mapping[str, int] = field(default_factory=dict)
    peak_gib: float | None = None

    def steady_step_s(self) -> float | None:
        """Median step time after the first step [s]; None when no time is logged."""
        return _steady(self.step_time_s)

    def steady_tokens_per_s_per_gpu(self) -> float | None:
        """Median throughput per device after the first step; None when none is logged."""
        return _steady(self.tokens_per_s_per_gpu)


def _steady(values: Mapping[int, float]) -> float | None:
    ordered = [values[step] for step in sorted(values)]
    rest = ordered[1:] or ordered
    return median(rest) if rest else None


def read_log(path: Path) -> Log:
    """Read one console log.

    Raises:
        UserError: ``log_unreadable``, or ``log_without_speed`` when it is of none of the
            frameworks or states neither a step time nor a throughput.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise UserError.of("log_unreadable", where=str(path), value="> 1 GiB")
        text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise UserError.of("log_unreadable", where=str(path), value=type(error).__name__) from error
    lines = [_COLOUR.sub("", line) for line in text.splitlines()]
    for framework, reader in _READERS:
        log = reader(framework, lines)
        if log.step_time_s or log.tokens_per_s_per_gpu:
            return log
    raise UserError.of(
        "log_without_speed", where=str(path), allowed=tuple(name for name, _ in _READERS)
    )


def _value(number: str, suffix: str = "") -> float:
    return float(number.replace(",", "").rstrip(".")) * _SUFFIX[suffix]


def _find(pattern: re.Pattern[str], line: str) -> float | None:
    match = pattern.search(line)
    if match is None:
        return None
    groups = match.groups()
    return _value(groups[0], groups[1] if len(groups) > 1 and groups[1] else "")


# --- torchtitan: "step: 10  loss: ..  memory: 30.89GiB(32.51%)  tps: 6,344  tflops: .."

_TITAN_STEP = re.compile(r"\bstep:\s*([0-9]+)\b")
_TITAN_TPS = re.compile(r"\btps:\s*([0-9][0-9,.]*)")
_TITAN_MEMORY = re.compile(r"\bmemory:\s*([0-9.]+)\s*GiB")


def _torchtitan(framework: str, lines: Iterable[str]) -> Log:
    speed: dict[int, float] = {}
    peak: float | None = None
    for line in lines:
        step, tps = _TITAN_STEP.search(line), _find(_TITAN_TPS, line)
        if step is None or tps is None:
            continue
        speed.setdefault(int(step[1]), tps)
        memory = _find(_TITAN_MEMORY, line)
        if memory is not None:
            peak = max(peak or 0.0, memory)
    return Log(framework=framework, step_time_s={}, tokens_per_s_per_gpu=speed, peak_gib=peak)


# --- nanotron: "iteration: 3 / 100 | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: .."

_NANOTRON_STEP = re.compile(r"\biteration:\s*([0-9]+)\s*/")
_NANOTRON_TIME = re.compile(r"elapsed_time_per_iteration_ms:\s*" + _NUMBER)
_NANOTRON_TPS = re.compile(r"tokens_per_sec_per_gpu:\s*" + _NUMBER)
_NANOTRON_BATCH = re.compile(r"global_batch_size:\s*" + _NUMBER)


def _nanotron(framework: str, lines: Iterable[str]) -> Log:
    times: dict[int, float] = {}
    speed: dict[int, float] = {}
    settings: dict[str, int] = {}
    for line in lines:
        step, time = _NANOTRON_STEP.search(line), _find(_NANOTRON_TIME, line)
        if step is None or time is None:
            continue
        times[int(step[1])] = time / 1e3
        tps, batch = _find(_NANOTRON_TPS, line), _find(_NANOTRON_BATCH, line)
        if tps is not None:
            speed[int(step[1])] = tps
        if batch is not None:
            settings["global_batch"] = int(batch)
    return Log(
        framework=framework, step_time_s=times, tokens_per_s_per_gpu=speed, settings=settings
    )


# --- Megatron-LM: "iteration 2/ 100 | .. | elapsed time per iteration (ms): 5630.1 | .."

_MEGATRON_STEP = re.compile(r"\biteration\s+([0-9]+)\s*/\s*[0-9]+\s*\|")
_MEGATRON_TIME = re.compile(r"elapsed time per iteration \(ms\):\s*([0-9.]+)")
_MEGATRON_BATCH = re.compile(r"global batch size:\s*([0-9]+)")
_MEGATRON_MEMORY = re.compile(r"max allocated:\s*([0-9.]+)")
_MEGATRON_WORLD = {
    "num_gpus": re.compile(r"using world size:\s*([0-9]+)"),
    "dp": re.compile(r"data-parallel[- ]size:\s*([0-9]+)"),
    "tp": re.compile(r"(?:tensor-)?model-parallel size:\s*([0-9]+)"),
    "pp": re.compile(r"pipeline-model-parallel size:\s*([0-9]+)"),
    "cp": re.compile(r"context-parallel size:\s*([0-9]+)"),
}
_MEGATRON_ARGUMENT = re.compile(r"^\s*([a-z_]+) \.{2,} ([0-9]+)\s*$")
_MEGATRON_NAMES = {
    "global_batch_size": "global_batch",
    "micro_batch_size": "micro_batch",
    "seq_length": "seq_len",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "num_layers": "num_layers",
    "hidden_size": "hidden",
}


def _megatron(framework: str, lines: Iterable[str]) -> Log:
    times: dict[int, float] = {}
    settings: dict[str, int] = {}
    peak: float | None = None
    for line in lines:
        step, time = _MEGATRON_STEP.search(line), _find(_MEGATRON_TIME, line)
        if step is not None and time is not None:
            times[int(step[1])] = time / 1e3
            batch = _find(_MEGATRON_BATCH, line)
            if batch is not None:
                settings["global_batch"] = int(batch)
            continue
        for memory in _MEGATRON_MEMORY.findall(line):
            peak = max(peak or 0.0, float(memory) / 1024)
        _megatron_settings(line, settings)
    return Log(
        framework=framework,
        step_time_s=times,
        tokens_per_s_per_gpu={},
        settings=settings,
        peak_gib=peak,
    )


def _megatron_settings(line: str, settings: dict[str, int]) -> None:
    """Note degrees and batches that a line of the start states."""
    argument = _MEGATRON_ARGUMENT.match(line)
    if argument is not None and argument[1] in _MEGATRON_NAMES:
        settings[_MEGATRON_NAMES[argument[1]]] = int(argument[2])
    elif "using world size" in line:
        for name, pattern in _MEGATRON_WORLD.items():
            match = pattern.search(line)
            if match is not None:
                settings[name] = int(match[1])


# --- DeepSpeed's pipeline engine: "steps: 1 loss: .. iter time (s): 150.471 samples/sec: 6.805"

_DEEPSPEED = re.compile(r"\bsteps:\s*([0-9]+)\s+loss:.*?iter time \(s\):\s*([0-9.]+)")


def _deepspeed(framework: str, lines: Iterable[str]) -> Log:
    times = {}
    for line in lines:
        match = _DEEPSPEED.search(line)
        if match is not None:
            times[int(match[1])] = float(match[2])
    own = _megatron(framework, lines)
    return Log(
        framework=framework,
        step_time_s=times,
        tokens_per_s_per_gpu={},
        settings=own.settings,
        peak_gib=own.peak_gib,
    )


_READERS: tuple[tuple[str, Callable[[str, list[str]], Log]], ...] = (
    ("torchtitan", _torchtitan),
    ("nanotron", _nanotron),
    ("deepspeed", _deepspeed),
    ("megatron", _megatron),
)
