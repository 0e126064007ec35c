r"""Fit the cluster profile to a few measured runs.

Three runs cannot carry seven numbers. So the numbers move together, along few directions: first
one speed of the whole cluster, then, where the runs ask for it, the network apart from the rest,
and from four runs on attention and memory-bound kernels apart from the products. Along ``p``
directions the moves ``t`` are

.. math:: \min_t \sum_i e_i(t)^2 + \sum_k \left(\frac{\sigma_0 t_k}{w_k}\right)^2

with the error ``e`` of the logarithm of each step time and the width ``w`` by which clusters
differ along a direction. Then they are shrunk towards the profile as it is, by the positive part
of a rule of James and Stein's form

.. math:: 1 - \frac{c_p \sigma^2}{\sum_i (e_i(0) - e_i(t))^2}

where ``sigma`` is the spread of what the moves leave of the errors and ``sigma_0`` together, and
``c_p`` the 95 % quantile of chi squared, where theirs has ``p - 2``: nothing moves where as large
a shift would come from the spread of the runs alone, one time in twenty. A further direction is
taken where it explains more than chance would, and the runs, each predicted from the others, are
not predicted clearly worse.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.errors import ProblemList
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import ClusterProfile, Profile
from meshplan.inputs.scenario import Scenario
from meshplan.validate.predict import predict
from meshplan.validate.rows import Case

__all__ = ["MOST_OFF", "Calibration", "calibrate", "check_reach"]

FloatArray = npt.NDArray[np.float64]

NUMBERS = ("gemm", "attention", "memory_bound", "scale_up", "scale_out", "latency", "launch")
"""Numbers of a cluster profile that runs move."""
NOISE = 0.08
"""Spread that the band has beside what is left of the runs that were fitted: others lie further."""
DIRECTIONS: tuple[tuple[tuple[str, ...], tuple[str, ...], float], ...] = (
    (("gemm", "attention", "memory_bound", "scale_up", "scale_out"), ("latency", "launch"), 1.0),
    (("scale_up", "scale_out"), ("latency",), 0.3),
    (("attention", "memory_bound"), (), 0.2),
)
"""What moves together, by the same factor up and down, and how much clusters differ in it."""
LAYOUTS = 0.06
"""Spread of the errors of the layouts of one sweep, as the sweeps of the accuracy page have it
(0.05 to 0.06 by source): what no number of a cluster profile moves."""
LAYOUT_RUNS = 3
"""Runs that this spread counts for beside that of the runs themselves, which few tell badly."""
CHANCE = (3.84, 5.99, 7.81)
"""Squared shift, in units of the spread, that chance alone exceeds one time in twenty: the 95 %
quantiles of chi squared with one, two and three degrees of freedom."""
WORSE = 1.25
"""Times by which the error of runs left out may grow with a further direction: of few runs, those
left out are predicted from fewer still."""
MOST_OFF = 20.0
"""Times by which a run may be faster or slower than predicted: beyond, it is another run than its
row says, or its time has another unit, and no profile of a cluster explains it."""
_STEP = 0.02
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A cluster profile fitted to runs.

    Attributes:
        profile: the profile.
        before: errors of the runs with the profile that would be used without them, predicted
            over measured minus one.
        after: the same with the fitted profile.
        base_share: half width of the 80 % band as a share of the step.
    """

    profile: ClusterProfile
    before: tuple[float, ...]
    after: tuple[float, ...]
    base_share: float

    def document(self, *, sources: Sequence[str]) -> dict[str, Any]:
        """The profile as a mapping that a profile file holds."""
        names = (f.name for f in fields(ClusterProfile) if f.name not in ("name", "sources"))
        values = {name: float(f"{getattr(self.profile, name):.4g}") for name in names}
        return {
            "fitted": values,
            "fitted_by": "meshplan calibrate " + " ".join(sources),
            "band": {"base": round(self.base_share, 4)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Measured runs, and the profiles that would be used without them."""

    cases: Sequence[Case]
    profile: Callable[[Scenario, str], Profile]

    def start(self) -> Profile:
        """The profile that would be used without the runs."""
        first = self.cases[0]
        return self.profile(first.scenario, first.plan.framework.name.lower())

    def errors(self, moved: FloatArray) -> FloatArray:
        """Logarithm of predicted over measured step time, with the numbers moved."""
        cluster = _with(self.start().cluster, moved)

        def profile(scenario: Scenario, framework: str) -> Profile:
            return replace(self.profile(scenario, framework), cluster=cluster)

        found = predict(self.cases, memory=False, profile=profile)
        return np.array([np.log(p.step_time_s / p.case.measured_step_s()) for p in found])


def calibrate(
    cases: Sequence[Case],
    *,
    name: str = "calibrated",
    profile: Callable[[Scenario, str], Profile] = profile_of,
) -> Calibration:
    """Fit the cluster profile to measured runs.

    Args:
        cases: one or more runs with a measured time, on one cluster.
        name: what the profile is called.
        profile: finds what would be used without the runs.
    """
    runs = _Runs(cases=cases, profile=profile)
    start = runs.start()
    before = runs.errors(np.zeros(len(NUMBERS)))
    moved = _moves(runs, before)
    error = runs.errors(moved)
    spread = float(np.sqrt(np.mean(error**2) + NOISE**2))
    # 80 % of a normal distribution lie within 1.28 deviations; few runs say little of the rest
    base = 1.28 * spread * float(np.sqrt(1.0 + 3.0 / len(cases)))
    if not moved.any() and np.abs(np.expm1(before)).max() <= start.band.base:
        base = start.band.base  # runs that lie inside the band as it is say nothing against it
    return Calibration(
        profile=replace(_with(start.cluster, moved), name=name),
        before=tuple(np.expm1(before).tolist()),
        after=tuple(np.expm1(error).tolist()),
        base_share=base,
    )


def check_reach(cases: Sequence[Case]) -> None:
    """Refuse runs that no profile of a cluster explains: what a person gives may be in other units.

    Raises:
        UserError: ``run_out_of_reach`` for each run that is further off than :data:`MOST_OFF`.
    """
    problems = ProblemList()
    errors = _Runs(cases=cases, profile=profile_of).errors(np.zeros(len(NUMBERS)))
    for case, error in zip(cases, errors.tolist(), strict=True):
        if abs(error) > np.log(MOST_OFF):
            measured = case.measured_step_s()
            problems.add(
                "run_out_of_reach",
                where=case.row_id or case.source_id,
                value=f"{measured:.4g}",
                predicted=f"{measured * float(np.exp(error)):.4g}",
                most=MOST_OFF,
            )
    problems.raise_if_any()


def _moves(runs: _Runs, before: FloatArray) -> FloatArray:
    """How far to move each number: along as many directions as the runs can tell apart."""
    best, known, rest = np.zeros(len(NUMBERS)), np.inf, before
    for num in range(1, len(DIRECTIONS) + 1):
        if num > 1 and len(runs.cases) <= num:
            break
        ways = np.array([_way(*direction[:2]) for direction in DIRECTIONS[:num]])
        widths = np.array([direction[2] for direction in DIRECTIONS[:num]])
        slope, move = _newton(runs, before, ways, widths)
        effect = runs.errors(move @ ways) - before
        left_out = _left_out(before, slope, widths)
        gain = float(rest @ rest) - float((before + effect) @ (before + effect))
        by_chance = CHANCE[0] * _spread(before + effect, num)
        if num > 1 and (left_out > WORSE * known or gain < by_chance):
            break
        known, rest = left_out, before + effect
        best = _shrunk(before, effect, num) * (move @ ways)
    return best


def _way(up: Collection[str], down: Collection[str]) -> FloatArray:
    return np.array([float(key in up) - float(key in down) for key in NUMBERS])


def _newton(
    runs: _Runs, before: FloatArray, ways: FloatArray, widths: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Slopes of the errors along the directions, and the moves where runs and prior agree."""
    move, error = np.zeros(len(ways)), before
    for _ in range(_ROUNDS):
        at = move @ ways
        slope = np.stack([(runs.errors(at + _STEP * way) - error) / _STEP for way in ways], axis=1)
        move = _ridge(error - slope @ move, slope, widths)
        error = runs.errors(move @ ways)
    return slope, move


def _ridge(error: FloatArray, slope: FloatArray, widths: FloatArray) -> FloatArray:
    """The moves that leave least of some errors, held back as far as clusters are alike."""
    normal = slope.T @ slope + np.diag((LAYOUTS / widths) ** 2)
    return np.asarray(-np.linalg.solve(normal, slope.T @ error), dtype=np.float64)


def _shrunk(before: FloatArray, effect: FloatArray, num: int) -> float:
    """Share of the moves that more than chance asks for."""
    asked = CHANCE[num - 1] * _spread(before + effect, num)
    return max(0.0, 1.0 - asked / max(float(effect @ effect), 1e-12))


def _spread(left: FloatArray, num: int) -> float:
    """Squared spread of the errors that moves along some directions leave, at least the usual."""
    free = LAYOUT_RUNS + max(len(left) - num, 0)
    found = (LAYOUT_RUNS * LAYOUTS**2 + float(left @ left)) / free
    return max(LAYOUTS**2, found)


def _left_out(before: FloatArray, slope: FloatArray, widths: FloatArray) -> float:
    """Mean absolute error of each run predicted from the others, with errors linear in moves."""
    if len(before) == 1:
        return float(np.abs(before[0]))
    found = []
    for index in range(len(before)):
        others = np.arange(len(before)) != index
        move = _ridge(before[others], slope[others], widths)
        share = _shrunk(before[others], slope[others] @ move, len(widths))
        found.append(abs(float(before[index] + share * (slope[index] @ move))))
    return float(np.mean(found))


def _with(start: ClusterProfile, moved: FloatArray) -> ClusterProfile:
    """A profile with each number times the exponential of its move."""
    factors = zip(NUMBERS, np.exp(moved).tolist(), strict=True)
    return replace(start, **{key: getattr(start, key) * factor for key, factor in factors})
