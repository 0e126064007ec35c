"""A cluster profile from a trace: what this cluster really does.

A step time alone moves all numbers of a profile together. A trace tells them apart: compute time
is the speed of kernels, collectives without their waiting are the speed of links. What they say
is inferred as for runs of which the step time alone is known
(:mod:`meshplan.validate.posterior`), with errors whose noise is known: parts that were measured
by themselves decide, the step moves what they leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from meshplan.inputs.profile import Profile
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import Plan
from meshplan.validate.calibrate import Calibration, moved
from meshplan.validate.held import Book, book_of, covers_with
from meshplan.validate.posterior import INSIDE, Posterior, fit
from meshplan.validate.prior import NUMBERS, usual_prior

__all__ = ["TraceCalibration", "calibrate_run"]

FloatArray = npt.NDArray[np.float64]

_STEP = 0.02


@record
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
    parts = _Parts(scenario, plan, start, before)
    found = parts.fit()
    fitted = parts.profile(found.move)
    after = compare(run, scenario, plan, profile=fitted)
    assert after is not None
    if abs(_error(after)) > abs(_error(before)):
        # its parts contradict each other: nothing is learned from such a step
        fitted, after = start, before
    errors = [_error(before), _error(after)]
    book = book_of(scenario)
    # one step says nothing of how steps of other plans scatter: that is as the prior has it
    spread = float(np.hypot(np.log1p(errors[1]), measure_constant("step_noise")))
    return TraceCalibration(
        calibration=Calibration(
            profile=replace(fitted.cluster, name=name),
            before=(errors[0],),
            after=(errors[1],),
            residuals=start.residuals,
            base_share=float(np.expm1(INSIDE * spread)),
            # a trace tells more than the time of its step: runs cannot be fitted again without it
            book=Book(start="", runs=book.runs, covers=covers_with(book, (scenario,))),
        ),
        before=before,
        after=after,
    )


def _error(found: Comparison) -> float:
    assert found.step.predicted_s is not None and found.step.measured_s is not None
    return found.step.predicted_s / found.step.measured_s - 1.0


class _Parts:
    """What a step is made of, predicted and measured."""

    def __init__(
        self, scenario: Scenario, plan: Plan, start: Profile, measured: Comparison
    ) -> None:
        self._scenario, self._plan, self._start, self._measured = scenario, plan, start, measured
        most = measure_constant("fault_factor")
        self._collectives = [
            one for one in measured.collectives if one.measured_s <= most * one.predicted_s
        ]

    def fit(self) -> Posterior:
        """Find where parts and prior agree best."""
        none = np.zeros(len(NUMBERS))
        slopes = [
            (self.errors(unit) - self.errors(-unit)) / (2.0 * _STEP)
            for unit in _STEP * np.eye(len(NUMBERS))
        ]
        noise = np.full(len(self.errors(none)), measure_constant("part_noise"))
        noise[0] = measure_constant("step_noise")
        return fit(
            lambda move, _: self.errors(move),
            np.stack(slopes, axis=1),
            prior=usual_prior(),
            known=self._start.cluster.name != "default",
            noise=noise,
        )

    def profile(self, move: FloatArray) -> Profile:
        """The profile with its numbers moved."""
        return replace(self._start, cluster=moved(self._start.cluster, move))

    def errors(self, move: FloatArray) -> FloatArray:
        """Logarithm of predicted over measured: the step, its computation, its collectives."""
        profile, measured = self.profile(move), self._measured
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
            found.append(np.log(self._collective_s(one, profile) / one.measured_s))
        return np.array(found)

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
