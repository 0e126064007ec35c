"""Rows of the table of what passes through devices.

A plan has a row in it for each device that is looked at, and another one in the table of what
devices hold (:mod:`meshplan.cost.memory.standing_rows`). What a device holds depends on its blocks
and on how states are sharded; what passes through depends on the chunks, on the micro-batches in
flight and on the shape of a micro-batch. Both are far fewer than plans. What passes through has a
column for each way to recompute, which nothing that a device holds knows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import factor
from meshplan.cost.memory.activations import layer_activations
from meshplan.cost.memory.blocks import (
    ALL_LAYERS,
    BlockCounts,
    BlockTable,
    Recomputed,
    among_first,
    split_chunk,
)
from meshplan.cost.memory.devices import DeviceTable
from meshplan.cost.memory.graphs import ROUTED
from meshplan.cost.memory.head import HeadActivations, head_activations
from meshplan.cost.memory.shapes import FloatArray, Shapes, rounded
from meshplan.cost.memory.stage import GraphPool, Moving, PassBeside
from meshplan.cost.memory.standing_rows import FLIGHT_FIELDS, Plans, Records, Spread
from meshplan.cost.shards import padded_vocab
from meshplan.inputs.scenario import Scenario
from meshplan.space.crossed import MODE_FIELDS
from meshplan.space.plan import PlanGrid, Recompute

__all__ = ["MovingRows"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

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
_TOGETHER, _CHECKPOINTS = "activations", "checkpoints"


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
        fields = (*ACTIVATION_FIELDS, *own, *FLIGHT_FIELDS)
        spread = Spread(factor(grid, fields), layout, table)
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

    def _count(self, spread: Spread, modes: PlanGrid | None) -> None:
        """Count blocks in flight on each row: few layouts times few numbers of micro-batches."""
        table, own_modes = self._table, MODE_FIELDS if modes is None else ()
        keys = factor(spread.grid, (*FLIGHT_FIELDS, "offload_layers", *own_modes))
        own = Spread(keys, spread.layout, table)
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
        runs_beside = self._runs_beside(at, combination)
        has_head = runs_beside & self._table.head[self.device[rows], None]
        return Moving(
            saved=saved,
            # what the backward pass gives back the forward pass beside it has added
            less_one={c: np.where(runs_beside, saved[c], rest) for c, rest in less_one.items()}
            if runs_beside.any()
            else less_one,
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
            beside=PassBeside(
                layer=np.where(runs_beside, self._before_exchange(at, combination), 0.0),
                final_norm=np.where(has_head, last * shared(head.norm), 0.0),
                logits=np.where(has_head, shared(head.logits), 0.0),
            )
            if runs_beside.any()
            else None,
            graphs=self._graph_pool(at, combination, runs_beside=runs_beside),
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
            if ROUTED in block.saved:
                each = block.saved[ROUTED].take(combination, axis=0)
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

    def _runs_beside(self, at: IntArray, combination: IntArray) -> BoolArray:
        """Where a forward pass runs beside the backward pass, ``(n, 1)``."""
        does = self._shapes.behaviours["runs_beside_backward"] != 0
        beside: BoolArray = does.reshape(-1, self._num_modes)[combination, :1]
        return beside & self._flight.goes_on[at, None]

    def _before_exchange(self, at: IntArray, combination: IntArray) -> FloatArray:
        """The most that a layer has saved before its exchange of tokens."""
        most = np.zeros((len(at), 1))
        for block, counts in zip(self._blocks, self._counts, strict=True):
            each = block.before_exchange_bytes.take(combination, axis=0)
            most = np.maximum(most, each * counts.is_there.take(at, axis=0))
        return most

    def _graph_pool(
        self, at: IntArray, combination: IntArray, *, runs_beside: BoolArray
    ) -> GraphPool | None:
        """What CUDA graphs hold.

        Args:
            at: row of the counts, ``(n,)``.
            combination: combination of each row, ``(n,)``.
            runs_beside: where as much is alive at the end of a backward pass as before it.

        Assumes:
            Where a device has several kinds of blocks, one of them has both the largest working
            set and the largest addition to it.
        """
        if all(block.graphs is None for block in self._blocks):
            return None
        zero = np.zeros((len(at), 1))
        saved = less = static = working = beside = zero
        for block, counts in zip(self._blocks, self._counts, strict=True):
            own = block.graphs
            if own is None:
                continue
            kept = counts.kept.take(at, axis=0)
            there = counts.is_there.take(at, axis=0)
            each = own.saved.take(combination, axis=0)
            saved = saved + kept * each
            less = less + counts.kept_less.take(at, axis=0) * each
            static = static + kept * own.static.take(combination, axis=0)
            working = np.maximum(working, there * own.working.take(combination, axis=0))
            beside = np.maximum(beside, there * own.beside.take(combination, axis=0))
        less = np.where(runs_beside, saved, less)
        return GraphPool(saved=saved, less_one=less, static=static, working=working, beside=beside)

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
