"""A log while it is read, line by line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshplan.diagnose.read.logs.records import OutOfMemory

__all__ = ["Draft", "StepDraft", "find", "pattern", "value"]

_TOKENS = {
    "<count>": r"([0-9]{1,18})",
    "<real>": r"([0-9]{1,18}(?:\.[0-9]{0,18})?)",
    "<float>": r"([0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?)",
    "<commas>": r"([0-9][0-9,]{0,24})",
    # with commas between thousands and a suffix of magnitude
    "<number>": r"([0-9][0-9,]{0,24}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?)"
    r"\s*([KMGBT]?)(?![a-zA-Z])",
}
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Compile an expression in which ``<count>``, ``<real>``, ... stand for numbers."""
    for token, expression in _TOKENS.items():
        text = text.replace(token, expression)
    return re.compile(text, flags)


def value(number: str, suffix: str = "") -> float:
    """A number with commas between thousands and a suffix of magnitude."""
    return float(number.replace(",", "").rstrip(".")) * _SUFFIX[suffix or ""]


def find(pattern: re.Pattern[str], line: str) -> float | None:
    """The number that a pattern finds; None where it finds none or nonsense."""
    match = pattern.search(line)
    if match is None:
        return None
    groups = match.groups()
    try:
        return value(groups[0], groups[1] if len(groups) > 1 else "")
    except ValueError:
        return None


@dataclass(slots=True)
class StepDraft:
    """Values of one step by attribute of :class:`LogStep`, and the times of its phases."""

    number: int
    values: dict[str, float] = field(default_factory=dict)
    phases_s: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class Draft:
    """What was found so far.

    Attributes:
        steps: by framework, the steps by number.
        lines: by framework, lines that state a step.
        repeats: steps that were stated again with other values.
        restarts: for each time that the run began again, the step that it went back to.
        cut_off: the file ended before its end.
        last: the step whose line came last.
        settings: what is stated of the run.
        totals: figures of the whole run.
        device: name of the device; empty when it is not stated.
        formats: number formats that are stated.
        peak_flop_per_s: the peak that is divided by [FLOP/s].
        allocated: peaks of allocated memory [bytes].
        reserved: peaks of reserved memory [bytes].
        capacity: capacities that are stated or implied [bytes].
        num_memory_records: records of memory.
        memory_after: step after which they stand.
        out_of_memory: the first failed allocation.
        num_flushes: times that the allocator gave back its cache.
        clock_s: time of day of the line at hand [s].
    """

    steps: dict[str, dict[int, StepDraft]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    repeats: set[int] = field(default_factory=set)
    restarts: list[int] = field(default_factory=list)
    cut_off: bool = False
    again: dict[str, dict[int, StepDraft]] = field(default_factory=dict)
    last: StepDraft | None = None
    settings: dict[str, int] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    device: str = ""
    formats: set[str] = field(default_factory=set)
    peak_flop_per_s: float | None = None
    allocated: list[float] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    num_memory_records: int = 0
    memory_after: int | None = None
    out_of_memory: OutOfMemory | None = None
    num_flushes: int = 0
    clock_s: float | None = None

    def step(self, framework: str, number: int, values: Mapping[str, float | None]) -> StepDraft:
        """Note a step; of one that is stated several times the first statement counts."""
        self.lines[framework] = self.lines.get(framework, 0) + 1
        steps = self.steps.setdefault(framework, {})
        known = {name: v for name, v in values.items() if v is not None}
        if self.clock_s is not None:
            known["clock_s"] = self.clock_s
        found = steps.get(number)
        if found is None:
            self.again.pop(framework, None)
            found = steps[number] = StepDraft(number=number, values=known)
        elif _differs(found.values, known) and number <= max(steps):
            found = self._once_more(framework, number, known)
        self.last = found
        return found

    def _once_more(self, framework: str, number: int, known: Mapping[str, float]) -> StepDraft:
        """Note a step that was stated before with other values.

        Another rank states the step at hand, or the one before. A run that went back to a
        checkpoint goes on from there: at its second step it is taken for that, and its steps
        count from then on.
        """
        steps, again = self.steps[framework], self.again.setdefault(framework, {})
        self.repeats.add(number)
        if again and number < min(again):
            again.clear()
        if number == max(steps) and not again:
            return steps[number]
        again.setdefault(number, StepDraft(number=number, values=dict(known)))
        if len(again) < 2:
            return again[number]
        del self.again[framework]
        self.repeats.difference_update(again)
        self.restarts.append(min(again))
        self.steps[framework] = again
        return again[number]


def _differs(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    """Whether two statements of one step cannot be from two ranks of it."""
    names = ("step_time_s", "tokens_per_s_per_gpu", "loss")
    return any(
        n in a and n in b and abs(a[n] - b[n]) > 0.05 * max(abs(a[n]), abs(b[n])) for n in names
    )
