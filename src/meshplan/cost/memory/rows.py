"""Rows of the two tables of memory: what devices hold, and what passes through them.

A plan has a row in each table for each device that is looked at. What it holds depends on the
blocks of the device and on how states are sharded; what passes through depends on the chunks, on
the micro-batches in flight and on the shape of a micro-batch. Both are far fewer than plans. What
passes through has a column for each way to recompute, which nothing that a device holds knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import Factored, factor, ranks
from meshplan.cost.memory.activations import layer_activations
from meshplan.cost.memory.chunks import chunk_activations
from meshplan.cost.memory.devices import LAYOUT_FIELDS, DeviceTable, Flight
from meshplan.cost.memory.head import HeadActivations, head_activations
from meshplan.cost.memory.placeholders import placeholder_bytes
from meshplan.cost.memory.shapes import Behaviours, FloatArray, Shapes, rounded
from meshplan.cost.memory.stage import Moving, Standing
from meshplan.cost.memory.states import STATE_FIELDS, StateTable
from meshplan.cost.parameters import padded_vocab
from meshplan.inputs.framework import FrameworkMemory, MemoryConstants
from meshplan.inputs.scenario import Scenario
from meshplan.space.crossed import MODE_FIELDS
from meshplan.space.plan import Framework, PlanGrid

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
_Slot = tuple[npt.NDArray[np.intp], IntArray]
"""Rows whose device has another distinct chunk, and the pair of it and the row's combination."""


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
    placeholders = placeholder_bytes(layers, model, grid)
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
        in_flight: micro-batches alive, over all chunks, ``(num_rows,)``.
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
        self._shapes = x = Shapes.of(scenario.job, combinations, records)
        self.device, self._start = spread.device, spread.start
        self._combination = acts.places[spread.key]
        self._flight = self._in_flight(spread, table)
        self._slots, content, combination = self._distinct_chunks(table, len(acts.grid))
        kinds = scenario.model.layer_kinds
        self._chunks = chunk_activations(
            [[kinds[kind] for kind in own] for own in table.contents],
            {kind: layer_activations(kind, scenario.model, x) for kind in kinds},
            x,
            content=np.repeat(content, self._num_modes),
            combination=self._crossed_places(combination),
            detail=detail,
        )
        self.in_flight = self._flight.contents.sum(axis=1)[self._flight_row]

    def of(self, plans: Plans, device: IntArray | int) -> npt.NDArray[np.intp]:
        """Rows of the n-th device of some plans."""
        return self._start[plans] + device

    def by_chunk(self, row: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Saved bytes of one micro-batch, and micro-batches in flight, of each chunk of a row."""
        pairs = [own[np.searchsorted(rows, row)] for rows, own in self._slots if row in rows]
        place, counts = (
            self._table.chunks_of(int(self.device[row])),
            self._flight.chunks[self._flight_row[row]],
        )
        saved = tuple(float(self._by_mode(self._chunks.saved_bytes)[pairs[i], 0]) for i in place)
        return saved, tuple(int(count) for count in counts[: len(place)])

    @property
    def saved_codes(self) -> frozenset[str]:
        """Lines that count activations of micro-batches in flight."""
        return frozenset(self._chunks.saved)

    def least(self) -> FloatArray:
        """What a backward pass needs at the least, however it recomputes, ``(num_rows,)``."""
        chunks, counts = self._chunks, self._flight.contents[self._flight_row]
        saved, backward = (
            self._by_mode(one).min(axis=1, keepdims=True)
            for one in (chunks.saved_bytes, chunks.backward_bytes)
        )
        return (_summed(saved, counts, self._slots) + _largest(backward, self._slots))[:, 0]

    def once_offloaded(self) -> FloatArray:
        """Activations of one micro-batch in each chunk that wait in host memory [bytes]."""
        one = self._by_mode(self._chunks.offloaded_bytes)
        return _summed(one, self._table.num_alike[self.device], self._slots)

    def _crossed_places(self, combination: IntArray) -> IntArray:
        """Places of combinations with every mode."""
        every = combination[:, None] * self._num_modes + np.arange(self._num_modes)
        return every.ravel()

    def _by_mode(self, values: FloatArray) -> FloatArray:
        """Values of combinations with every mode, a column for each mode."""
        return values.reshape(-1, self._num_modes)

    def _in_flight(self, spread: _Spread, table: DeviceTable) -> Flight:
        """Micro-batches in flight on each row: few layouts times few numbers of micro-batches."""
        own = _Spread(factor(spread.grid, _FLIGHT_FIELDS), spread.layout, table)
        flight = table.flight(own.device, own.grid.num_micro_batches[own.key])
        self._flight_row = own.start[spread.key] + spread.offset
        return flight

    def _distinct_chunks(
        self, table: DeviceTable, num_combinations: int
    ) -> tuple[list[_Slot], IntArray, IntArray]:
        """Number the pairs of a chunk and a combination that occur.

        Returns:
            Rows and pairs of the first, the second, ... chunk of devices, and chunk and
            combination of each pair.
        """
        slots: list[npt.NDArray[np.intp]] = [np.arange(len(self.device))]
        for slot in range(1, table.content.shape[1]):
            slots.append(np.flatnonzero(table.num_contents[self.device] > slot))
        codes = np.concatenate(
            [
                table.content[self.device[rows], slot] * num_combinations + self._combination[rows]
                for slot, rows in enumerate(slots)
            ]
        )
        pairs, num_pairs = ranks(codes)
        distinct = np.empty(num_pairs, dtype=np.int64)
        distinct[pairs] = codes
        ends = np.cumsum([len(rows) for rows in slots])
        found = list(zip(slots, np.split(pairs, ends[:-1]), strict=True))
        return found, distinct // num_combinations, distinct % num_combinations

    def tables(self, rows: npt.NDArray[np.intp]) -> Moving:
        """Bytes on some rows.

        Args:
            rows: in order, each once, ``(n,)``.

        Returns:
            Arrays ``(n, num_modes)`` or ``(n, 1)``.
        """
        slots, chunks, shapes, model = (
            self._slots_of(rows),
            self._chunks,
            self._shapes,
            self._model,
        )
        flight = self._flight_row[rows]
        counts, last = self._flight.contents[flight], self._flight.last[flight, None]
        combination = self._combination[rows]

        def in_all(one: FloatArray) -> FloatArray:
            return _summed(self._by_mode(one), counts, slots)

        def at(values: FloatArray) -> FloatArray:
            """What no way to recompute changes."""
            return self._by_mode(values)[combination, :1]

        imbalance = None
        if model.is_moe:
            overload = at(shapes.behaviours["expert_imbalance"] - 1.0)
            imbalance = rounded(overload * in_all(chunks.routed_bytes))
        saved = {code: in_all(one) for code, one in chunks.saved.items()}
        last_pair, leaves = self._last_pairs(rows, slots), np.minimum(last, 1)
        head = self._head()
        return Moving(
            saved=saved,
            less_one={
                code: num_bytes - leaves * self._by_mode(chunks.saved[code]).take(last_pair, axis=0)
                for code, num_bytes in saved.items()
            },
            imbalance=imbalance,
            offloaded=in_all(chunks.offloaded_bytes),
            forward=_largest(self._by_mode(chunks.forward_bytes), slots),
            backward=_largest(self._by_mode(chunks.backward_bytes), slots),
            final_norm=last * at(head.norm),
            logits_waiting=np.maximum(last - 1, 0) * at(head.logits),
            logits_forward=at(head.forward),
            logits_backward=at(head.backward),
            logits_gradient=at(head.gradient),
            head_hidden=at(head.hidden),
        )

    def _head(self) -> HeadActivations:
        multiple = self._shapes.behaviours["vocab_multiple"].astype(np.int64)
        vocab = padded_vocab(self._model.vocab, multiple=multiple, tp=self._tp)
        return head_activations(self._model, self._shapes, vocab=vocab.astype(np.float64))

    def _slots_of(self, rows: npt.NDArray[np.intp]) -> list[_Slot]:
        """The chunks of some rows alone."""
        if len(rows) == len(self.device):
            return self._slots
        place = np.full(len(self.device), -1, dtype=np.intp)
        place[rows] = np.arange(len(rows))
        found = []
        for own, pairs in self._slots:
            there = place[own] >= 0
            found.append((place[own[there]], pairs[there]))
        return found

    def _last_pairs(self, rows: npt.NDArray[np.intp], slots: Sequence[_Slot]) -> IntArray:
        """The pair of the last chunk of each row."""
        last = self._table.last_content[self.device[rows]]
        (_, first), *others = slots
        found = first.copy()
        for slot, (own, pairs) in enumerate(others, start=1):
            here = last[own] == slot
            found[own[here]] = pairs[here]
        return found


def _summed(one: FloatArray, counts: IntArray, slots: Sequence[_Slot]) -> FloatArray:
    """Sum bytes of pairs over the chunks of each row, each as often as it counts."""
    if not one.any():
        return np.zeros((len(counts), 1))
    (_, pairs), *others = slots
    total = one.take(pairs, axis=0)
    total *= counts[:, :1]
    for slot, (rows, pairs) in enumerate(others, start=1):
        total[rows] += counts[rows, slot, None] * one.take(pairs, axis=0)
    return total


def _largest(one: FloatArray, slots: Sequence[_Slot]) -> FloatArray:
    """The largest of the chunks of each row."""
    (_, pairs), *others = slots
    most = one.take(pairs, axis=0)
    for rows, pairs in others:
        most[rows] = np.maximum(most.take(rows, axis=0), one.take(pairs, axis=0))
    return most


def _crossed(grid: PlanGrid, modes: PlanGrid) -> PlanGrid:
    """Every plan with every way to recompute."""
    every = grid.take(np.repeat(np.arange(len(grid)), len(modes)))
    columns = {name: np.tile(getattr(modes, name), len(grid)) for name in MODE_FIELDS}
    return replace(every, **columns)  # type: ignore[arg-type]
