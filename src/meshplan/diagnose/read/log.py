"""Read a console log of any of the known frameworks.

A log is read line by line; colours and prefixes of launchers are ignored, lines of other ranks
that repeat a step count once. What a log does not state is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.read.logs.deepspeed import read_deepspeed
from meshplan.diagnose.read.logs.draft import Draft, pattern, value
from meshplan.diagnose.read.logs.huggingface import read_huggingface
from meshplan.diagnose.read.logs.megatron import read_megatron, read_nemo
from meshplan.diagnose.read.logs.mlperf import MlperfReader
from meshplan.diagnose.read.logs.others import (
    read_composer,
    read_maxtext,
    read_nanotron,
    read_picotron,
    read_torchtitan,
)
from meshplan.diagnose.read.logs.precision import precision_of, read_precision
from meshplan.diagnose.read.logs.records import LogMeasures, LogStep, OutOfMemory
from meshplan.diagnose.read.logs.settings import finish_settings, read_settings
from meshplan.diagnose.read.text import text_lines
from meshplan.diagnose.records import Note
from meshplan.diagnose.values import shown_name
from meshplan.errors import UserError
from meshplan.units import GIB, MIB

__all__ = ["FRAMEWORKS", "LogMeasures", "LogStep", "OutOfMemory", "read_log"]

# Of two that a log speaks of, the one that comes first: it says more of each step.
FRAMEWORKS = (
    "torchtitan",
    "nanotron",
    "picotron",
    "maxtext",
    "nemo",
    "deepspeed",
    "megatron",
    "mlperf",
    "mlperf-stamps",
    "composer",
    "huggingface",
    "deepspeed-timer",
    "deepspeed-profiler",
)
_SHOWN = {
    "mlperf-stamps": "mlperf",
    "deepspeed-timer": "deepspeed",
    "deepspeed-profiler": "deepspeed",
}
_COLOUR = pattern(r"\x1b?\[[0-9;]*m")
_CLOCK = pattern(r"\b\d{4}-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_SIZE = r"<real>\s*([KMGT]i?B)"
_OUT_OF_MEMORY = pattern(r"[Tt]ried to allocate " + _SIZE)
_MEMORY_FIELDS = {
    "capacity_bytes": pattern(_SIZE + r" total capacity|total capacity of " + _SIZE),
    "allocated_bytes": pattern(
        _SIZE + r" already allocated|allocated memory " + _SIZE + r" is allocated by PyTorch|"
        r"memory in use.*?" + _SIZE + r" is allocated by PyTorch"
    ),
    "reserved_bytes": pattern(_SIZE + r" reserved in total by PyTorch"),
    "free_bytes": pattern(_SIZE + r" free|of which " + _SIZE + r" is free"),
}
_BINARY = {"KiB": 2.0**10, "MiB": float(MIB), "GiB": float(GIB), "TiB": 2.0**40}
# older PyTorch left the i out of units of 1024
_UNITS = {**_BINARY, **{name.replace("i", ""): size for name, size in _BINARY.items()}}


def read_log(path: Path) -> LogMeasures:
    """Read one console log, plain or gzipped.

    Raises:
        UserError: ``log_unreadable``, or ``log_unknown`` when no line is of a known framework.
    """
    draft, mlperf = Draft(), MlperfReader()
    readers: tuple[Callable[[str, Draft], None], ...] = (
        read_settings,
        read_precision,
        read_torchtitan,
        read_nanotron,
        read_picotron,
        read_maxtext,
        read_nemo,
        read_deepspeed,
        read_megatron,
        mlperf.read,
        read_composer,
        read_huggingface,
        _read_out_of_memory,
    )

    def cut_off() -> None:
        draft.cut_off = True

    for coloured in text_lines(path, code="log_unreadable", damaged=cut_off):
        line = _COLOUR.sub("", coloured)
        draft.clock_s = _clock(line)
        for read in readers:
            read(line, draft)
    framework = _framework(draft)
    if framework is None:
        raise UserError.of(
            "log_unknown", where=shown_name(path), allowed=tuple(dict.fromkeys(_shown_names()))
        )
    finish_settings(draft, framework)
    return _measures(path, draft, framework)


def _shown_names() -> tuple[str, ...]:
    return tuple(_SHOWN.get(name, name) for name in FRAMEWORKS)


def _clock(line: str) -> float | None:
    match = _CLOCK.search(line[:200])
    if match is None:
        return None
    month, day, hour, minute, second = (int(match[i]) for i in range(1, 6))
    fraction = float(f"0.{match[6]}") if match[6] else 0.0
    return (((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second + fraction


def _framework(draft: Draft) -> str | None:
    """The framework that states most steps, or that sums up the run."""
    named = [name for name in FRAMEWORKS if draft.steps.get(name) or draft.lines.get(name)]
    if named:
        return named[0]
    if "forward_flop_per_s" in draft.totals:
        return "deepspeed-profiler"
    return "deepspeed" if draft.num_flushes or draft.out_of_memory else None


def _read_out_of_memory(line: str, draft: Draft) -> None:
    match = _OUT_OF_MEMORY.search(line)
    if match is None or draft.out_of_memory is not None:
        return
    found: dict[str, float] = {}
    for name, wanted in _MEMORY_FIELDS.items():
        field = wanted.search(line)
        if field is not None:
            number, unit = [group for group in field.groups() if group is not None][:2]
            found[name] = value(number) * _UNITS[unit]
    draft.out_of_memory = OutOfMemory(requested_bytes=value(match[1]) * _UNITS[match[2]], **found)


def _measures(path: Path, draft: Draft, framework: str) -> LogMeasures:
    where = shown_name(path)
    numbers = sorted(draft.steps.get(framework, {}))
    found = LogMeasures(
        file=where,
        framework=_SHOWN.get(framework, framework),
        steps=tuple(_step(draft, framework, number) for number in numbers),
        num_lines=draft.lines.get(framework, 0),
        settings=draft.settings,
        restarts=tuple(draft.restarts),
        device=draft.device,
        precision=precision_of(draft.formats),
        peak_flop_per_s=draft.peak_flop_per_s,
        totals=draft.totals,
        peak_allocated_bytes=max(draft.allocated, default=None),
        peak_reserved_bytes=max(draft.reserved, default=None),
        capacity_bytes=max(draft.capacity, default=None),
        num_memory_records=draft.num_memory_records,
        memory_after=draft.memory_after,
        out_of_memory=draft.out_of_memory,
        num_allocator_flushes=draft.num_flushes,
    )
    return _with_notes(found, draft)


def _step(draft: Draft, framework: str, number: int) -> LogStep:
    """One step: what the framework says of it, then what its engine adds."""
    own = draft.steps[framework][number]
    values, phases = dict(own.values), dict(own.phases_s)
    for other, steps in draft.steps.items():
        if other != framework and number in steps:
            values = {**steps[number].values, **values}
            phases.update(steps[number].phases_s)  # the timers of the engine are the inner ones
    names = {f.name for f in fields(LogStep)}
    known = {name: v for name, v in values.items() if name in names}
    return LogStep(number=number, phases_s=phases, **known)


def _with_notes(found: LogMeasures, draft: Draft) -> LogMeasures:
    """Say what is missing, and where the log contradicts itself."""
    notes = []

    def note(code: str, **numbers: float | str) -> None:
        notes.append(Note(code=code, where=found.file, numbers=numbers))

    step_s = found.steady_step_s()
    if step_s is None and found.steady_tokens_per_s_per_gpu() is None:
        note("log_no_speed")
    if draft.cut_off:
        note("log_cut_off", num_lines=found.num_lines)
    if draft.restarts:
        note("log_restarted", num=len(draft.restarts), step=draft.restarts[-1])
    if draft.repeats:
        note("log_step_twice", num=len(draft.repeats))
    left_out = len(found.steps) - len(found.steady)
    quick = [s for s in found.steps[1:] if s not in found.steady]
    if quick and left_out:
        note("log_step_implausible", num=len(quick), step=quick[0].number)
    few = len(found.steady) < measure_constant("unsteady_steps")
    if few and (ratio := found.spread()) >= measure_constant("unsteady_ratio"):
        note("log_unsteady", num=len(found.steady), ratio=ratio)
    clock_s = found.clock_step_s()
    if step_s and clock_s and not 0.5 < clock_s / step_s < 2.0:
        note("log_contradicts", stated_s=step_s, clock_s=clock_s)
    return replace(found, notes=tuple(notes))
