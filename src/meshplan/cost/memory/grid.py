"""Peak memory of many plans at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import factor
from meshplan.cost.memory.devices import LAYOUT_FIELDS, DeviceTable
from meshplan.cost.memory.lines import Lines, Total, totals, undominated
from meshplan.cost.memory.records import Event, MemoryGrid, Verdict
from meshplan.cost.memory.rows import MovingRows, Plans, StandingRows
from meshplan.cost.memory.shapes import Behaviours, FloatArray, rounded
from meshplan.cost.memory.stage import LOSS_EVENTS, backward_states, event_lines
from meshplan.inputs.framework import FrameworkMemory, MemoryConstants
from meshplan.inputs.load.framework import load_memory_constants, memory_behaviour
from meshplan.inputs.scenario import Scenario
from meshplan.space.crossed import CrossedGrid
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["Evaluator", "Screened", "peak_memory", "screen_memory"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
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
    evaluator = Evaluator(scenario, grid, behaviours=behaviours)
    found = evaluator.judged(np.arange(len(grid)))
    arrays = {
        f.name: value.ravel()
        for f in fields(found)
        if isinstance(value := getattr(found, f.name), np.ndarray)
    }
    return replace(found, **arrays)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Verdicts of all pairs of a crossed grid, and the memory of those that may fit.

    Attributes:
        verdict: codes of :class:`Verdict`, ``(num_rows, num_modes)``.
        memory: of the rows that may fit with some mode, arrays ``(num_looked_at, num_modes)``.
        place: where each row stands among those, -1 where it does not, ``(num_rows,)``.
    """

    verdict: IntArray
    memory: MemoryGrid
    place: npt.NDArray[np.intp]

    def take(self, pairs: npt.NDArray[np.intp]) -> MemoryGrid:
        """The memory of some pairs, none of which is out of memory."""
        row, mode = np.divmod(pairs, self.verdict.shape[1])
        row = self.place[row]
        arrays = {
            f.name: value[row, mode]
            for f in fields(self.memory)
            if isinstance(value := getattr(self.memory, f.name), np.ndarray)
        }
        return replace(self.memory, **arrays)  # type: ignore[arg-type]


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
    memory = evaluator.judged(able)
    verdict = np.full(crossed.legal.shape, int(Verdict.OOM), dtype=np.int64)
    verdict[able] = memory.verdict
    place = np.full(len(crossed.rows), -1, dtype=np.intp)
    place[able] = np.arange(len(able))
    return Screened(verdict=verdict, memory=memory, place=place)


