r"""Fit the cluster profile to a few measured runs.

The numbers of the profile are found where the runs and what is known already agree best: with
one run they move together, with more they part.

.. math:: \min_x \sum_i \frac{c^2}{\sigma^2} \ln\left(1 + \frac{e_i(x)^2}{c^2}\right)
          + \sum_k \left(\frac{x_k - x_k^0}{w_k}\right)^2

with the error ``e`` of the logarithm of each step time, damped beyond ``c`` so that one odd run
does not move the others, the logarithm ``x`` of each number, the profile ``x0`` that would be
used without the runs, and the width ``w`` by which clusters differ from it: a profile that was
fitted to its cluster leaves less open than the default.

Few runs cannot always tell a slower cluster from a plan that the model gets wrong. Errors that
are no larger than repeats of a run move nothing, and from three runs on the numbers are fitted
without each run in turn and held against it: where that is clearly worse than the profile as it
is, the profile stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import ClusterProfile, Profile
from meshplan.inputs.scenario import Scenario
from meshplan.validate.predict import predict
from meshplan.validate.rows import Case

__all__ = ["Calibration", "calibrate"]

FloatArray = npt.NDArray[np.float64]

WIDTHS = {
    "gemm": 0.15,
    "attention": 0.2,
    "memory_bound": 0.2,
    "scale_up": 0.25,
    "scale_out": 0.3,
    "latency": 0.2,
    "launch": 0.2,
}
"""How much clusters differ, as the spread of the logarithm of each number."""
NOISE = 0.08
"""Spread of what the model leaves: repeats of a run, and what no number of a profile moves."""
KNOWN = 0.35
"""Width of a cluster that has a profile of its own over that of one that has none."""
REPEATS = 0.04
"""Mean error of the runs below which nothing moves: repeats of one run differ by as much."""
WORSE = 1.25
"""Times by which the error of runs left out may exceed that of the profile as it is; runs left
out of few are predicted from fewer still."""
_LEAST_RUNS = 3
_LARGEST_STEP = 2.0
"""Most that a number moves in one round, in widths of the prior."""
_STEP = 1e-3
_ROUNDS = 6


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


def calibrate(cases: Sequence[Case], *, name: str = "calibrated") -> Calibration:
    """Fit the cluster profile to measured runs.

    Args:
        cases: one or more runs with a measured time, on one cluster.
        name: what the profile is called.
    """
    start = profile_of(cases[0].scenario, cases[0].plan.framework.name.lower()).cluster
    x = _centre(start)
    before = error = _errors(cases, start, x)
    if _helps(cases, start, before):
        x = _search(cases, start)
        error = _errors(cases, start, x)
    fitted = replace(_with(start, x), name=name)
    spread = float(np.sqrt(np.mean(error**2) + NOISE**2))
    # 80 % of a normal distribution lie within 1.28 deviations; few runs say little of the rest
    base = 1.28 * spread * float(np.sqrt(1.0 + 3.0 / len(cases)))
    return Calibration(
        profile=fitted,
        before=tuple(np.expm1(before).tolist()),
        after=tuple(np.expm1(error).tolist()),
        base_share=base,
    )


def _helps(cases: Sequence[Case], start: ClusterProfile, before: FloatArray) -> bool:
    """Whether moving the numbers predicts runs left out about as well or better."""
    error = float(np.mean(np.abs(before)))
    if error < REPEATS or len(cases) < _LEAST_RUNS:
        return error >= REPEATS
    left = [_left_out(cases, start, index) for index in range(len(cases))]
    return float(np.mean(np.abs(left))) <= WORSE * error


def _left_out(cases: Sequence[Case], start: ClusterProfile, index: int) -> float:
    """Error of one run when the others alone are known."""
    others = [case for i, case in enumerate(cases) if i != index]
    return float(_errors([cases[index]], start, _search(others, start))[0])


def _centre(start: ClusterProfile) -> FloatArray:
    return np.log([getattr(start, key) for key in WIDTHS])


def _search(cases: Sequence[Case], start: ClusterProfile) -> FloatArray:
    """Find the numbers where runs and prior agree best (Gauss and Newton)."""
    known = 1.0 if start.name == "default" else KNOWN
    centre, ways = _centre(start), known * np.diag(list(WIDTHS.values()))
    moved = np.zeros(len(ways))
    error = _errors(cases, start, centre)
    reach = 2.0 * NOISE + abs(float(np.median(error)))
    cost = _cost(error, reach, moved)
    for _ in range(_ROUNDS):
        trust = np.sqrt(1.0 / (1.0 + (error / reach) ** 2)) / NOISE
        x = centre + moved @ ways
        slope = np.stack(
            [(_errors(cases, start, x + _STEP * way) - error) / _STEP for way in ways], axis=1
        )
        rows = np.concatenate([slope * trust[:, None], np.eye(len(ways))])
        step = np.linalg.lstsq(rows, np.concatenate([-error * trust, -moved]), rcond=None)[0]
        tried = moved + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
        tried_error = _errors(cases, start, centre + tried @ ways)
        tried_cost = _cost(tried_error, reach, tried)
        if tried_cost >= cost * (1.0 - 1e-3):
            break
        moved, error, cost = tried, tried_error, tried_cost
    return centre + moved @ ways


def _cost(error: FloatArray, reach: float, moved: FloatArray) -> float:
    fit = (reach / NOISE) ** 2 * np.sum(np.log1p((error / reach) ** 2))
    return float(fit + np.sum(moved**2))


def _with(start: ClusterProfile, x: FloatArray) -> ClusterProfile:
    return replace(start, **dict(zip(WIDTHS, np.exp(x).tolist(), strict=True)))


def _errors(cases: Sequence[Case], start: ClusterProfile, x: FloatArray) -> FloatArray:
    """Logarithm of predicted over measured step time."""
    cluster = _with(start, x)

    def profile(scenario: Scenario, framework: str) -> Profile:
        return replace(profile_of(scenario, framework), cluster=cluster)

    found = predict(cases, memory=False, profile=profile)
    return np.array([np.log(p.step_time_s / p.case.measured_step_s()) for p in found])
