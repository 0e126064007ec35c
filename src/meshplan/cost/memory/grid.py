"""Peak memory of many plans at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.evaluator import Evaluator
from meshplan.cost.memory.judge import Judge, Peaks
from meshplan.cost.memory.records import MemoryGrid, Verdict
from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.crossed import CrossedGrid
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["Screened", "ScreenedMemory", "peak_memory", "screen_memory"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]


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
    return evaluator.judge.memory(np.arange(len(grid)), evaluator.peaks(order).take(place))


@record
class ScreenedMemory:
    """Memory of plans that were screened; most of them are never asked for more than their peak.

    Attributes:
        peak_bytes: see :class:`MemoryGrid`, ``(num_plans,)``.
        usable_bytes: see :class:`MemoryGrid`.
    """

    peak_bytes: FloatArray
    usable_bytes: float
    _parts: tuple[tuple[Judge, IndexArray, Peaks], ...]
    """Who judges the plans of each part, their place in what he knows, and their peaks."""

    def take(self, places: IndexArray) -> MemoryGrid:
        """All that is said of the memory of some of the plans."""
        found: list[tuple[IndexArray, MemoryGrid]] = []
        start = 0
        for judge, rows, peaks in self._parts:
            at = np.flatnonzero((places >= start) & (places < start + len(rows)))
            own = places[at] - start
            found.append((at, judge.memory(rows[own], peaks.take(own))))
            start += len(rows)
        order = np.argsort(np.concatenate([at for at, _ in found]))
        arrays = {
            f.name: np.concatenate([getattr(part, f.name) for _, part in found])[order]
            for f in fields(MemoryGrid)
            if f.name != "usable_bytes"
        }
        return MemoryGrid(**arrays, usable_bytes=self.usable_bytes)

    @classmethod
    def concatenate(cls, memories: Sequence[ScreenedMemory]) -> ScreenedMemory:
        """The memory of several grids, one after another."""
        return cls(
            peak_bytes=np.concatenate([memory.peak_bytes for memory in memories]),
            usable_bytes=memories[0].usable_bytes,
            _parts=tuple(part for memory in memories for part in memory._parts),
        )


@record
class Screened:
    """Verdicts of all pairs of a crossed grid, and the memory of those that may fit.

    Attributes:
        verdict: codes of :class:`Verdict`, ``(num_rows, num_modes)``.
    """

    verdict: npt.NDArray[np.int8]
    _judge: Judge
    _peaks: Peaks
    _place: IndexArray

    def take(self, rows: IndexArray, modes: IndexArray) -> ScreenedMemory:
        """The memory of some pairs of a row and a mode, none of which is out of memory."""
        peaks = self._peaks.take(self._place[rows] * self.verdict.shape[1] + modes)
        return ScreenedMemory(
            peak_bytes=peaks.peak_bytes,
            usable_bytes=self._judge.usable_bytes,
            _parts=((self._judge, rows, peaks),),
        )


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
    verdict[able] = evaluator.judge.verdict(able, peaks)
    place = np.full(len(crossed.rows), -1, dtype=np.intp)
    place[able] = np.arange(len(able))
    return Screened(verdict=verdict, _judge=evaluator.judge, _peaks=peaks, _place=place)
