"""Evaluate plans: memory first, then time for those that fit.

Grids are walked in blocks, so that the working set stays small however many plans there are.
Block borders do not matter: every cost function gives a plan the same numbers in any company.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import MemoryGrid, Verdict, peak_memory
from meshplan.cost.step import PARTS, StepGrid, step_time
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import PlanGrid

__all__ = [
    "Evaluation",
    "Screen",
    "blocks",
    "evaluate",
    "part_seconds",
    "pessimistic",
    "screen",
    "take",
]

BLOCK = 1 << 19

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def take(record: Any, index: npt.NDArray[np.integer | np.bool_]) -> Any:
    """The same entries of every array in a struct of arrays; other fields stay."""
    arrays = {
        f.name: value[index] if isinstance(value := getattr(record, f.name), np.ndarray) else value
        for f in fields(record)
    }
    return type(record)(**arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Exact numbers of some plans, entry by entry."""

    grid: PlanGrid
    memory: MemoryGrid
    time: StepGrid

    def __len__(self) -> int:
        return len(self.grid)

    def one(self, index: int) -> Evaluation:
        """The numbers of a single plan, still as arrays, of length one."""
        at = np.array([index])
        return Evaluation(
            grid=self.grid.take(at), memory=take(self.memory, at), time=take(self.time, at)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The legal plans with a memory verdict, and a bound of the time for those that fit.

    Attributes:
        grid: the legal plans.
        verdict: memory verdict of each, see :class:`~meshplan.cost.memory.Verdict`.
        peak_bytes: peak memory of each [bytes].
        bound_s: never above the pessimistic exact step time [s]; infinite for what cannot be
            ranked.
        num_evaluated: plans whose memory and time were both evaluated.
        elapsed_s: how long that took [s].
    """

    grid: PlanGrid
    verdict: IntArray
    peak_bytes: FloatArray
    bound_s: FloatArray
    num_evaluated: int
    elapsed_s: float


def evaluate(scenario: Scenario, grid: PlanGrid) -> Evaluation:
    """Memory and exact step time of each plan."""
    return Evaluation(
        grid=grid,
        memory=peak_memory(scenario, grid),
        time=step_time(scenario, grid, exact=True),
    )


def pessimistic(time: StepGrid) -> FloatArray:
    """The upper end of the error band of the step time [s], what plans are ranked by."""
    return np.asarray(time.high_s)


def part_seconds(result: Evaluation) -> dict[str, float]:
    """The parts of the step of an evaluation of length one [s]; they add up to the step."""
    return {part: float(getattr(result.time, part)[0]) for part in PARTS}


def blocks(grid: PlanGrid) -> Iterator[tuple[slice, PlanGrid]]:
    """Cut a grid into parts of bounded size, each with its place."""
    for start in range(0, len(grid), BLOCK):
        place = slice(start, min(start + BLOCK, len(grid)))
        whole = place.stop - place.start == len(grid)
        yield place, grid if whole else grid.take(np.arange(place.start, place.stop))


def screen(scenario: Scenario, grid: PlanGrid) -> Screen:
    """Judge every legal plan: does it fit, and if so how fast could it be at best."""
    began = perf_counter()
    verdict = np.empty(len(grid), dtype=np.int64)
    peak = np.empty(len(grid))
    for index, part in blocks(grid):
        memory = peak_memory(scenario, part)
        verdict[index], peak[index] = memory.verdict, memory.peak_bytes
    # plans that only just fit are ranked when nothing fits with room to spare
    fits = verdict == Verdict.FITS
    ranked = np.flatnonzero(fits if fits.any() else verdict == Verdict.TIGHT)
    bound = np.full(len(grid), np.inf)
    for index, part in blocks(grid.take(ranked)):
        bound[ranked[index]] = pessimistic(step_time(scenario, part))
    return Screen(
        grid=grid,
        verdict=verdict,
        peak_bytes=peak,
        bound_s=bound,
        num_evaluated=len(ranked),
        elapsed_s=perf_counter() - began,
    )
