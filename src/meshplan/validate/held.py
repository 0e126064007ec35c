"""Runs that a profile was fitted to already: recognised when they are given again, and counted on.

A profile is what a set of runs says, whatever the order in which they became known. So its file
keeps of each run what a further fit needs: its error with the numbers of the profile and the
slopes along them, with which errors are linear close by. Further runs are fitted together with
these, from where the first fit began.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.likeness import traits
from meshplan.cost.parameters import count_parameters
from meshplan.inputs.blocks import kinds_of
from meshplan.inputs.load.job import dump_job
from meshplan.inputs.load.profile import cluster_profile, is_own, profile_name
from meshplan.inputs.load.profile_file import read_profile
from meshplan.inputs.load.residuals import parse_held
from meshplan.inputs.profile import SIZES, HeldRun, MeasuredRun
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.names import to_text
from meshplan.space.plan import Plan, PlanGrid
from meshplan.validate.prior import NUMBERS
from meshplan.validate.rows import Case

__all__ = ["Book", "Held", "book_of", "covers_with", "fresh_runs", "job_of", "layout_of_case"]

FloatArray = npt.NDArray[np.float64]

_BUDGET = ("total_tokens", "deadline_days")
_DEGREES = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_replicate", "zero", "micro_batch")
_MORE = ("recompute_layers", "offload_layers", "stage_layers")
_NAMES = ("framework", "schedule", "cp_comm", "recompute", "offload", "split")
_DIGITS = 16


@record
class Book:
    """What a profile says of the runs that it was fitted to.

    Attributes:
        start: shipped profile from which the fit began; empty where a file does not say, so that
            further runs can only move the profile as it is.
        runs: the runs.
        covers: kinds of block that they had, by chip family.
    """

    start: str
    runs: tuple[HeldRun, ...] = ()
    covers: Mapping[str, tuple[str, ...]]

    @property
    def can_fit_again(self) -> bool:
        """Whether the runs can be fitted together with further ones."""
        return bool(self.start and self.runs)


@record
class Held:
    """Errors of runs that a profile holds, linear around its numbers.

    Attributes:
        runs: the runs.
        at: moves of the profile from where its fit began, ``(7,)``.
    """

    runs: tuple[HeldRun, ...]
    at: FloatArray

    @classmethod
    def of(cls, scenario: Scenario, book: Book) -> Held:
        """The runs of a profile file that a scenario names; none where they cannot be fitted."""
        if not book.can_fit_again:
            return cls(runs=(), at=np.zeros(len(NUMBERS)))
        architecture = scenario.cluster.device.architecture
        now = cluster_profile(profile_name(scenario), architecture)
        begun = cluster_profile(book.start, architecture)
        ratios = [getattr(now, name) / getattr(begun, name) for name in NUMBERS]
        return cls(runs=book.runs, at=np.log(ratios))

    @property
    def slopes(self) -> FloatArray:
        """Slopes of the errors, ``(n, 7)``."""
        return np.array([run.slopes for run in self.runs]).reshape(-1, len(NUMBERS))

    @property
    def per_wait(self) -> FloatArray:
        """What a second of wait adds to each, over the step at the start, ``(n,)`` [1/s]."""
        return np.array([run.per_wait for run in self.runs])

    def errors(self, move: FloatArray, wait_s: float = 0.0) -> FloatArray:
        """Logarithm of predicted over measured with moves ``(7,)`` and a wait [s]."""
        found = np.array([run.error for run in self.runs]) + self.slopes @ (move - self.at)
        waited = wait_s * self.per_wait * np.exp(-self.slopes @ move)
        return np.asarray(found + np.log1p(waited), dtype=np.float64)

    def moved_to(self, move: FloatArray) -> tuple[HeldRun, ...]:
        """The runs around other numbers of the profile."""
        found = zip(self.runs, self.errors(move).tolist(), strict=True)
        return tuple(replace(run, error=error) for run, error in found)


def book_of(scenario: Scenario) -> Book:
    """What the profile of a scenario says of its runs."""
    name = profile_name(scenario)
    if not is_own(name):
        return Book(start=name, covers={})
    entry = read_profile(name)
    covers = {family: tuple(kinds) for family, kinds in (entry.get("covers") or {}).items()}
    return Book(start=entry.get("start") or "", runs=parse_held(entry.get("runs")), covers=covers)


def covers_with(book: Book, scenarios: Iterable[Scenario]) -> dict[str, tuple[str, ...]]:
    """Kinds of block that the runs of a profile and further ones had, by chip family."""
    found = {family: set(kinds) for family, kinds in book.covers.items()}
    for family, model in {(s.cluster.device.architecture, s.model) for s in scenarios}:
        own = (kind for layer in model.layer_kinds for kind in kinds_of(layer))
        found.setdefault(family, set()).update(own)
    return {family: tuple(sorted(found[family])) for family in sorted(found)}


def job_of(case: Case) -> str:
    """Digest of what a run computed and how: model, devices, job and layout, but no time."""
    scenario, plan = case.scenario, case.plan
    model, cluster = scenario.model, scenario.cluster
    job = dump_job(scenario.job)
    said = {
        "model": (model.num_layers, model.hidden, model.vocab, count_parameters(model).total),
        "devices": (cluster.device.name, cluster.num_gpus),
        "job": {key: value for key, value in job.items() if key not in _BUDGET},
        "layout": _layout(plan),
    }
    text = json.dumps(said, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _layout(plan: Plan) -> dict[str, object]:
    found: dict[str, object] = {name: getattr(plan, name) for name in (*_DEGREES, *_MORE)}
    return {**found, **{name: to_text(getattr(plan, name)) for name in _NAMES}}


def layout_of_case(case: Case) -> MeasuredRun:
    """The layout of a run, as plans are compared with it."""
    plan = case.plan
    sizes = traits(case.scenario, PlanGrid.of([plan]))[0].tolist()
    return MeasuredRun(
        framework=plan.framework.name.lower(),
        sizes=tuple(sizes[: len(SIZES)]),
        sp=plan.sp,
        recompute=to_text(plan.recompute),
        zero=plan.zero,
        weight=0.0,
    )


def fresh_runs(statements: Sequence[Sequence[Case]], held: Sequence[HeldRun]) -> list[bool]:
    """Tell runs that are new from those that were counted already.

    A run is the same as another when job, layout and measured time are. Of a file that states it
    several times, under names of their own, all count: a repeat may take as long. Two files, or a
    file and a profile, that state the same speak of one run.

    Args:
        statements: the runs of each file.
        held: the runs that a profile holds.

    Returns:
        Whether each run is new, those of the first file first.
    """
    counted = Counter((run.job, _time(run.step_time_s)) for run in held)
    found = []
    for cases in statements:
        here: Counter[tuple[str, str]] = Counter()
        named: set[tuple[str, ...]] = set()
        for case in cases:
            run = (job_of(case), _time(case.measured_step_s()))
            again = bool(case.row_id) and (case.row_id, *run) in named
            named.add((case.row_id, *run))
            here[run] += not again
            found.append(not again and here[run] > counted[run])
        counted |= here
    return found


def _time(step_time_s: float) -> str:
    return f"{step_time_s:.6g}"
