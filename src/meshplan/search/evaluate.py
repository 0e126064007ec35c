"""Evaluate plans: memory first, then time for those that fit.

Grids are walked in blocks, so that the working set stays small however many plans there are.
Block borders do not matter: every cost function gives a plan the same numbers in any company.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import (
    MemoryGrid,
    Screened,
    ScreenedMemory,
    Verdict,
    peak_memory,
    screen_memory,
)
from meshplan.cost.step import PARTS, StepGrid, step_time
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.objective import field_order
from meshplan.search.progress import Progress, untold
from meshplan.space.crossed import CrossedGrid
from meshplan.space.enumerate import (
    Enumeration,
    Rejection,
    count_candidates,
    enumerate_parts,
)
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
    "widened",
]

_MEMORY_BLOCK = 1 << 19
"""Plans at a time: what they share is worked out once, so that memory wants many of them."""

FloatArray = npt.NDArray[np.float64]


def take(record: Any, index: npt.NDArray[np.integer | np.bool_]) -> Any:
    """The same entries of every array in a struct of arrays; other fields stay."""
    arrays = {
        f.name: value[index] if isinstance(value := getattr(record, f.name), np.ndarray) else value
        for f in fields(record)
    }
    return type(record)(**arrays)


@record
class Evaluation:
    """Exact numbers of some plans, entry by entry."""

    grid: PlanGrid
    memory: MemoryGrid
    time: StepGrid

    def __len__(self) -> int:
        return len(self.grid)

    def one(self, index: int) -> Evaluation:
        """The numbers of a single plan, still as arrays, of length one."""
        return self.take(np.array([index]))

    def take(self, index: npt.NDArray[np.integer]) -> Evaluation:
        """The numbers of some of the plans."""
        return Evaluation(
            grid=self.grid.take(index),
            memory=take(self.memory, index),
            time=take(self.time, index),
        )


@record
class Screen:
    """What is left of a space after every legal plan got its memory verdict.

    Attributes:
        grid: the plans that can be ranked: those that fit, or those that are tight where none
            fits.
        memory: their memory; None where there is no plan.
        smallest: where none can be ranked, the legal plan that lacks the least memory; empty
            when no plan is legal.
        num_candidates: size of the full product.
        num_legal: legal plans.
        num_fits: legal plans that fit.
        num_tight: legal plans that fit only just.
        rejected: what was refused, by rule.
        elapsed_s: time spent on the verdicts [s].
    """

    grid: PlanGrid
    memory: ScreenedMemory | None
    smallest: PlanGrid
    num_candidates: int
    num_legal: int
    num_fits: int
    num_tight: int
    rejected: Mapping[str, Rejection]
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


def blocks(grid: PlanGrid, *, size: int = _MEMORY_BLOCK) -> Iterator[tuple[slice, PlanGrid]]:
    """Cut a grid into parts of bounded size, each with its place."""
    for start in range(0, len(grid), size):
        place = slice(start, min(start + size, len(grid)))
        whole = place.stop - place.start == len(grid)
        yield place, grid if whole else grid.take(np.arange(place.start, place.stop))


def _row_blocks(plans: CrossedGrid) -> Iterator[CrossedGrid]:
    """Cut a product of plans into parts of bounded size."""
    size = max(1, _MEMORY_BLOCK // max(1, len(plans.modes)))
    if 0 < len(plans.rows) <= size:
        yield plans
        return
    for start in range(0, len(plans.rows), size):
        yield plans.part(start, min(start + size, len(plans.rows)))


class _Tally:
    """What is kept of the parts of a space as they go by."""

    def __init__(self) -> None:
        self.kept: dict[Verdict, list[tuple[PlanGrid, ScreenedMemory]]] = {
            Verdict.FITS: [],
            Verdict.TIGHT: [],
        }
        self.numbers = dict.fromkeys(Verdict, 0)
        self.num_candidates = 0
        self.rejected: dict[str, Rejection] = {}

    def note(self, part: Enumeration) -> None:
        """Count the candidates of a part."""
        self.num_candidates += part.num_candidates
        for rule, rejection in part.rejected.items():
            seen = self.rejected.get(rule)
            count = rejection.count + (seen.count if seen else 0)
            self.rejected[rule] = replace(seen or rejection, count=count)

    def add(self, plans: CrossedGrid, memory: Screened) -> None:
        """Sort plans by their verdict."""
        self.numbers[Verdict.OOM] += len(plans)
        for verdict, kept in self.kept.items():
            there = (memory.verdict == verdict) & plans.legal
            number = int(np.count_nonzero(there))
            self.numbers[verdict] += number
            self.numbers[Verdict.OOM] -= number
            # what is tight is asked for only where nothing fits
            if number and (verdict == Verdict.FITS or not self.numbers[Verdict.FITS]):
                pairs = np.nonzero(there)
                kept.append((plans.take(*pairs), memory.take(*pairs)))

    def ranked(self, empty: PlanGrid) -> tuple[PlanGrid, ScreenedMemory | None]:
        """The plans that can be ranked, with their memory."""
        fits = self.numbers[Verdict.FITS] > 0
        parts = self.kept[Verdict.FITS if fits else Verdict.TIGHT]
        if not parts:
            return empty, None
        grids, memories = zip(*parts, strict=True)
        return PlanGrid.concatenate(grids), ScreenedMemory.concatenate(memories)


_ANY_OFFLOAD = ("none", "optimizer", "optimizer+parameters")


def screen(scenario: Scenario, *, progress: Progress = untold) -> Screen:
    """Judge every legal plan: does it fit.

    Plans that offload are looked at where the user asks for them or nothing fits without.

    Args:
        scenario: model, cluster, job and what the search may choose from.
        progress: told how far it is.
    """
    first, *wider = widened(scenario)
    found = _screen(first, progress)
    looked_at = first
    for other in wider:
        if not found.num_fits:
            found, looked_at = _screen(other, untold), other
    return found if found.memory else replace(found, smallest=_smallest(looked_at))


def widened(scenario: Scenario) -> tuple[Scenario, ...]:
    """The scenario, and what to search next where nothing fits: the same with any offload."""
    if "offload" in scenario.axes:
        return (scenario,)
    return scenario, replace(scenario, axes={**scenario.axes, "offload": _ANY_OFFLOAD})


def _smallest(scenario: Scenario) -> PlanGrid:
    """The legal plan that lacks the least memory; empty when no plan is legal.

    Memory of the device against what is usable, or of the host against what it has, whichever is
    worse; of plans that lack the same the one that takes the least of the device.
    """
    host_bytes = scenario.cluster.host_memory_bytes
    least: tuple[tuple[float, float], PlanGrid] | None = None
    grid: PlanGrid | None = None
    for part in enumerate_parts(scenario):
        for _, grid in blocks(part.grid):
            memory = peak_memory(scenario, grid)
            wants = np.maximum(
                memory.peak_bytes / memory.usable_bytes, memory.host_bytes / host_bytes
            )
            peaks = np.where(wants == wants.min(), memory.peak_bytes, np.inf)
            key = float(wants.min()), float(peaks.min())
            if least is None or key < least[0]:
                alike = grid.take(np.flatnonzero(peaks == peaks.min()))
                least = key, alike.take(np.array([int(np.argmin(field_order(alike)))]))
        grid = part.grid if grid is None else grid
    assert grid is not None, "a scenario names a framework"
    return least[1] if least else grid


def _screen(scenario: Scenario, progress: Progress) -> Screen:
    tally, elapsed_s = _Tally(), 0.0
    num_candidates = count_candidates(scenario)
    empty: PlanGrid | None = None
    for part in enumerate_parts(scenario):
        began = perf_counter()
        tally.note(part)
        for plans in part.crossed:
            empty = plans.rows.take(np.empty(0, dtype=np.int64)) if empty is None else empty
            for block in _row_blocks(plans):
                tally.add(block, screen_memory(scenario, block))
        progress(tally.num_candidates / max(num_candidates, 1))
        elapsed_s += perf_counter() - began
    assert empty is not None, "a scenario names a framework"
    grid, memory = tally.ranked(empty)
    return Screen(
        grid=grid,
        memory=memory,
        smallest=empty,
        num_candidates=tally.num_candidates,
        num_legal=sum(tally.numbers.values()),
        num_fits=tally.numbers[Verdict.FITS],
        num_tight=tally.numbers[Verdict.TIGHT],
        rejected=tally.rejected,
        elapsed_s=elapsed_s,
    )
