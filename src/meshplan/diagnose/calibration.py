r"""A cluster profile from a trace: what this cluster really does.

A step time alone moves all numbers of a profile together. A trace tells them apart: compute time
is the speed of kernels, collectives without their waiting are the speed of links.

.. math:: \min_x \sum_i \left(\frac{\ln p_i(x) - \ln m_i}{\sigma_i}\right)^2
          + \sum_k \left(\frac{x_k - x_k^0}{w_k}\right)^2

over the logarithms ``x`` of the profile's numbers, with each predicted part ``p``, its measure
``m`` and its noise, and the widths ``w`` by which clusters differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.compare import (
    ComparedCollective,
    Comparison,
    compare,
    predicted_collective_s,
    predicted_parts,
)
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.records import RunMeasures
from meshplan.errors import UserError
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import ClusterProfile, Profile
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Plan
from meshplan.validate.calibrate import NOISE, Calibration

__all__ = ["TraceCalibration", "calibrate_run"]

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
KNOWN = 0.35
"""Width of a cluster that has a profile of its own over that of one that has none."""
_STEP = 1e-3
_ROUNDS = 6
_FARTHEST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCalibration:
    """A profile fitted to a trace.

    Attributes:
        calibration: the profile and the errors of the step before and after.
        before: the comparison with the profile that would be used without the trace.
        after: the comparison with the fitted profile.
    """

    calibration: Calibration
    before: Comparison
    after: Comparison

    def document(self, *, sources: Sequence[str]) -> dict[str, Any]:
        """The profile as a mapping that a profile file holds."""
        found = self.calibration.document(sources=sources)
        return {**found, "fitted_by": "meshplan diagnose --calibrate " + " ".join(sources)}


def calibrate_run(
    run: RunMeasures, scenario: Scenario, plan: Plan, *, name: str = "calibrated"
) -> TraceCalibration:
    """Fit the cluster profile to the parts of a measured step.

    Args:
        run: the run.
        scenario: model, cluster and job.
        plan: the plan that it followed.
        name: what the profile is called.

    Raises:
        UserError: ``trace.no_step`` when no step was measured.
    """
    start = profile_of(scenario, plan.framework.name.lower())
    before = compare(run, scenario, plan, profile=start)
    if before is None or not before.step.measured_s:
        raise UserError.of("trace.no_step", where="diagnose")
    fit = _Fit(scenario, plan, start, before)
    fitted = fit.profile(fit.search())
    after = compare(run, scenario, plan, profile=fitted)
    assert after is not None
    if abs(_error(after)) > abs(_error(before)):
        # its parts contradict each other: nothing is learned from such a step
        fitted, after = start, before
    errors = [_error(before), _error(after)]
    spread = float(np.sqrt(np.log1p(errors[1]) ** 2 + NOISE**2))
    wide = measure_constant("band_deviations") * measure_constant("one_run_factor")
    return TraceCalibration(
        calibration=Calibration(
            profile=replace(fitted.cluster, name=name),
            before=(errors[0],),
            after=(errors[1],),
            base_share=wide * spread,
        ),
        before=before,
        after=after,
    )


def _error(found: Comparison) -> float:
    assert found.step.predicted_s is not None and found.step.measured_s is not None
    return found.step.predicted_s / found.step.measured_s - 1.0


class _Fit:
    """Gauss and Newton over the logarithms of the profile's numbers."""

    def __init__(
        self, scenario: Scenario, plan: Plan, start: Profile, measured: Comparison
    ) -> None:
        self._scenario, self._plan, self._start, self._measured = scenario, plan, start, measured
        most = measure_constant("fault_factor")
        self._collectives = [
            one for one in measured.collectives if one.measured_s <= most * one.predicted_s
        ]
        self._centre = np.log([getattr(start.cluster, key) for key in WIDTHS])
        known = 1.0 if start.cluster.name == "default" else KNOWN
        self._width = np.array(list(WIDTHS.values())) * known

    def profile(self, x: FloatArray) -> Profile:
        """The profile with other numbers."""
        numbers = dict(zip(WIDTHS, np.exp(x).tolist(), strict=True))
        cluster: ClusterProfile = replace(self._start.cluster, **numbers)
        return replace(self._start, cluster=cluster)

    def residuals(self, x: FloatArray) -> FloatArray:
        """Logarithm of predicted over measured: the step, its computation, its collectives.

        Each over its noise: parts that were measured by themselves decide, the step moves what
        they leave open.
        """
        profile, measured = self.profile(x), self._measured
        parts = predicted_parts(self._scenario, self._plan, profile)
        step_s = measured.step.measured_s or 0.0
        found = [np.log(parts["step"] / step_s)]
        compute = sum(
            p.measured_s or 0.0
            for p in measured.parts
            if p.code in ("compute", "recompute", "optimizer")
        )
        if compute > measure_constant("compared_share") * step_s:
            predicted = parts["compute"] + parts["recompute"] + parts["optimizer"]
            found.append(np.log(predicted / compute))
        for one in self._collectives:
            seconds = self._collective_s(one, profile)
            found.append(np.log(seconds / one.measured_s))
        noise = np.full(len(found), measure_constant("part_noise"))
        noise[0] = measure_constant("step_noise")
        weighted: FloatArray = np.array(found) / noise
        return weighted

    def _collective_s(self, one: ComparedCollective, profile: Profile) -> float:
        """A collective under another profile, scaled from the mean of its sizes."""

        def at(chosen: Profile) -> float:
            return predicted_collective_s(
                self._scenario,
                chosen,
                one.kind,
                group=(one.group_size, one.stride),
                message_bytes=one.message_bytes,
            )

        return one.predicted_s * at(profile) / at(self._start)

    def search(self) -> FloatArray:
        """Find where parts and prior agree best."""
        x = self._centre.copy()
        error = self.residuals(x)
        for _ in range(_ROUNDS):
            slope = np.stack(
                [(self.residuals(x + self._unit(k)) - error) / _STEP for k in range(len(x))],
                axis=1,
            )
            rows = np.concatenate([slope * self._width, np.eye(len(x))])
            target = np.concatenate([-error, -(x - self._centre) / self._width])
            move = np.linalg.lstsq(rows, target, rcond=None)[0] * self._width
            x = x + np.clip(move, -_FARTHEST, _FARTHEST)
            error = self.residuals(x)
            if float(np.abs(move).max()) < _STEP:
                break
        return x

    def _unit(self, k: int) -> FloatArray:
        step = np.zeros(len(self._centre))
        step[k] = _STEP
        return step
