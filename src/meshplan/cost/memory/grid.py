"""Peak memory of many plans at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.evaluator import Evaluator, Peaks
from meshplan.cost.memory.records import MemoryGrid, Verdict
from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.scenario import Scenario
from meshplan.space.crossed import CrossedGrid
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["Screened", "peak_memory", "screen_memory"]


def peak_memory(
    scenario: Scenario,
    grid: PlanGrid,
    *,
    behaviours: Mapping[Framework, FrameworkMemory] | None = None,
) -> MemoryGrid:
    """Find the peak memory of each plan: the worst event of the worst stage.

    Equation:
        ``peak = max over stages, events ((1 + f) x sum of lines + imbalance) + process groups``.

    Args:
        scenario: model, cluster and job.
        grid: plans, in any number; each is evaluated on its own.
        behaviours: framework behaviours other than the presets, such as of an old version.

    Returns:
        Peaks, verdicts and host memory, arrays of shape ``(num_plans,)``.

    Assumes:
        Balanced routing of experts up to the stated allowance; a pipeline's stages of equal
        composition peak on the earliest one.
    """
    evaluator = Evaluator(scenario, grid, behaviours=behaviours)
    order = evaluator.by_devices()
    place = np.empty(len(grid), dtype=np.intp)
    place[order] = np.arange(len(grid))
    return evaluator.memory(np.arange(len(grid)), evaluator.peaks(order).take(place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Verdicts of all pairs of a crossed grid, and the memory of those that may fit.

    Attributes:
        verdict: codes of :class:`Verdict`, ``(num_rows, num_modes)``.
    """

    verdict: npt.NDArray[np.int8]
    _evaluator: Evaluator
    _peaks: Peaks
    _place: npt.NDArray[np.intp]

    def take(self, pairs: npt.NDArray[np.intp]) -> MemoryGrid:
        """The memory of some pairs, none of which is out of memory."""
        num_modes = self.verdict.shape[1]
        row, mode = np.divmod(pairs, num_modes)
        peaks = self._peaks.take(self._place[row] * num_modes + mode)
        return self._evaluator.memory(row, peaks)


def screen_memory(scenario: Scenario, crossed: CrossedGrid) -> Screened:
    """Judge plans; see :func:`peak_memory`.

    Rows that run out of memory whatever they recompute are known by a bound: one backward pass on
    one device.

    Args:
        scenario: model, cluster and job.
        crossed: plans.
    """
    modes = crossed.modes if crossed.is_product else None
    evaluator = Evaluator(scenario, crossed.rows, modes=modes)
    able = evaluator.able()
    peaks = evaluator.peaks(able)
    verdict = np.full(crossed.legal.shape, int(Verdict.OOM), dtype=np.int8)
    verdict[able] = evaluator.verdict(able, peaks)
    place = np.full(len(crossed.rows), -1, dtype=np.intp)
    place[able] = np.arange(len(able))
    return Screened(verdict=verdict, _evaluator=evaluator, _peaks=peaks, _place=place)
