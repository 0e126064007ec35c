"""Peak memory of many plans at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import Factored, factor
from meshplan.cost.memory.activations import LayerActivations, layer_activations
from meshplan.cost.memory.chunks import ChunkActivations, chunk_activations
from meshplan.cost.memory.head import HeadActivations, head_activations
from meshplan.cost.memory.lines import IMBALANCE, Expand, Sums, Tables
from meshplan.cost.memory.placeholders import placeholder_bytes
from meshplan.cost.memory.records import MemoryGrid, Verdict
from meshplan.cost.memory.shapes import Behaviours, FloatArray, Shapes, rounded
from meshplan.cost.memory.stage import StageInputs, event_lines
from meshplan.cost.memory.state_records import StageStates
from meshplan.cost.memory.states import STATE_FIELDS, StateTable
from meshplan.cost.parameters import padded_vocab
from meshplan.cost.schedule.in_flight import in_flight
from meshplan.inputs.framework import FrameworkMemory, MemoryConstants
from meshplan.inputs.load.framework import load_memory_constants, memory_behaviour
from meshplan.inputs.model import Layer
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, Plan, PlanGrid, Schedule, Split
from meshplan.space.stages import (
    Chunk,
    StageLayout,
    dealing_costs,
    representative_stages,
    stage_layout,
)

__all__ = ["Evaluator", "StagePart", "peak_memory"]

IntArray = npt.NDArray[np.int64]

ACTIVATION_FIELDS = (
    "framework",
    "tp",
    "sp",
    "cp",
    "cp_comm",
    "ep",
    "etp",
    "micro_batch",
    "recompute",
    "recompute_layers",
    "offload_layers",
)
_LAYOUT_FIELDS = ("pp", "vpp", "schedule", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """One device of the pipeline for the plans that share a layout.

    Attributes:
        stage: index of the device.
        plans: indices into the grid.
        inputs: what its events are made of.
        offloaded: bytes in host memory, per plan.
        chunks: the layers it holds.
    """

    stage: int
    chunks: tuple[Chunk, ...]
    plans: npt.NDArray[np.intp]
    inputs: StageInputs
    offloaded: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """The plans of one layout, and what finds theirs in the tables."""

    plans: npt.NDArray[np.intp]
    state_values: Expand
    activation_values: Expand
    num_micro_batches: IntArray
    gradients_persist: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What a device holds whatever its plan runs, per state combination."""

    states: StageStates
    placeholders: FloatArray
    head_gradient: FloatArray
    embedding_gradient: FloatArray


def _picker(factored: Factored, plans: npt.NDArray[np.intp]) -> Expand:
    """Pick the values of some plans from a table of combinations."""
    places = plans if factored.inverse is None else factored.inverse[plans]
    return lambda table: table[places]


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
    count = len(grid)
    fraction, beside = evaluator.overhead()
    allocated, peaks = np.empty(count), np.empty(count)
    worst, offloaded = np.empty(count, dtype=np.int64), np.empty(count)
    for plans, devices in evaluator.by_layout(representatives=True):
        share = fraction[plans]
        first = next(devices)
        certain, peak = _stage_peak(first, share, evaluator.tables)
        stage, moved = np.full(len(plans), first.stage), first.offloaded
        for part in devices:
            needed, highest = _stage_peak(part, share, evaluator.tables)
            stage = np.where(highest > peak, part.stage, stage)
            peak, certain = np.maximum(peak, highest), np.maximum(certain, needed)
            moved = np.maximum(moved, part.offloaded)
        peaks[plans], allocated[plans], offloaded[plans] = peak, certain, moved
        worst[plans] = stage
    return evaluator.judge(peaks + beside, allocated, worst, offloaded)


def _stage_peak(
    part: StagePart, share: FloatArray, tables: Tables
) -> tuple[FloatArray, FloatArray]:
    """What one device needs for certain at its fullest, and with its allowances.

    Fragmentation grows with the total, so that of the events with the same allowance for
    imbalance the largest is the worst.
    """
    events = list(event_lines(part.inputs, together=tables).values())
    sums = Sums(tables)
    even = sums.largest(lines for lines in events if IMBALANCE not in lines)
    assert even is not None, "no expert works in the optimizer step"
    peak = even + rounded(share * even)
    uneven = [lines for lines in events if IMBALANCE in lines]
    most = sums.largest(uneven)
    if most is None:
        return even, peak
    (allowance,) = uneven[0][IMBALANCE]
    with_allowance = most + rounded(share * most) + allowance.num_bytes()
    return np.maximum(even, most), np.maximum(peak, with_allowance)


