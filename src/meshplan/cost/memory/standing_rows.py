"""Rows of the table of what devices hold whatever passes through them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import Factored, factor, ranks
from meshplan.cost.memory.devices import LAYOUT_FIELDS, DeviceTable
from meshplan.cost.memory.placeholders import placeholder_bytes
from meshplan.cost.memory.shapes import Behaviours, rounded
from meshplan.cost.memory.stage import Standing
from meshplan.cost.memory.states import STATE_FIELDS, StateTable
from meshplan.inputs.framework import FrameworkMemory, MemoryConstants
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["FLIGHT_FIELDS", "Plans", "Records", "Spread", "StandingRows"]

IntArray = npt.NDArray[np.int64]
Records = Mapping[Framework, FrameworkMemory]
Plans = npt.NDArray[np.integer] | slice

FLIGHT_FIELDS = (*LAYOUT_FIELDS, "num_micro_batches")
"""Plan fields that say which layers a device holds, and of how many micro-batches."""


class Spread:
    """Rows for the devices of some combinations of plan fields, one combination after another.

    Args:
        keys: the combinations.
        layout: layout of each plan.
        table: devices of the layouts.

    Attributes:
        grid: a representative plan for each combination.
        layout: layout of each combination.
        start: the first row of each plan, ``(num_plans,)``.
        key: combination of each row.
        offset: place of each row among those of its combination.
        device: device of each row, in the table.
    """

    def __init__(self, keys: Factored, layout: IntArray, table: DeviceTable) -> None:
        self.grid = keys.grid
        self.layout = layout if keys.first is None else layout[keys.first]
        count = table.count[self.layout]
        start = np.cumsum(count) - count
        self.start = start if keys.inverse is None else start[keys.inverse]
        self.key = np.repeat(np.arange(len(self.layout)), count)
        self.offset = np.arange(len(self.key)) - start[self.key]
        self.device = table.first[self.layout[self.key]] + self.offset


class StandingRows:
    """What devices hold whatever passes through them.

    Attributes:
        standing: bytes, ``(num_rows,)``.
    """

    def __init__(
        self,
        scenario: Scenario,
        grid: PlanGrid,
        layout: IntArray,
        table: DeviceTable,
        records: Records,
        constants: MemoryConstants,
    ) -> None:
        spread = Spread(factor(grid, (*STATE_FIELDS, *FLIGHT_FIELDS)), layout, table)
        states = factor(spread.grid, STATE_FIELDS)
        accumulates = (spread.grid.num_micro_batches > 1).astype(np.int64)
        holding = table.holding[spread.device]
        code = (holding * len(states.grid) + states.places[spread.key]) * 2
        self._row, num_rows = ranks(code + accumulates[spread.key])
        self._start = spread.start
        one = np.empty(num_rows, dtype=np.intp)
        one[self._row] = np.arange(len(self._row))
        key, held = spread.key[one], holding[one]
        own = spread.grid.take(key)
        self.standing = _standing(scenario, own, held, table, Behaviours(records, own), constants)

    def of(self, plans: Plans, device: IntArray | int) -> npt.NDArray[np.int64]:
        """Rows of the n-th device of some plans."""
        rows: IntArray = self._row[self._start[plans] + device]
        return rows


def _standing(
    scenario: Scenario,
    grid: PlanGrid,
    held: IntArray,
    table: DeviceTable,
    b: Behaviours,
    constants: MemoryConstants,
) -> Standing:
    model, job = scenario.model, scenario.job
    embedding, head = table.held_embedding[held], table.held_head[held]
    pipeline = table.held_pipeline[held]
    layers = {
        kind: counts[held] for kind, counts in zip(model.layer_kinds, table.held_kinds, strict=True)
    }
    states = StateTable(model, job, grid, b, constants)
    trained = job.task not in ("lora", "qlora")
    head_gradient = rounded(b["head_gradient_bytes"] * states.head_matrix)
    embedding_gradient = rounded(b["embedding_gradient_bytes"] * states.embedding_matrix)
    accumulates = grid.num_micro_batches > 1
    # a frozen weight gets no gradient, and so no placeholder of one
    placeholders = trained * placeholder_bytes(layers, model, grid)
    return Standing(
        states=states.states(layers, embedding=embedding, head=head, pipeline=pipeline),
        early_gradients=(b["gradients_persist"] != 0) | accumulates,
        accumulates=accumulates,
        reduces_at_end=pipeline,
        placeholders=rounded(b["placeholder_gradients"] * placeholders),
        head_gradient=np.where(head & trained, head_gradient, 0.0),
        embedding_gradient=np.where(embedding & trained, embedding_gradient, 0.0),
        workspace=b["workspace_bytes"],
    )
