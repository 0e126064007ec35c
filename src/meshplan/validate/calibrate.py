"""Fit the cluster profile to the times of a few measured runs.

How far the numbers of the profile move is inferred in :mod:`meshplan.validate.posterior`; here
are the errors of the runs, their slopes along each number, and the band that is left. Runs that a
profile holds already (:mod:`meshplan.validate.held`) are fitted together with further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.cost.handovers import num_handovers
from meshplan.cost.likeness import distances, traits_of_run
from meshplan.errors import ProblemList
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.load.residuals import plain_held, plain_layout
from meshplan.inputs.profile import (
    MOST_WEIGHT,
    ClusterProfile,
    HeldRun,
    MeasuredRun,
    Profile,
    Residuals,
)
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import PlanGrid
from meshplan.validate.held import Book, Held, book_of, covers_with, job_of, layout_of_case
from meshplan.validate.posterior import INSIDE, Posterior, fit, residual_weights
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.prior import NUMBERS, Prior, usual_prior
from meshplan.validate.rows import Case

__all__ = [
    "MOST_OFF",
    "MOST_RUNS",
    "Calibration",
    "Slopes",
    "apart_of",
    "calibrate",
    "check_reach",
    "moved",
    "slopes_of",
]

FloatArray = npt.NDArray[np.float64]

MOST_OFF = 20.0
"""Times by which a run may be faster or slower than predicted: beyond, it is probably another run
than its row says, or its time has another unit."""
MOST_RUNS = 2000
"""Runs that are fitted together: the table of distances between them grows with the square."""
_STEP = 0.1
_DIGITS = 4


@record
class Calibration:
    """A cluster profile fitted to runs.

    Attributes:
        profile: the profile.
        before: errors of the runs with the profile that would be used without them, predicted
            over measured minus one.
        after: the same with the fitted profile.
        residuals: what the runs took beyond what the profile says; none where it stays.
        base_share: half width of the 80 % band as a share of the step.
        book: all runs that the profile was fitted to, and from where.
    """

    profile: ClusterProfile
    before: tuple[float, ...]
    after: tuple[float, ...]
    residuals: Residuals | None
    base_share: float
    book: Book

    def document(self, *, sources: Sequence[str]) -> dict[str, Any]:
        """The profile as a mapping that a profile file holds."""
        names = (f.name for f in fields(ClusterProfile) if f.name not in ("name", "sources"))
        found: dict[str, Any] = {
            "fitted": {name: _rounded(getattr(self.profile, name)) for name in names},
            "fitted_by": "meshplan calibrate " + " ".join(sources),
            **({"start": self.book.start} if self.book.start else {}),
            "covers": {family: list(kinds) for family, kinds in self.book.covers.items()},
            # runs of experts in few bits have scattered already as they do
            "band": {"base": round(self.base_share, 4), "experts": 0.0},
        }
        if self.residuals is not None:
            found["residuals"] = {
                "reach": _rounded(self.residuals.reach),
                "runs": [
                    {**plain_layout(run), "weight": _rounded(run.weight)}
                    for run in self.residuals.runs
                ],
            }
        return {**found, "runs": [plain_held(run) for run in self.book.runs]}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


@record
class Slopes:
    """How the errors of runs change with the profile.

    Attributes:
        moves: along the logarithm of each of :data:`NUMBERS`, ``(n, 7)``.
        per_wait: what one second of wait adds to each run, over the predicted step, ``(n,)`` [1/s].
    """

    moves: FloatArray
    per_wait: FloatArray

    def take(self, index: npt.NDArray[np.intp]) -> Slopes:
        """The same of some of the runs."""
        return Slopes(moves=self.moves[index], per_wait=self.per_wait[index])


@record
class _Runs:
    """Measured runs, and the profiles that would be used without them."""

    cases: Sequence[Case]
    profile: Callable[[Scenario, str], Profile]

    def start(self) -> Profile:
        """The profile that would be used without the runs."""
        first = self.cases[0]
        return self.profile(first.scenario, first.plan.framework.name.lower())

    def predicted(
        self, cluster: ClusterProfile, residuals: Residuals | None = None
    ) -> list[Prediction]:
        """The runs as predicted on a cluster, with residuals other than those of its profile."""

        def profile(scenario: Scenario, framework: str) -> Profile:
            own = self.profile(scenario, framework)
            return replace(own, cluster=cluster, residuals=residuals or own.residuals)

        return predict(self.cases, memory=False, profile=profile)

    def errors(self, cluster: ClusterProfile) -> FloatArray:
        """Logarithm of predicted over measured step time on a cluster."""
        return _errors(self.predicted(cluster))


class _Together:
    """Runs that a profile holds, and further ones: all of them from where the fit began."""

    def __init__(
        self,
        cases: Sequence[Case],
        profile: Callable[[Scenario, str], Profile],
        slopes: Slopes | None,
    ) -> None:
        scenario = cases[0].scenario
        self.book = book_of(scenario)
        begin = self.book.start if self.book.can_fit_again else scenario.profile
        self.held = Held.of(scenario, self.book)
        self.further = _Runs(
            cases=cases, profile=lambda s, f: profile(replace(s, profile=begin), f)
        )
        self.start = self.further.start()
        self.own = slopes or slopes_of(cases, profile=self.further.profile)
        self.slopes = Slopes(
            moves=np.concatenate([self.held.slopes, self.own.moves]),
            per_wait=np.concatenate([self.held.per_wait, self.own.per_wait]),
        )
        self.layouts = [*(run.layout for run in self.held.runs), *map(layout_of_case, cases)]
        self.jobs = [*(run.job for run in self.held.runs), *map(job_of, cases)]
        self.apart = _apart(self.layouts)

    def errors(self, move: FloatArray, wait_s: float = 0.0) -> FloatArray:
        """Logarithm of predicted over measured with moves ``(7,)`` and a wait [s]."""
        own = self.further.errors(moved(self.start.cluster, move, wait_s))
        return np.concatenate([self.held.errors(move, wait_s), own])

    def after(self, move: FloatArray, shares: Sequence[float]) -> tuple[HeldRun, ...]:
        """All runs as the file of the fitted profile holds them.

        Args:
            move: of the fitted profile, ``(7,)``.
            shares: what traffic, bubble and host add to the band of each further run.
        """
        # those of a profile that cannot be fitted again are only told apart from further ones
        before = self.held.moved_to(move) if self.book.can_fit_again else self.book.runs
        errors = self.further.errors(moved(self.start.cluster, move)).tolist()
        own = (
            HeldRun(
                name=case.row_id,
                job=job_of(case),
                step_time_s=float(f"{case.measured_step_s():.6g}"),
                layout=layout_of_case(case),
                error=error,
                slopes=tuple(moves),
                per_wait=per_wait,
                parts_share=max(share, 0.0),
            )
            for case, error, moves, per_wait, share in zip(
                self.further.cases,
                errors,
                self.own.moves.tolist(),
                self.own.per_wait.tolist(),
                shares,
                strict=True,
            )
        )
        return (*before, *own)


def calibrate(
    cases: Sequence[Case],
    *,
    name: str = "calibrated",
    profile: Callable[[Scenario, str], Profile] = profile_of,
    slopes: Slopes | None = None,
    prior: Prior | None = None,
) -> Calibration:
    """Fit the cluster profile to measured runs, and to those that the profile holds already.

    Args:
        cases: one or more runs with a measured time, on one cluster, that the profile of their
            scenario does not hold.
        name: what the profile is called.
        profile: finds what would be used without the runs.
        slopes: those of the runs, where they are known.
        prior: how clusters differ; as learned from measured runs by default.
    """
    runs = _Together(cases, profile, slopes)
    start, apart = runs.start.cluster, runs.apart
    as_it_was = _Runs(cases=cases, profile=profile)
    before = as_it_was.errors(as_it_was.start().cluster)
    prior = prior or usual_prior()

    def inferred(of: FloatArray) -> Posterior:
        """What the runs say once each row of ``of`` has made one run of them."""
        first = of.argmax(axis=1)
        return fit(
            lambda move, wait_s: of @ runs.errors(move, wait_s),
            runs.slopes.moves[first],
            prior=prior,
            known=start.name != "default",
            share_per_wait=runs.slopes.per_wait[first],
            apart=apart[np.ix_(first, first)],
        )

    found = inferred(np.eye(len(runs.jobs)))
    deviation = found.deviation(runs.slopes.moves)
    if len(jobs := _means_of_jobs(runs.jobs)) < len(runs.jobs):
        # that repeats of a run agree says nothing of how far other layouts are off
        once = inferred(jobs)
        deviation = max(deviation, once.deviation(runs.slopes.moves[jobs.argmax(axis=1)]))
    fitted = moved(start, found.move, found.wait_s)
    residuals = runs.start.residuals
    if not found.stays:
        weights = residual_weights(runs.errors(found.move, found.wait_s), apart, prior=prior)
        residuals = _joined(residuals, runs.layouts, weights, reach=prior.reach)
    made = runs.further.predicted(fitted, residuals)
    shares = [p.high_s / p.step_time_s - 1.0 - runs.start.band.base for p in made]
    before_them = [run.parts_share for run in runs.held.runs]
    return Calibration(
        profile=replace(fitted, name=name),
        before=tuple(np.expm1(before).tolist()),
        after=tuple(np.expm1(_errors(made)).tolist()),
        residuals=residuals,
        base_share=_base_share(deviation, [*before_them, *shares]),
        book=Book(
            start=runs.book.start,
            runs=runs.after(found.move, shares),
            covers=covers_with(runs.book, (case.scenario for case in cases)),
        ),
    )


def _means_of_jobs(jobs: Sequence[str]) -> FloatArray:
    """Weights that take the mean over the repeats of each job and layout, ``(jobs, n)``."""
    places: dict[str, list[int]] = {}
    for place, job in enumerate(jobs):
        places.setdefault(job, []).append(place)
    found = np.zeros((len(places), len(jobs)))
    for row, own in zip(found, places.values(), strict=True):
        row[own] = 1.0 / len(own)
    return found


def _errors(made: Sequence[Prediction]) -> FloatArray:
    return np.array([np.log(p.step_time_s / p.case.measured_step_s()) for p in made])


def _joined(
    known: Residuals | None, layouts: Sequence[MeasuredRun], weights: FloatArray, *, reach: float
) -> Residuals:
    """Add runs to those that a profile knows; runs with one layout are one run."""
    runs = {replace(run, weight=0.0): run for run in (known.runs if known else ())}
    for layout, more in zip(layouts, weights.tolist(), strict=True):
        so_far = runs.get(layout, layout)
        weight = min(max(so_far.weight + more, -MOST_WEIGHT), MOST_WEIGHT)
        runs[layout] = replace(so_far, weight=weight)
    return Residuals(reach=reach, runs=tuple(runs.values()))


def slopes_of(
    cases: Sequence[Case], *, profile: Callable[[Scenario, str], Profile] = profile_of
) -> Slopes:
    """How the errors of some runs change with the profile, by central differences."""
    runs = _Runs(cases=cases, profile=profile)
    start = runs.start().cluster
    moves = [
        (runs.errors(moved(start, unit)) - runs.errors(moved(start, -unit))) / (2.0 * _STEP)
        for unit in _STEP * np.eye(len(NUMBERS))
    ]
    handovers = _handovers(cases)
    measured = np.array([case.measured_step_s() for case in cases])
    step_s = np.exp(runs.errors(start)) * measured
    return Slopes(moves=np.stack(moves, axis=1), per_wait=handovers / step_s)


def apart_of(cases: Sequence[Case]) -> FloatArray:
    """Distances between the layouts of runs, ``(n, n)``; infinite between frameworks."""
    return _apart([layout_of_case(case) for case in cases])


def _apart(layouts: Sequence[MeasuredRun]) -> FloatArray:
    found = np.concatenate([traits_of_run(layout) for layout in layouts])
    frameworks = [layout.framework for layout in layouts]
    return np.where(np.equal.outer(frameworks, frameworks), distances(found, found), np.inf)


def _handovers(cases: Sequence[Case]) -> FloatArray:
    """Handovers of each run; runs may lay out their stages each in its way, grids may not."""
    return np.concatenate([num_handovers(PlanGrid.of([case.plan])) for case in cases])


def check_reach(cases: Sequence[Case]) -> None:
    """Refuse runs that are too far off to be what their row says: it may be in other units.

    A pipeline may be held up at every micro-batch, and then by many times its step: runs that the
    longest wait of the prior explains are not refused.

    Raises:
        UserError: ``run_out_of_reach`` for each run that is further off than :data:`MOST_OFF`.
    """
    problems = ProblemList()
    runs = _Runs(cases=cases, profile=profile_of)
    longest_s = usual_prior().wait_most_s
    errors = runs.errors(runs.start().cluster)
    waits_s = longest_s * _handovers(cases)
    for case, error, wait_s in zip(cases, errors.tolist(), waits_s.tolist(), strict=True):
        held_up = np.exp(error) + wait_s / case.measured_step_s()
        if error > np.log(MOST_OFF) or held_up < 1.0 / MOST_OFF:
            measured = case.measured_step_s()
            problems.add(
                "run_out_of_reach",
                where=case.row_id or case.source_id,
                value=f"{measured:.4g}",
                predicted=f"{measured * float(np.exp(error)):.4g}",
                most=MOST_OFF,
            )
    problems.raise_if_any()


def moved(start: ClusterProfile, move: FloatArray, wait_s: float = 0.0) -> ClusterProfile:
    """A profile with each number times the exponential of its move, and a wait added [s]."""
    factors = zip(NUMBERS, np.exp(move).tolist(), strict=True)
    numbers = {key: getattr(start, key) * factor for key, factor in factors}
    return replace(start, wait_s=start.wait_s + wait_s, **numbers)


def _base_share(deviation: float, parts_shares: Sequence[float]) -> float:
    """Share of the whole step in the band of further runs.

    The band of runs like these is as wide in the mean as they will scatter. Traffic, bubble and
    host have shares of their own in it: the step has the rest, and at least half.

    Args:
        deviation: of the logarithm of a further run like these.
        parts_shares: what traffic, bubble and host add for each of the runs.
    """
    whole = float(np.expm1(INSIDE * deviation))
    return max(whole - float(np.mean(parts_shares)), whole / 2.0)