class Evaluator:
    """Tables that all stages of a grid share."""

    def __init__(
        self,
        scenario: Scenario,
        grid: PlanGrid,
        *,
        behaviours: Mapping[Framework, FrameworkMemory] | None = None,
    ) -> None:
        self.scenario, self.grid = scenario, grid
        self.records = _records(scenario, grid, behaviours)
        self.constants: MemoryConstants = load_memory_constants()
        model, job = scenario.model, scenario.job
        self._acts = factor(grid, ACTIVATION_FIELDS)
        self._shapes = Shapes.of(job, self._acts.grid, self.records)
        self._tables: dict[Layer, LayerActivations] = {
            kind: layer_activations(kind, model, self._shapes) for kind in model.layer_kinds
        }
        vocab = padded_vocab(
            model.vocab,
            multiple=self._shapes.behaviours["vocab_multiple"].astype(np.int64),
            tp=self._acts.grid.tp,
        ).astype(np.float64)
        self._head: HeadActivations = head_activations(model, self._shapes, vocab=vocab)
        self._states = factor(grid, STATE_FIELDS)
        self._state_behaviours = Behaviours(self.records, self._states.grid)
        self._state_table = StateTable(
            model, job, self._states.grid, self._state_behaviours, self.constants
        )
        self.behaviours = Behaviours(self.records, grid)
        kinds = {kind: number for number, kind in enumerate(model.layer_kinds)}
        self._kinds = tuple(kinds[layer] for layer in model.layers)
        self._mtp_kinds = tuple(kinds[layer] for layer in model.mtp_layers)
        self._chunks: dict[tuple[int, ...], ChunkActivations] = {}
        self._devices: dict[object, _Held] = {}
        self.tables = Tables()

    def parts(self, *, representatives: bool) -> Iterator[StagePart]:
        """Walk the devices of all layouts; see :meth:`by_layout`."""
        for _, devices in self.by_layout(representatives=representatives):
            yield from devices

    def by_layout(
        self, *, representatives: bool
    ) -> Iterator[tuple[npt.NDArray[np.intp], Iterator[StagePart]]]:
        """Walk the layouts of the grid: the plans of each, and its devices.

        Args:
            representatives: of devices with equal composition only the first, which holds the
                most micro-batches.
        """
        for plan, plans in self._layouts():
            layout = stage_layout(
                num_layers=self.scenario.model.num_layers,
                pp=plan.pp,
                vpp=plan.vpp,
                schedule=Schedule(plan.schedule),
                split=Split(plan.split),
                stage_layers=self.grid.stage_layers,
                num_mtp_layers=len(self.scenario.model.mtp_layers),
                costs=dealing_costs(self.scenario.model),
            )
            assert layout is not None, "an illegal split reached the memory model"
            stages: Iterable[int] = range(len(layout.chunks))
            if representatives:
                stages = representative_stages(layout, self._kinds)
            own = _Own(
                plans=plans,
                state_values=_picker(self._states, plans),
                activation_values=_picker(self._acts, plans),
                num_micro_batches=self.grid.num_micro_batches[plans],
                gradients_persist=self.behaviours["gradients_persist"][plans] != 0,
            )
            yield plans, self._devices_of(layout, stages, Schedule(plan.schedule), own)

    def _devices_of(
        self, layout: StageLayout, stages: Iterable[int], schedule: Schedule, own: _Own
    ) -> Iterator[StagePart]:
        for stage in stages:
            yield self._part(layout, stage, schedule, own)

    def _layouts(self) -> Iterator[tuple[Plan, npt.NDArray[np.intp]]]:
        """A plan of each layout, and the places of all its plans."""
        layouts = factor(self.grid, _LAYOUT_FIELDS, few=1)
        if layouts.inverse is None:
            yield layouts.grid.plan(0), np.arange(1)
            return
        # a stable sort of short integers takes linear time
        assert len(layouts.grid) <= np.iinfo(np.uint16).max
        order = np.argsort(layouts.inverse.astype(np.uint16), kind="stable")
        ends = np.cumsum(np.bincount(layouts.inverse))
        yield from zip(layouts.grid, np.split(order, ends[:-1]), strict=True)

    def _part(self, layout: StageLayout, stage: int, schedule: Schedule, own: _Own) -> StagePart:
        row = layout.chunks[stage]
        pp, vpp = len(layout.chunks), len(row)
        head = [index for index, chunk in enumerate(row) if chunk.has_head]
        held = self._held(row, pipeline=pp > 1)
        m, b = own.num_micro_batches, self._state_behaviours
        flight = in_flight(schedule=schedule, pp=pp, vpp=vpp, stage=stage, num_micro_batches=m)
        chunks = tuple(self._chunk(chunk) for chunk in row)
        offloaded = own.state_values(held.states.offloaded)
        for part, count in zip(chunks, flight, strict=True):
            if part.offloaded_bytes.any():
                offloaded = offloaded + count * own.activation_values(part.offloaded_bytes)
        return StagePart(
            stage=stage,
            chunks=row,
            plans=own.plans,
            offloaded=offloaded,
            inputs=StageInputs(
                states=held.states,
                chunks=chunks,
                in_flight=flight,
                head=self._head if head else None,
                head_in_flight=flight[head[0]] if head else np.zeros_like(m),
                state_values=own.state_values,
                activation_values=own.activation_values,
                early_gradients=own.gradients_persist | (m > 1),
                accumulates=m > 1,
                reduces_at_end=pp > 1,
                placeholders=held.placeholders,
                head_gradient=held.head_gradient,
                embedding_gradient=held.embedding_gradient,
                workspace=b["workspace_bytes"],
                graph_pool=b["graph_pool_bytes"],
                overload=self._shapes.behaviours["expert_imbalance"] - 1.0,
            ),
        )

    def _held(self, row: Sequence[Chunk], *, pipeline: bool) -> _Held:
        """States of a device, worked out once for all devices that hold the same."""
        counts = Counter(kind for chunk in row for kind in self._contents(chunk))
        embedding = any(chunk.has_embedding for chunk in row)
        head = any(chunk.has_head for chunk in row)
        key = (tuple(counts.items()), embedding, head, pipeline)
        if key not in self._devices:
            layers = Counter({self.scenario.model.layer_kinds[k]: n for k, n in counts.items()})
            self._devices[key] = self._work_out(layers, embedding, head, pipeline)
        return self._devices[key]

    def _work_out(
        self, counts: Counter[Layer], embedding: bool, head: bool, pipeline: bool
    ) -> _Held:
        b, table, none = self._state_behaviours, self._state_table, np.zeros(len(self._states.grid))
        trained = self.scenario.job.task not in ("lora", "qlora")
        placeholders = placeholder_bytes(counts, self.scenario.model, self._states.grid)
        head_gradient = rounded(b["head_gradient_bytes"] * table.head_matrix)
        embedding_gradient = rounded(b["embedding_gradient_bytes"] * table.embedding_matrix)
        return _Held(
            states=table.states(counts, embedding=embedding, head=head, pipeline=pipeline),
            placeholders=rounded(b["placeholder_gradients"] * placeholders),
            head_gradient=head_gradient if head and trained else none,
            embedding_gradient=embedding_gradient if embedding and trained else none,
        )

    def _chunk(self, chunk: Chunk) -> ChunkActivations:
        contents = self._contents(chunk)
        found = self._chunks.get(contents)
        if found is None:
            kinds = self.scenario.model.layer_kinds
            layers = [kinds[kind] for kind in contents]
            found = self._chunks[contents] = chunk_activations(layers, self._tables, self._shapes)
        return found

    def _contents(self, chunk: Chunk) -> tuple[int, ...]:
        """Kinds of the blocks of a chunk: small numbers are looked up faster than blocks."""
        own = self._kinds[chunk.first_layer : chunk.first_layer + chunk.num_layers]
        return own + self._mtp_kinds if chunk.has_head else own

    def overhead(self) -> tuple[FloatArray, FloatArray]:
        """Fragmentation as a fraction, and buffers of the process groups [bytes]."""
        g, b = self.grid, self.behaviours
        groups = sum((axis > 1).astype(np.float64) for axis in (g.tp, g.cp, g.pp, g.dp, g.ep))
        context = b["communicator_bytes"] * groups
        return b["fragmentation"], rounded(context)

    def judge(
        self, peak: FloatArray, allocated: FloatArray, worst: IntArray, offloaded: FloatArray
    ) -> MemoryGrid:
        """Compare with what can be used, on the device and on the host."""
        cluster = self.scenario.cluster
        fraction, beside = self.overhead()
        required = allocated + beside
        per_host = min(cluster.gpus_per_node, cluster.num_gpus)
        host = rounded(offloaded * per_host * self.behaviours["host_factor"])
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
