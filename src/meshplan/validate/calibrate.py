"""Fit the cluster profile to the times of a few measured runs.

How far the numbers of the profile move is inferred in :mod:`meshplan.validate.posterior`; here
are the errors of the runs, their slopes along each number, and the band that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.cost.handovers import num_handovers
from meshplan.cost.likeness import distances, traits
from meshplan.errors import ProblemList
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import (
    MOST_WEIGHT,
    SIZES,
    Band,
    ClusterProfile,
    MeasuredRun,
    Profile,
    Residuals,
)
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.names import to_text
from meshplan.space.plan import PlanGrid
from meshplan.validate.posterior import Posterior, fit, residual_weights
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.prior import NUMBERS, Prior, usual_prior
from meshplan.validate.rows import Case

__all__ = [
    "MOST_OFF",
    "Calibration",
    "Slopes",
    "apart_of",
    "calibrate",
    "check_reach",
    "moved",
    "slopes_of",
]

FloatArray = npt.NDArray[np.float64]

INSIDE = 1.2816
"""Deviations on either side of the middle that hold 80 % of a normal distribution."""
MOST_OFF = 20.0
"""Times by which a run may be faster or slower than predicted: beyond, it is probably another run
than its row says, or its time has another unit."""
_STEP = 0.1


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
    """

    profile: ClusterProfile
    before: tuple[float, ...]
    after: tuple[float, ...]
    residuals: Residuals | None
    base_share: float

    def document(self, *, sources: Sequence[str]) -> dict[str, Any]:
        """The profile as a mapping that a profile file holds."""
        names = (f.name for f in fields(ClusterProfile) if f.name not in ("name", "sources"))
        values = {name: float(f"{getattr(self.profile, name):.4g}") for name in names}
        found: dict[str, Any] = {
            "fitted": values,
            "fitted_by": "meshplan calibrate " + " ".join(sources),
            # runs of experts in few bits have scattered already as they do
            "band": {"base": round(self.base_share, 4), "experts": 0.0},
        }
        if self.residuals is not None:
            found["residuals"] = {
                "reach": float(f"{self.residuals.reach:.4g}"),
                "runs": [_plain(run) for run in self.residuals.runs],
            }
        return found


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


def calibrate(
    cases: Sequence[Case],
    *,
    name: str = "calibrated",
    profile: Callable[[Scenario, str], Profile] = profile_of,
    slopes: Slopes | None = None,
    prior: Prior | None = None,
) -> Calibration:
    """Fit the cluster profile to measured runs.

    Args:
        cases: one or more runs with a measured time, on one cluster.
        name: what the profile is called.
        profile: finds what would be used without the runs.
        slopes: those of the runs, where they are known.
        prior: how clusters differ; as learned from measured runs by default.
    """
    runs = _Runs(cases=cases, profile=profile)
    start = runs.start().cluster
    slopes = slopes or slopes_of(cases, profile=profile)
    before = runs.errors(start)
    prior, apart = prior or usual_prior(), apart_of(cases)

    def inferred(of: FloatArray) -> Posterior:
        """What the runs say once each row of ``of`` has made one run of them."""
        first = of.argmax(axis=1)
        return fit(
            lambda move, wait_s: of @ runs.errors(moved(start, move, wait_s)),
            slopes.moves[first],
            prior=prior,
            known=start.name != "default",
            share_per_wait=slopes.per_wait[first],
            apart=apart[np.ix_(first, first)],
        )

    found = inferred(np.eye(len(cases)))
    deviation = found.deviation(slopes.moves)
    if len(jobs := _means_of_jobs(cases, apart)) < len(cases):
        # that repeats of a run agree says nothing of how far other layouts are off
        once = inferred(jobs)
        deviation = max(deviation, once.deviation(slopes.moves[jobs.argmax(axis=1)]))
    fitted = moved(start, found.move, found.wait_s)
    residuals = runs.start().residuals
    if not found.stays:
        weights = residual_weights(runs.errors(fitted), apart, prior=prior)
        residuals = _joined(residuals, cases, weights, reach=prior.reach)
    made = runs.predicted(fitted, residuals)
    return Calibration(
        profile=replace(fitted, name=name),
        before=tuple(np.expm1(before).tolist()),
        after=tuple(np.expm1(_errors(made)).tolist()),
        residuals=residuals,
        base_share=_base_share(deviation, made, runs.start().band),
    )


def _means_of_jobs(cases: Sequence[Case], apart: FloatArray) -> FloatArray:
    """Weights that take the mean over the repeats of each job and layout, ``(jobs, n)``."""
    jobs: list[list[int]] = []
    for i, case in enumerate(cases):
        for job in jobs:
            other = cases[job[0]]
            if not apart[i, job[0]] and (case.scenario, case.plan) == (other.scenario, other.plan):
                job.append(i)
                break
        else:
            jobs.append([i])
    found = np.zeros((len(jobs), len(cases)))
    for row, job in zip(found, jobs, strict=True):
        row[job] = 1.0 / len(job)
    return found


def _errors(made: Sequence[Prediction]) -> FloatArray:
    return np.array([np.log(p.step_time_s / p.case.measured_step_s()) for p in made])


def _joined(
    known: Residuals | None, cases: Sequence[Case], weights: FloatArray, *, reach: float
) -> Residuals:
    """Add runs to those that a profile knows; runs with one layout are one run."""
    runs = {replace(run, weight=0.0): run for run in (known.runs if known else ())}
    for case, sizes, more in zip(cases, _traits_of(cases).tolist(), weights.tolist(), strict=True):
        plan = case.plan
        layout = MeasuredRun(
            framework=plan.framework.name.lower(),
            sizes=tuple(sizes[: len(SIZES)]),
            sp=plan.sp,
            recompute=to_text(plan.recompute),
            zero=plan.zero,
            weight=0.0,
        )
        so_far = runs.get(layout, layout)
        weight = min(max(so_far.weight + more, -MOST_WEIGHT), MOST_WEIGHT)
        runs[layout] = replace(so_far, weight=weight)
    return Residuals(reach=reach, runs=tuple(runs.values()))


def _plain(run: MeasuredRun) -> dict[str, Any]:
    """A run as a profile file holds it: whole numbers read as such."""
    return {
        "framework": run.framework,
        **{name: int(value) for name, value in zip(SIZES, run.sizes, strict=True)},
        "sp": run.sp,
        "recompute": run.recompute,
        "zero": run.zero,
        "weight": float(f"{run.weight:.4g}"),
    }


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
    found, frameworks = _traits_of(cases), [case.plan.framework for case in cases]
    return np.where(np.equal.outer(frameworks, frameworks), distances(found, found), np.inf)


def _traits_of(cases: Sequence[Case]) -> FloatArray:
    return np.concatenate([traits(case.scenario, PlanGrid.of([case.plan])) for case in cases])


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


def _base_share(deviation: float, made: Sequence[Prediction], band: Band) -> float:
    """Share of the whole step in the band of further runs.

    The band of runs like these is as wide in the mean as they will scatter. Traffic, bubble and
    host have shares of their own in it: the step has the rest, and at least half.

    Args:
        deviation: of the logarithm of a further run like these.
        made: the runs as predicted.
        band: shares that they were predicted with.
    """
    whole = float(np.expm1(INSIDE * deviation))
    of_parts = float(np.mean([p.high_s / p.step_time_s - 1.0 for p in made])) - band.base
    return max(whole - of_parts, whole / 2.0)