class _Sums:
    """Totals of the events of a grid, in the two tables."""

    def __init__(self, lines: Mapping[Event, Lines], imbalance: FloatArray | None, head: BoolArray):
        even = (Event.BACKWARD_END, Event.REDUCTION, Event.OPTIMIZER, Event.LOADING)
        loss = totals(lines[event] for event in LOSS_EVENTS)
        self._imbalance = imbalance
        self._even = totals(lines[event] for event in even)
        self._uneven = [
            *totals(lines[event] for event in (Event.FORWARD, Event.BACKWARD)),
            *(Total(one.states, _only(head, one.activations)) for one in loss),
        ]
        if imbalance is None:
            self._even, self._uneven = undominated([*self._even, *self._uneven]), []
        else:
            self._uneven = undominated(self._uneven)

    def of(
        self, states: IntArray, moving: IntArray, share: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What devices need for certain at their fullest, and with their allowances.

        Fragmentation grows with the total, so that of the events with the same allowance for
        imbalance the largest is the worst.

        Args:
            states: row of each device among the states.
            moving: its row among the activations.
            share: fragmentation as a fraction.
        """
        even = _largest(self._even, states, moving)
        if self._imbalance is None:
            return even, even + rounded(share * even)
        most = _largest(self._uneven, states, moving)
        uneven = most + rounded(share * most) + self._imbalance[moving]
        return np.maximum(even, most), np.maximum(even + rounded(share * even), uneven)


def _only(where: BoolArray, table: FloatArray | None) -> FloatArray:
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
        self._num_modes = 1 if modes is None else len(modes)
        place = scenario, grid, self._layout, self.table, records
        self.standing = StandingRows(*place, constants)
        self.moving = MovingRows(*place, modes=modes, detail=every)

    def _with_devices(self, plans: IntArray, size: int) -> Iterator[tuple[int, IntArray]]:
        """Blocks of the places in a list of plans that have a first device, a second, and so on."""
        count = self.table.count[self._layout[plans]]
        for device in range(int(count.max(initial=0))):
            places = np.flatnonzero(count > device)
            for start in range(0, len(places), size):
                yield device, places[start : start + size]

    def able(self) -> IntArray:
        """The plans that do not run out of memory in a backward pass whatever they recompute."""
        least, (_, beside) = self.moving.least(), self.overhead()
        backward = backward_states(self.standing.standing)
        usable = self._scenario.cluster.device.usable_bytes
        plans = np.arange(len(self._grid))
        able = np.ones(len(plans), dtype=np.bool_)
        for device, own in self._with_devices(plans, len(plans)):
            needed = backward[self.standing.of(own, device)] + least[self.moving.of(own, device)]
            able[own] &= needed + beside[own] <= usable
        return np.flatnonzero(able)

    def judged(self, plans: IntArray) -> MemoryGrid:
        """The memory of some plans.

        Args:
            plans: places in the grid, in order.

        Returns:
            Arrays ``(num_plans, num_modes)``.
        """
        rows, row_of = self._rows_of(plans)
        moving = self.moving.tables(rows)
        head = self.table.head[self.moving.device[rows]]
        sums = _Sums(event_lines(self.standing.standing, moving), moving.imbalance, head)
        on_host = self.standing.standing.states.offloaded
        share = self.overhead()[0][plans, None]
        shape = len(plans), self._num_modes
        peak, allocated, offloaded = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        worst = np.zeros(shape, dtype=np.int64)
        for device, at in self._with_devices(plans, max(1, _BLOCK // self._num_modes)):
            own = plans[at]
            standing, there = self.standing.of(own, device), row_of[self.moving.of(own, device)]
            needed, highest = sums.of(standing, there, share[at])
            before = peak[at]
            higher = highest > before
            peak[at] = np.where(higher, highest, before)
            allocated[at] = np.maximum(allocated[at], needed)
            worst[at] = np.where(higher, self._stage(own, device)[:, None], worst[at])
            moved = on_host[standing, None] + moving.offloaded[there]
            offloaded[at] = np.maximum(offloaded[at], moved)
        return self._compared(plans, peak, allocated, worst, offloaded)

    def _rows_of(self, plans: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of activations that some plans have, and where each row stands among them."""
        has = np.zeros(len(self.moving.device), dtype=np.bool_)
        for device, at in self._with_devices(plans, max(1, len(plans))):
            has[self.moving.of(plans[at], device)] = True
        return np.flatnonzero(has), np.cumsum(has) - 1

    def devices(self) -> tuple[IntArray, IntArray]:
        """All devices, plan by plan: the plan of each, and its place among those of the plan."""
        count = self.table.count[self._layout]
        plan = np.repeat(np.arange(len(count)), count)
        return plan, np.arange(len(plan)) - (np.cumsum(count) - count)[plan]

    @property
    def num_plans(self) -> int:
        """Number of plans of the grid."""
        return len(self._grid)

    def _stage(self, plans: Plans, device: int) -> IntArray:
        """Place of the n-th device of some plans in the pipeline."""
        stage: IntArray = self.table.stage[self.table.first[self._layout[plans]] + device]
        return stage

    def offloaded_once(self) -> FloatArray:
        """Activations of one micro-batch that the fullest device moves to its host [bytes]."""
        once, plans = self.moving.once_offloaded()[:, 0], np.arange(len(self._grid))
        moved = np.zeros(len(plans))
        for device, own in self._with_devices(plans, len(plans)):
            moved[own] = np.maximum(moved[own], once[self.moving.of(own, device)])
        return moved

    def overhead(self) -> tuple[FloatArray, FloatArray]:
        """Fragmentation as a fraction, and buffers of the process groups [bytes]."""
        g, b = self._grid, self.behaviours
        groups = sum((axis > 1).astype(np.float64) for axis in (g.tp, g.cp, g.pp, g.dp, g.ep))
        context = b["communicator_bytes"] * groups
        return b["fragmentation"], rounded(context)

    def _compared(
        self,
        plans: IntArray,
        peak: FloatArray,
        allocated: FloatArray,
        worst: IntArray,
        offloaded: FloatArray,
    ) -> MemoryGrid:
        """Compare totals of some plans with what can be used, on the device and on the host."""
        cluster = self._scenario.cluster
        fraction, beside = (per_plan[plans, None] for per_plan in self.overhead())
        peak, required = peak + beside, allocated + beside
        per_host = min(cluster.gpus_per_node, cluster.num_gpus)
        host = rounded(offloaded * per_host * self.behaviours["host_factor"][plans, None])
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
