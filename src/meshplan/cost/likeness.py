r"""How alike the layouts of plans and of measured runs are, and what plans take by runs like them.

Runs with layouts that are alike run the same kernels and send the same messages, and miss alike.
What a calibrated profile leaves of its runs is handed on to plans by their distance,

.. math:: \ln \frac{t}{t_{profile}} = -\sum_i w_i e^{-d_i / \ell}

the mean of a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, equation 2.25).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.inputs.profile import MOST_WEIGHT, SIZES, MeasuredRun, Profile
from meshplan.inputs.scenario import Scenario
from meshplan.space.names import from_text
from meshplan.space.plan import PlanGrid, Recompute

__all__ = ["distances", "time_of_runs_alike", "traits", "traits_of_run"]

FloatArray = npt.NDArray[np.float64]


def traits(scenario: Scenario, grid: PlanGrid) -> FloatArray:
    """Sizes and codes of settings that plans are compared by, ``(num_plans, 10)``."""
    tokens = grid.micro_batch * scenario.job.seq_len
    hidden = np.full(len(grid), scenario.model.hidden)
    sizes = (grid.tp, grid.pp, grid.vpp, grid.cp, grid.ep, tokens, hidden)
    settings = (grid.sp, grid.recompute, grid.zero)
    return np.stack([*sizes, *settings], axis=1).astype(np.float64)


def distances(some: FloatArray, others: FloatArray) -> FloatArray:
    """Doublings by which sizes differ, a setting that differs counting as one.

    Args:
        some: traits ``(n, 10)``.
        others: traits ``(m, 10)``.

    Returns:
        ``(n, m)``.
    """
    found = np.zeros((len(some), len(others)))
    for place in range(len(SIZES)):
        doublings = (np.log2(of[:, place]) for of in (some, others))
        found += np.abs(np.subtract.outer(*doublings))
    for place in range(len(SIZES), some.shape[1]):
        found += np.not_equal.outer(some[:, place], others[:, place])
    return found


def time_of_runs_alike(scenario: Scenario, grid: PlanGrid, profile: Profile) -> FloatArray | None:
    """Times by which runs like each plan took longer than the numbers of the profile say.

    Runs of another framework say nothing. Many runs alike add up, to no more than a single one
    may weigh.

    Args:
        scenario: model, cluster and job.
        grid: plans of the profile's framework.
        profile: whose residuals count.

    Returns:
        Factors ``(num_plans,)``; None where no run says anything.
    """
    if profile.residuals is None:
        return None
    framework = profile.framework.framework
    runs = [run for run in profile.residuals.runs if run.framework == framework]
    if not runs:
        return None
    own, missed = traits(scenario, grid), np.zeros(len(grid))
    for run in runs:
        apart = distances(own, traits_of_run(run))[:, 0]
        missed += run.weight * np.exp(-apart / profile.residuals.reach)
    factor: FloatArray = np.exp(-np.clip(missed, -MOST_WEIGHT, MOST_WEIGHT))
    return factor


def traits_of_run(run: MeasuredRun) -> FloatArray:
    """Traits of a run, ``(1, 10)``."""
    recompute = from_text(Recompute, run.recompute, where="recompute")
    return np.array([[*run.sizes, run.sp, recompute, run.zero]], dtype=np.float64)
