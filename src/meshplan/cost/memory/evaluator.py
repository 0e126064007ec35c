"""The tables of memory of a grid, and the peaks that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import factor
from meshplan.cost.memory.devices import LAYOUT_FIELDS, DeviceTable
from meshplan.cost.memory.judge import Judge, Peaks
from meshplan.cost.memory.rows import MovingRows
from meshplan.cost.memory.shapes import Behaviours, FloatArray
from meshplan.cost.memory.stage import backward_states, event_lines
from meshplan.cost.memory.standing_rows import StandingRows
from meshplan.cost.memory.sums import Sums
from meshplan.inputs.framework import FrameworkMemory, MemoryConstants
from meshplan.inputs.load.framework import load_memory_constants, memory_behaviour
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["Evaluator"]

IntArray = npt.NDArray[np.int64]
_BLOCK = 1 << 15
"""Pairs of a plan and a way to recompute that are added up at a time, and stay in the cache."""


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
        judge: what follows from the peaks.
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
        records = _records(scenario, grid, behaviours)
        constants: MemoryConstants = load_memory_constants()
        layouts = factor(grid, LAYOUT_FIELDS)
        self._layout = layouts.places
        self.table = DeviceTable(scenario.model, layouts.grid, every=every)
        self.behaviours = Behaviours(records, grid)
        self._num_modes = 1 if modes is None else len(modes)
        self.judge = Judge.of(
            scenario, grid, self.behaviours, table=self.table, layout=self._layout
        )
        place = scenario, grid, self._layout, self.table, records
        self.standing = StandingRows(*place, constants)
        self.moving = MovingRows(*place, modes=modes, detail=every)

    def by_devices(self) -> IntArray:
        """All plans, those with the most devices first."""
        return np.argsort(-self.table.count[self._layout], kind="stable")

    def able(self) -> IntArray:
        """The plans that do not run out of memory in a backward pass whatever they recompute.

        Returns:
            Their places, in the order of :meth:`by_devices`.
        """
        least, beside = self.moving.least(), self.judge.beside
        backward = backward_states(self.standing.standing)
        usable = self.judge.usable_bytes
        plans = self.by_devices()
        able = np.ones(len(plans), dtype=np.bool_)
        for device, own in self._with_devices(plans):
            needed = backward[self.standing.of(own, device)] + least[self.moving.of(own, device)]
            able[: len(own)] &= needed + beside[own] <= usable
        return plans[able]

    def peaks(self, plans: IntArray) -> Peaks:
        """The peaks of some plans.

        Args:
            plans: their places, in the order of :meth:`by_devices`.

        Returns:
            Arrays ``(num_plans, num_modes)``.
        """
        rows, row_of = self._rows_of(plans)
        moving = self.moving.tables(rows)
        head = self.table.head[self.moving.device[rows]]
        sums = Sums(event_lines(self.standing.standing, moving), head)
        on_host = self.standing.standing.states.offloaded
        offloads = bool(on_host.any() or moving.offloaded.any())
        fraction, beside = self.judge.fragmentation[:, None], self.judge.beside[:, None]
        shape = len(plans), self._num_modes
        peak, allocated, offloaded = np.empty(shape), np.empty(shape), np.zeros(shape)
        worst = np.zeros(shape, dtype=np.int16)
        size = max(1, _BLOCK // self._num_modes)
        for start in range(0, len(plans), size):
            block = plans[start : start + size]
            for device, own in self._with_devices(block):
                at = slice(start, start + len(own))
                states, there = (
                    self.standing.of(own, device),
                    row_of[self.moving.of(own, device)],
                )
                needed, highest = sums.of(states, there, fraction[own])
                if device == 0:
                    peak[at], allocated[at] = highest, needed
                else:
                    worst[at][np.broadcast_to(highest > peak[at], worst[at].shape)] = device
                    np.maximum(peak[at], highest, out=peak[at])
                    np.maximum(allocated[at], needed, out=allocated[at])
                if offloads:
                    moved = on_host[states, None] + moving.offloaded[there]
                    np.maximum(offloaded[at], moved, out=offloaded[at])
            peak[start : start + len(block)] += beside[block]
        return Peaks(
            peak_bytes=peak,
            allocated_bytes=allocated,
            worst=worst,
            offloaded_bytes=offloaded,
        )

    def _with_devices(self, plans: IntArray) -> Iterator[tuple[int, IntArray]]:
        """Those of some plans, in order, that have a first device, a second one, and so on."""
        count = self.table.count[self._layout[plans]]
        for device in range(int(count[0]) if len(plans) else 0):
            yield device, plans[: np.searchsorted(-count, -device)]

    def _rows_of(self, plans: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of activations that some plans have, and where each row stands among them."""
        has = np.zeros(len(self.moving.device), dtype=np.bool_)
        for device, own in self._with_devices(plans):
            has[self.moving.of(own, device)] = True
        return np.flatnonzero(has), np.cumsum(has) - 1

    def devices(self) -> tuple[IntArray, IntArray]:
        """All devices, plan by plan: the plan of each, and its place among those of the plan."""
        count = self.table.count[self._layout]
        plan = np.repeat(np.arange(len(count)), count)
        return plan, np.arange(len(plan)) - (np.cumsum(count) - count)[plan]

    @property
    def num_plans(self) -> int:
        """Number of plans of the grid."""
        return len(self._layout)

    def offloaded_once(self) -> FloatArray:
        """Activations of one micro-batch that the fullest device moves to its host [bytes]."""
        once, plans = self.moving.once_offloaded(), self.by_devices()
        moved = np.zeros(len(plans))
        for device, own in self._with_devices(plans):
            moved[own] = np.maximum(moved[own], once[self.moving.of(own, device)])
        return moved


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
