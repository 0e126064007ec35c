"""Peak memory of many plans at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import factor
from meshplan.cost.memory.devices import LAYOUT_FIELDS, DeviceTable
from meshplan.cost.memory.lines import Total, totals
from meshplan.cost.memory.records import Event, MemoryGrid, Verdict
from meshplan.cost.memory.rows import MODE_FIELDS, MovingRows, Plans, StandingRows
from meshplan.cost.memory.shapes import Behaviours, FloatArray, rounded
from meshplan.cost.memory.stage import LOSS_EVENTS, event_lines
from meshplan.inputs.framework import FrameworkMemory, MemoryConstants
from meshplan.inputs.load.framework import load_memory_constants, memory_behaviour
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["Evaluator", "peak_memory"]

IntArray = npt.NDArray[np.int64]
GRID_FIELDS = tuple(f.name for f in fields(PlanGrid) if f.name != "stage_layers")
_MOST_PAIRS_PER_PLAN = 2
_BLOCK = 1 << 15
"""Pairs of a plan and a way to recompute that are added up at a time, and stay in the cache."""


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
    crossed = _Crossed.of(grid)
    evaluator = Evaluator(scenario, crossed.grid, behaviours=behaviours, modes=crossed.modes)
    share, _ = evaluator.overhead()
    sums = _Sums(evaluator)
    shape = evaluator.shape
    peak, allocated, offloaded = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    worst = np.zeros(shape, dtype=np.int64)
    for device, plans in evaluator.with_devices():
        needed, highest = sums.of(plans, device, share[plans, None])
        before = peak[plans]
        higher = highest > before
        peak[plans] = np.where(higher, highest, before)
        allocated[plans] = np.maximum(allocated[plans], needed)
        worst[plans] = np.where(higher, evaluator.stage(plans, device)[:, None], worst[plans])
        offloaded[plans] = np.maximum(offloaded[plans], evaluator.offloaded(plans, device))
    return crossed.spread(evaluator.judge(peak, allocated, worst, offloaded))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crossed:
    """A grid as plans without a way to recompute, each crossed with the same few ways.

    Attributes:
        grid: the plans; only what does not say how they recompute is meaningful.
        modes: the ways to recompute; None where every plan has its own alone.
        place: of each plan of the original grid among all pairs; None where it is its own.
    """

    grid: PlanGrid
    modes: PlanGrid | None
    place: IntArray | None

    @classmethod
    def of(cls, grid: PlanGrid) -> _Crossed:
        """Look for the pairs; a grid in which most of them are missing stays as it is."""
        modes = factor(grid, MODE_FIELDS)
        if modes.inverse is not None:
            rest = factor(grid, [name for name in GRID_FIELDS if name not in MODE_FIELDS])
            num_pairs = len(rest.grid) * len(modes.grid)
            if num_pairs <= _MOST_PAIRS_PER_PLAN * len(grid):
                place = rest.places * len(modes.grid) + modes.inverse
                return cls(grid=rest.grid, modes=modes.grid, place=place)
        return cls(grid=grid, modes=None, place=None)

    def spread(self, pairs: MemoryGrid) -> MemoryGrid:
        """The memory of the plans of the original grid."""
        arrays = {
            f.name: value.ravel() if self.place is None else value.ravel()[self.place]
            for f in fields(pairs)
            if isinstance(value := getattr(pairs, f.name), np.ndarray)
        }
        return replace(pairs, **arrays)  # type: ignore[arg-type]


class _Sums:
    """Totals of the events of a grid, in the two tables."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._standing, self._moving = evaluator.standing, evaluator.moving
        moving = self._moving.moving
        lines = event_lines(self._standing.standing, moving)
        with_head = evaluator.table.head[self._moving.device]
        loss = totals(lines[event] for event in LOSS_EVENTS)
        self._imbalance = moving.imbalance
        even = (Event.BACKWARD_END, Event.REDUCTION, Event.OPTIMIZER, Event.LOADING)
        self._even = totals(lines[event] for event in even)
        self._uneven = [
            *totals(lines[event] for event in (Event.FORWARD, Event.BACKWARD)),
            *(Total(one.states, _only(with_head, one.activations)) for one in loss),
        ]

    def of(self, plans: Plans, device: int, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What the n-th device needs for certain at its fullest, and with its allowances.

        Fragmentation grows with the total, so that of the events with the same allowance for
        imbalance the largest is the worst.
        """
        states, moving = self._standing.of(plans, device), self._moving.of(plans, device)
        even = _largest(self._even, states, moving)
        most = _largest(self._uneven, states, moving)
        needed = np.maximum(even, most)
        if self._imbalance is None:
            return needed, needed + rounded(share * needed)
        uneven = most + rounded(share * most) + self._imbalance[moving]
        return needed, np.maximum(even + rounded(share * even), uneven)


def _only(where: npt.NDArray[np.bool_], table: FloatArray | None) -> FloatArray:
    """An event that happens on some devices alone."""
    assert table is not None, "the loss needs activations"
    return np.where(where[:, None], table, -np.inf)


def _largest(sums: Sequence[Total], states: IntArray, moving: IntArray) -> FloatArray:
    """The largest of some totals at rows of the two tables."""
    without = [total.states[states, None] for total in sums if total.activations is None]
    most: FloatArray | None = without[0] if without else None
    for total in sums:
        if total.activations is not None:
            value = total.activations[moving]
            value += total.states[states, None]
            most = value if most is None else np.maximum(most, value)
    assert most is not None, "a step has events"
    return most


class Evaluator:
    """The tables of a grid.

    Args:
        scenario: model, cluster and job.
        grid: plans.
        behaviours: framework behaviours other than the presets.
        modes: ways to recompute that are looked at for each plan; None for the plan's own.
        every: look at every device of a pipeline and line by line, and not only at those that
            can hold the most.

    Attributes:
        table: devices of the layouts of the grid.
        shape: number of plans and of ways to recompute.
        standing: what devices hold whatever passes through them.
        moving: what passes through them.
        behaviours: of the framework of each plan.
    """

    def __init__(
        self,
        scenario: Scenario,
        grid: PlanGrid,
        *,
        behaviours: Mapping[Framework, FrameworkMemory] | None = None,
        modes: PlanGrid | None = None,
        every: bool = False,
    ) -> None:
        self._scenario, self._grid = scenario, grid
        records = _records(scenario, grid, behaviours)
        constants: MemoryConstants = load_memory_constants()
        layouts = factor(grid, LAYOUT_FIELDS)
        self._layout = layouts.places
        self.table = DeviceTable(scenario.model, layouts.grid, every=every)
        self.behaviours = Behaviours(records, grid)
        self.shape = len(grid), 1 if modes is None else len(modes)
        place = scenario, grid, self._layout, self.table, records
        self.standing = StandingRows(*place, constants)
        self.moving = MovingRows(*place, modes=modes, detail=every)

    def with_devices(self) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Blocks of plans that have a first device, a second one, and so on."""
        count = self.table.count[self._layout]
        size = max(1, _BLOCK // self.shape[1])
        for device in range(int(count.max())):
            plans = np.flatnonzero(count > device)
            for start in range(0, len(plans), size):
                yield device, plans[start : start + size]

    def devices(self) -> tuple[IntArray, IntArray]:
        """All devices, plan by plan: the plan of each, and its place among those of the plan."""
        count = self.table.count[self._layout]
        plan = np.repeat(np.arange(len(count)), count)
        return plan, np.arange(len(plan)) - (np.cumsum(count) - count)[plan]

    @property
    def num_plans(self) -> int:
        """Number of plans of the grid."""
        return len(self._grid)

    def stage(self, plans: Plans, device: int) -> IntArray:
        """Place of the n-th device of some plans in the pipeline."""
        stage: IntArray = self.table.stage[self.table.first[self._layout[plans]] + device]
        return stage

    def offloaded(self, plans: Plans, device: int) -> FloatArray:
        """Bytes in host memory for the n-th device of some plans."""
        states = self.standing.standing.states.offloaded[self.standing.of(plans, device), None]
        return states + self.moving.offloaded[self.moving.of(plans, device)]

    def overhead(self) -> tuple[FloatArray, FloatArray]:
        """Fragmentation as a fraction, and buffers of the process groups [bytes]."""
        g, b = self._grid, self.behaviours
        groups = sum((axis > 1).astype(np.float64) for axis in (g.tp, g.cp, g.pp, g.dp, g.ep))
        context = b["communicator_bytes"] * groups
        return b["fragmentation"], rounded(context)

    def judge(
        self, peak: FloatArray, allocated: FloatArray, worst: IntArray, offloaded: FloatArray
    ) -> MemoryGrid:
        """Compare with what can be used, on the device and on the host.

        Args:
            peak: highest total without the process groups [bytes]; all of ``shape``.
            allocated: highest total without allowances [bytes].
            worst: device with the highest total.
            offloaded: in host memory [bytes].
        """
        cluster = self._scenario.cluster
        fraction, beside = (per_plan[:, None] for per_plan in self.overhead())
        peak, required = peak + beside, allocated + beside
        per_host = min(cluster.gpus_per_node, cluster.num_gpus)
        host = rounded(offloaded * per_host * self.behaviours["host_factor"][:, None])
        usable = cluster.device.usable_bytes
        verdict = np.where(peak <= usable, Verdict.FITS, Verdict.TIGHT)
        lost = (required > usable) | ((host > cluster.host_memory_bytes) & (host > 0))
        return MemoryGrid(
            peak_bytes=peak,
            allocated_bytes=allocated,
            reserved_bytes=allocated + rounded(fraction * allocated),
            required_bytes=required,
            worst_stage=worst,
            host_bytes=host,
            verdict=np.where(lost, Verdict.OOM, verdict).astype(np.int64),
            usable_bytes=usable,
        )


def _records(
    scenario: Scenario,
    grid: PlanGrid,
    behaviours: Mapping[Framework, FrameworkMemory] | None,
) -> dict[Framework, FrameworkMemory]:
    given = behaviours or {}
    return {
        code: given.get(code) or memory_behaviour(code.name.lower(), scenario.variant)
        for code in grid.frameworks
    }
