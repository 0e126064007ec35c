"""Rows of the two tables of memory: what devices hold, and what passes through them.

A plan has a row in each table for each device that is looked at. What it holds depends on the
blocks of the device and on how states are sharded; what passes through depends on the chunks, on
the micro-batches in flight and on the shape of a micro-batch. Both are far fewer than plans. What
passes through has a column for each way to recompute, which nothing that a device holds knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import Factored, factor, ranks
from meshplan.cost.memory.activations import layer_activations
from meshplan.cost.memory.blocks import (
    ALL_LAYERS,
    BlockCounts,
    BlockTable,
    Recomputed,
    among_first,
    split_chunk,
)
from meshplan.cost.memory.devices import LAYOUT_FIELDS, DeviceTable
from meshplan.cost.memory.head import HeadActivations, head_activations
from meshplan.cost.memory.placeholders import placeholder_bytes
from meshplan.cost.memory.shapes import Behaviours, FloatArray, Shapes, rounded
from meshplan.cost.memory.stage import Moving, Standing
from meshplan.cost.memory.states import STATE_FIELDS, StateTable
from meshplan.cost.shards import padded_vocab
from meshplan.inputs.framework import FrameworkMemory, MemoryConstants
from meshplan.inputs.scenario import Scenario
from meshplan.space.crossed import MODE_FIELDS
from meshplan.space.plan import Framework, PlanGrid, Recompute

__all__ = ["MovingRows", "Plans", "StandingRows"]

IntArray = npt.NDArray[np.int64]
Records = Mapping[Framework, FrameworkMemory]

ACTIVATION_FIELDS = (
    "framework",
    "tp",
    "sp",
    "cp",
    "cp_comm",
    "ep",
    "etp",
    "micro_batch",
    "offload_layers",
)
_FLIGHT_FIELDS = (*LAYOUT_FIELDS, "num_micro_batches")

Plans = npt.NDArray[np.integer] | slice

_TOGETHER, _CHECKPOINTS = "activations", "checkpoints"
_ROUTED = "experts"
"""The line that grows with the tokens of the busiest experts."""


class _Spread:
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
        spread = _Spread(factor(grid, (*STATE_FIELDS, *_FLIGHT_FIELDS)), layout, table)
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
        graph_pool=b["graph_pool_bytes"],
    )


class MovingRows:
    """What passes through devices, ``(num_rows, num_modes)`` or ``(num_rows, 1)``.

    Args:
        scenario: model, cluster and job.
        grid: plans.
        layout: layout of each plan.
        table: devices of the layouts.
        records: behaviour of the frameworks.
        modes: ways to recompute that are looked at for each plan; None for the plan's own.
        detail: whether saved bytes are wanted line by line.

    Attributes:
        device: device of each row, in the table of devices.
    """

    def __init__(
        self,
        scenario: Scenario,
        grid: PlanGrid,
        layout: IntArray,
        table: DeviceTable,
        records: Records,
        *,
        modes: PlanGrid | None,
        detail: bool,
    ) -> None:
        own = MODE_FIELDS if modes is None else ()
        fields = (*ACTIVATION_FIELDS, *own, *_FLIGHT_FIELDS)
        spread = _Spread(factor(grid, fields), layout, table)
        acts = factor(spread.grid, (*ACTIVATION_FIELDS, *own))
        self._num_modes = 1 if modes is None else len(modes)
        combinations = acts.grid if modes is None else _crossed(acts.grid, modes)
        self._model, self._table, self._tp = scenario.model, table, combinations.tp
        self._shapes = Shapes.of(scenario.job, combinations, records)
        self.device, self._start = spread.device, spread.start
        self._combination = acts.places[spread.key]
        self._count(spread, modes)
        full = self._shapes.has(Recompute.FULL)
        self._blocks = [
            BlockTable(
                layer_activations(kind, scenario.model, self._shapes),
                num_modes=self._num_modes,
                full=full,
            )
            for kind in scenario.model.layer_kinds
        ]
        self._detail = detail

    def _count(self, spread: _Spread, modes: PlanGrid | None) -> None:
        """Count blocks in flight on each row: few layouts times few numbers of micro-batches."""
        table, own_modes = self._table, MODE_FIELDS if modes is None else ()
        keys = factor(spread.grid, (*_FLIGHT_FIELDS, "offload_layers", *own_modes))
        own = _Spread(keys, spread.layout, table)
        self._counted = own.start[spread.key] + spread.offset
        self._flight = table.flight(own.device, own.grid.num_micro_batches[own.key])
        first = _first_recomputed(own.grid)[own.key, None]
        offloaded = own.grid.offload_layers[own.key]
        self._recomputed = Recomputed(
            first=first if modes is None else _first_recomputed(modes)[None],
            offloaded=offloaded if offloaded.any() else None,
        )
        self._counts = [
            BlockCounts(kind, table, own.device, self._flight, self._recomputed)
            for kind in range(len(self._model.layer_kinds))
        ]

    @property
    def in_flight(self) -> IntArray:
        """Micro-batches alive, over all chunks, ``(num_rows,)``."""
        in_all: IntArray = self._flight.contents.sum(axis=1)[self._counted]
        return in_all

    def of(self, plans: Plans, device: IntArray | int) -> npt.NDArray[np.intp]:
        """Rows of the n-th device of some plans."""
        return self._start[plans] + device

    def by_chunk(self, row: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Saved bytes of one micro-batch, and micro-batches in flight, of each chunk of a row."""
        table, at = self._table, int(self._counted[row])
        chunks, combination = table.chunks_of(int(self.device[row])), self._combination[row]
        content = table.content[self.device[row], list(chunks)]
        recomputed = Recomputed(
            first=self._recomputed.first[[at if len(self._recomputed.first) > 1 else 0]],
            offloaded=None
            if self._recomputed.offloaded is None
            else np.repeat(self._recomputed.offloaded[at], len(chunks)),
        )
        saved = np.zeros(len(chunks))
        for kind, block in enumerate(self._blocks):
            among = among_first(kind, table.contents)
            full, kept, _ = split_chunk(among, content, table.lengths[content], recomputed)
            saved = saved + kept[:, 0] * block.saved_bytes[combination, 0]
            saved = saved + full[:, 0] * block.checkpoint_bytes[combination, 0]
        return tuple(saved.tolist()), tuple(self._flight.chunks[at, : len(chunks)].tolist())

    @property
    def saved_codes(self) -> frozenset[str]:
        """Lines that count activations of micro-batches in flight."""
        codes = {code for block in self._blocks for code in block.saved}
        return frozenset(codes | {_CHECKPOINTS})

    def least(self) -> FloatArray:
        """What a backward pass needs at the least, however it recomputes, ``(num_rows,)``."""
        total, working = np.zeros(len(self.device)), np.zeros(len(self.device))
        for block, counts in zip(self._blocks, self._counts, strict=True):
            number = (counts.kept + counts.full).min(axis=1)[self._counted]
            total += number * block.least_saved()[self._combination]
            back = block.least_backward()[self._combination]
            working = np.maximum(working, counts.is_there[self._counted, 0] * back)
        return total + working

    def once_offloaded(self) -> FloatArray:
        """Activations of one micro-batch in each chunk that wait on the host, ``(num_rows,)``."""
        total = np.zeros(len(self.device))
        for block, counts in zip(self._blocks, self._counts, strict=True):
            number = counts.offloaded_once[self._counted, 0]
            total += number * block.saved_bytes[self._combination, 0]
        return total

    def tables(self, rows: npt.NDArray[np.intp]) -> Moving:
        """Bytes on some rows.

        Args:
            rows: in order, each once, ``(n,)``.

        Returns:
            Arrays ``(n, num_modes)`` or ``(n, 1)``.
        """
        at, combination, shapes = self._counted[rows], self._combination[rows], self._shapes
        last = self._flight.last[at, None]

        def shared(values: FloatArray) -> FloatArray:
            """What no way to recompute changes."""
            return values.reshape(-1, self._num_modes)[combination, :1]

        saved, less_one, routed = self._saved(at, combination)
        imbalance = None
        if self._model.is_moe:
            overload = shared(shapes.behaviours["expert_imbalance"] - 1.0)
            imbalance = rounded(overload * routed)
        forward, backward = self._working(at, combination)
        head = self._head()
        return Moving(
            saved=saved,
            less_one=less_one,
            imbalance=imbalance,
            offloaded=self._offloaded(at, combination),
            forward=forward,
            backward=backward,
            final_norm=last * shared(head.norm),
            logits_waiting=np.maximum(last - 1, 0) * shared(head.logits),
            logits_forward=shared(head.forward),
            logits_backward=shared(head.backward),
            logits_gradient=shared(head.gradient),
            head_hidden=shared(head.hidden),
        )

    def _saved(
        self, at: IntArray, combination: IntArray
    ) -> tuple[dict[str, FloatArray], dict[str, FloatArray], FloatArray]:
        """Saved bytes of all micro-batches in flight, the same less one, and those of experts.

        Args:
            at: row of the counts, ``(n,)``.
            combination: combination of each row, ``(n,)``.
        """
        saved: dict[str, FloatArray] = {}
        less: dict[str, FloatArray] = {}
        routed = np.zeros((len(at), 1))

        def add(code: str, one: FloatArray, counts: FloatArray, fewer: FloatArray) -> FloatArray:
            if not one.any() or not counts.any():
                saved.setdefault(code, np.zeros((len(at), 1)))
                less.setdefault(code, np.zeros((len(at), 1)))
                return saved[code]
            each = one.take(combination, axis=0)
            whole, rest = counts.take(at, axis=0), fewer.take(at, axis=0)
            whole *= each
            rest *= each
            saved[code] = saved[code] + whole if code in saved else whole
            less[code] = less[code] + rest if code in less else rest
            return whole

        for block, counts in zip(self._blocks, self._counts, strict=True):
            lines = block.saved if self._detail else {_TOGETHER: block.saved_bytes}
            for code, one in lines.items():
                add(code, one, counts.kept, counts.kept_less)
            if _ROUTED in block.saved:
                each = block.saved[_ROUTED].take(combination, axis=0)
                routed = routed + counts.kept.take(at, axis=0) * each
        for block, counts in zip(self._blocks, self._counts, strict=True):
            code = _CHECKPOINTS if self._detail else _TOGETHER
            add(code, block.checkpoint_bytes, counts.full, counts.full_less)
        return saved, less, routed

    def _working(self, at: IntArray, combination: IntArray) -> tuple[FloatArray, FloatArray]:
        """Largest working sets of a layer in the forward and in the backward pass."""
        both = list(zip(self._blocks, self._counts, strict=True))
        backward = reduce(np.maximum, [b.backward(c, at, combination) for b, c in both])
        if not self._detail and all(block.backward_needs_more for block in self._blocks):
            # for totals alone: nothing is alive in a forward pass that a backward pass lacks
            return backward, backward
        return reduce(np.maximum, [b.forward(c, at, combination) for b, c in both]), backward

    def _offloaded(self, at: IntArray, combination: IntArray) -> FloatArray:
        """Activations that wait in host memory."""
        total = np.zeros((len(at), 1))
        for block, counts in zip(self._blocks, self._counts, strict=True):
            if counts.offloaded.any():
                each = block.saved_bytes.take(combination, axis=0)
                total = total + counts.offloaded.take(at, axis=0) * each
        return total

    def _head(self) -> HeadActivations:
        multiple = self._shapes.behaviours["vocab_multiple"].astype(np.int64)
        vocab = padded_vocab(self._model.vocab, multiple=multiple, tp=self._tp)
        return head_activations(self._model, self._shapes, vocab=vocab.astype(np.float64))


def _first_recomputed(modes: PlanGrid) -> IntArray:
    """First layers of each chunk that a way to recompute covers as a whole, ``(num_modes,)``."""
    full = (modes.recompute & int(Recompute.FULL)) != 0
    layers = np.where(modes.recompute_layers == 0, ALL_LAYERS, modes.recompute_layers)
    return np.where(full, layers, 0)


def _crossed(grid: PlanGrid, modes: PlanGrid) -> PlanGrid:
    """Every plan with every way to recompute."""
    every = grid.take(np.repeat(np.arange(len(grid)), len(modes)))
    columns = {name: np.tile(getattr(modes, name), len(grid)) for name in MODE_FIELDS}
    return replace(every, **columns)  # type: ignore[arg-type]
