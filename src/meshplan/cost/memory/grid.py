"""Peak memory of many plans at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import factor
from meshplan.cost.memory.activations import LayerActivations, layer_activations
from meshplan.cost.memory.chunks import ChunkActivations, chunk_activations
from meshplan.cost.memory.head import HeadActivations, head_activations
from meshplan.cost.memory.lines import IMBALANCE, Sums
from meshplan.cost.memory.placeholders import placeholder_bytes
from meshplan.cost.memory.records import MemoryGrid, Verdict
from meshplan.cost.memory.shapes import Behaviours, FloatArray, Shapes, rounded
from meshplan.cost.memory.stage import StageInputs, event_lines
from meshplan.cost.memory.states import STATE_FIELDS, StateTable
from meshplan.cost.parameters import padded_vocab
from meshplan.cost.schedule.in_flight import in_flight
from meshplan.inputs.framework import FrameworkMemory, MemoryConstants
from meshplan.inputs.load.framework import load_memory_constants, memory_behaviour
from meshplan.inputs.model import Layer, Model
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, PlanGrid, Schedule, Split
from meshplan.space.stages import Chunk, StageLayout, representative_stages, stage_layout

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
    allocated, peaks = np.zeros(count), np.full(count, -1.0)
    worst, offloaded = np.zeros(count, dtype=np.int64), np.zeros(count)
    for part in evaluator.parts(representatives=True):
        i = part.plans
        share = fraction[i]
        certain, peak = _stage_peak(part, share)
        worst[i] = np.where(peak > peaks[i], part.stage, worst[i])
        peaks[i] = np.maximum(peaks[i], peak)
        allocated[i] = np.maximum(allocated[i], certain)
        offloaded[i] = np.maximum(offloaded[i], part.offloaded)
    return evaluator.judge(peaks + beside, allocated, worst, offloaded)


def _stage_peak(part: StagePart, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What one device needs for certain at its fullest, and with its allowances.

    Fragmentation grows with the total, so that of the events with the same allowance for
    imbalance the largest is the worst.
    """
    events = list(event_lines(part.inputs, detail=False).values())
    sums = Sums()
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
        self._chunks: dict[tuple[Layer, ...], ChunkActivations] = {}

    def parts(self, *, representatives: bool) -> Iterator[StagePart]:
        """Walk the layouts of the grid and the devices of each.

        Args:
            representatives: of devices with equal composition only the first, which holds the
                most micro-batches.
        """
        layouts = factor(self.grid, _LAYOUT_FIELDS, few=1)
        for index in range(len(layouts.grid)):
            plan = layouts.grid.plan(index)
            plans = (
                np.arange(len(self.grid))
                if layouts.inverse is None
                else np.flatnonzero(layouts.inverse == index)
            )
            layout = stage_layout(
                num_layers=self.scenario.model.num_layers,
                pp=plan.pp,
                vpp=plan.vpp,
                schedule=Schedule(plan.schedule),
                split=Split(plan.split),
                stage_layers=self.grid.stage_layers,
                num_mtp_layers=len(self.scenario.model.mtp_layers),
            )
            assert layout is not None, "an illegal split reached the memory model"
            stages: Iterable[int] = range(len(layout.chunks))
            if representatives:
                stages = representative_stages(layout, self.scenario.model)
            for stage in stages:
                yield self._part(layout, stage, Schedule(plan.schedule), plans)

    def _part(
        self, layout: StageLayout, stage: int, schedule: Schedule, plans: npt.NDArray[np.intp]
    ) -> StagePart:
        row = layout.chunks[stage]
        pp, vpp = len(layout.chunks), len(row)
        counts: Counter[Layer] = Counter()
        for chunk in row:
            counts += chunk.layer_counts(self.scenario.model)
        embedding = any(chunk.has_embedding for chunk in row)
        head = [index for index, chunk in enumerate(row) if chunk.has_head]
        states = self._state_table.states(
            counts, embedding=embedding, head=bool(head), pipeline=pp > 1
        )
        m = self.grid.num_micro_batches[plans]
        flight = in_flight(schedule=schedule, pp=pp, vpp=vpp, stage=stage, num_micro_batches=m)
        b = self._state_behaviours
        table, none = self._state_table, np.zeros(len(self._states.grid))
        trained = self.scenario.job.task not in ("lora", "qlora")
        persists = self.behaviours["gradients_persist"][plans] != 0

        def state_values(values: FloatArray) -> FloatArray:
            inverse = self._states.inverse
            return values[plans] if inverse is None else values[inverse[plans]]

        def activation_values(values: FloatArray) -> FloatArray:
            inverse = self._acts.inverse
            return values[plans] if inverse is None else values[inverse[plans]]

        chunks = tuple(self._chunk(chunk) for chunk in row)
        offloaded = state_values(states.offloaded)
        for chunk_bytes, count in zip(chunks, flight, strict=True):
            offloaded = offloaded + count * activation_values(chunk_bytes.offloaded_bytes)
        return StagePart(
            stage=stage,
            chunks=row,
            plans=plans,
            offloaded=offloaded,
            inputs=StageInputs(
                states=states,
                chunks=chunks,
                in_flight=flight,
                head=self._head if head else None,
                head_in_flight=flight[head[0]] if head else np.zeros_like(m),
                state_values=state_values,
                activation_values=activation_values,
                early_gradients=persists | (m > 1),
                placeholders=rounded(
                    b["placeholder_gradients"]
                    * placeholder_bytes(counts, self.scenario.model, self._states.grid)
                ),
                head_gradient=rounded(b["head_gradient_bytes"] * table.head_matrix)
                if head and trained
                else none,
                embedding_gradient=rounded(b["embedding_gradient_bytes"] * table.embedding_matrix)
                if embedding and trained
                else none,
                workspace=b["workspace_bytes"],
                graph_pool=b["graph_pool_bytes"],
                overload=self._shapes.behaviours["expert_imbalance"] - 1.0,
            ),
        )

    def _chunk(self, chunk: Chunk) -> ChunkActivations:
        model: Model = self.scenario.model
        layers = model.layers[chunk.first_layer : chunk.first_layer + chunk.num_layers]
        if chunk.has_head:
            layers += model.mtp_layers
        found = self._chunks.get(layers)
        if found is None:
            found = chunk_activations(layers, self._tables, self._shapes)
            self._chunks[layers] = found
        return found

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
    codes = {Framework(int(code)) for code in np.unique(grid.framework)}
    given = behaviours or {}
    return {
        code: given.get(code) or memory_behaviour(code.name.lower(), scenario.variant)
        for code in codes
    }
