"""Predict cases without looking at what was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from meshplan.cost.bands import memory_low_high
from meshplan.cost.memory import Verdict, peak_memory
from meshplan.cost.step import PARTS, StepGrid, step_time
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import Band, Profile
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import PlanGrid
from meshplan.validate.memory import memory_as_measured
from meshplan.validate.rows import Case

__all__ = ["Prediction", "predict"]


@record
class Prediction:
    """What is predicted for one case.

    Attributes:
        case: the case.
        step_time_s: step time [s].
        low_s: lower end of its 80 % band [s].
        high_s: upper end of its 80 % band [s].
        parts: parts of the step by name [s].
        peak_bytes: peak memory of the worst stage [bytes].
        memory_bytes: the peak in the way in which it was measured [bytes]; 0 where it was not.
        memory_low_bytes: lower end of its 80 % band [bytes].
        memory_high_bytes: upper end of its 80 % band [bytes].
        fits: it is not called out of memory.
        called_fitting: it is called fitting, not merely tight.
    """

    case: Case
    step_time_s: float
    low_s: float
    high_s: float
    parts: dict[str, float]
    peak_bytes: float
    memory_bytes: float
    memory_low_bytes: float
    memory_high_bytes: float
    fits: bool
    called_fitting: bool

    @property
    def error(self) -> float:
        """Predicted over measured, minus one, of what was measured of the time."""
        assert self.case.measured is not None
        return self.case.predicted(self.step_time_s) / self.case.measured - 1.0

    @property
    def memory_error(self) -> float:
        """Predicted over measured peak memory, minus one."""
        assert self.case.measured_bytes is not None
        return self.memory_bytes / self.case.measured_bytes - 1.0


def predict(
    cases: Sequence[Case],
    *,
    memory: bool = True,
    profile: Callable[[Scenario, str], Profile] = profile_of,
) -> list[Prediction]:
    """Predict cases, those of one scenario together.

    Args:
        cases: what to predict.
        memory: predict memory too.
        profile: finds the profile of a framework in a scenario.

    Returns:
        One prediction per case, in order.
    """
    groups: dict[tuple[Scenario, tuple[int, ...]], list[int]] = defaultdict(list)
    for i, case in enumerate(cases):
        groups[(case.scenario, case.plan.stage_layers)].append(i)
    found: list[Prediction | None] = [None] * len(cases)
    for (scenario, _), indices in groups.items():
        grid = PlanGrid.of([cases[i].plan for i in indices])
        chosen = profile(scenario, cases[indices[0]].plan.framework.name.lower())
        time = step_time(scenario, grid, exact=True, profile=chosen)
        peak, verdict = np.zeros(len(grid)), np.full(len(grid), int(Verdict.FITS))
        if memory:
            result = peak_memory(scenario, grid)
            peak, verdict = result.peak_bytes, result.verdict
        for k, i in enumerate(indices):
            found[i] = _prediction(cases[i], time, k, float(peak[k]), int(verdict[k]), chosen.band)
    return [prediction for prediction in found if prediction is not None]


def _prediction(
    case: Case, time: StepGrid, k: int, peak: float, verdict: int, band: Band
) -> Prediction:
    values = {f.name: float(getattr(time, f.name)[k]) for f in fields(StepGrid)}
    memory = _memory(case)
    low, high = memory_low_high(band, np.array([memory]))
    return Prediction(
        case=case,
        step_time_s=values["step_time_s"],
        low_s=values["low_s"],
        high_s=values["high_s"],
        parts={name: values[name] for name in PARTS},
        peak_bytes=peak,
        memory_bytes=memory,
        memory_low_bytes=float(low[0]),
        memory_high_bytes=float(high[0]),
        fits=verdict != Verdict.OOM,
        called_fitting=verdict == Verdict.FITS,
    )


def _memory(case: Case) -> float:
    if case.measured_bytes is None:
        return 0.0
    return memory_as_measured(
        case.scenario,
        case.plan,
        kind=case.memory_kind,
        where=case.memory_where,
    )
