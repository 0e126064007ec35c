"""Memory of single plans, stage by stage and line by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.evaluator import Evaluator
from meshplan.cost.memory.lines import IMBALANCE, Lines, Space
from meshplan.cost.memory.records import Event, StageMemory, Term
from meshplan.cost.memory.shapes import FloatArray, rounded
from meshplan.cost.memory.stage import LOSS_EVENTS, event_lines
from meshplan.cost.memory.state_records import Parameters
from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import Framework, Plan, PlanGrid

__all__ = ["DeviceMemory", "device_memory", "stage_memories", "stage_memory"]

IntArray = npt.NDArray[np.int64]
_Numbers = tuple[tuple[str, float], ...]


def stage_memory(
    scenario: Scenario,
    plan: Plan,
    *,
    behaviours: Mapping[Framework, FrameworkMemory] | None = None,
) -> tuple[StageMemory, ...]:
    """Break the memory of a plan down by pipeline device, event and line.

    The highest total of the devices equals :func:`peak_memory` of the same plan bit for bit.

    Args:
        scenario: model, cluster and job.
        plan: a legal plan.
        behaviours: framework behaviours other than the presets.

    Returns:
        One entry per pipeline device, in order.
    """
    (stages,) = stage_memories(scenario, PlanGrid.of([plan]), behaviours=behaviours)
    return stages


def stage_memories(
    scenario: Scenario,
    grid: PlanGrid,
    *,
    behaviours: Mapping[Framework, FrameworkMemory] | None = None,
    peaks_only: bool = False,
) -> tuple[tuple[StageMemory, ...], ...]:
    """Break the memory of some plans down; see :func:`stage_memory`.

    Args:
        scenario: model, cluster and job.
        grid: legal plans.
        behaviours: framework behaviours other than the presets.
        peaks_only: list the lines of the peak event of each device alone; totals of all events
            are there in any case.
    """
    report = _Report(Evaluator(scenario, grid, behaviours=behaviours, every=True))
    return report.plans(peaks_only=peaks_only)


@record
class DeviceMemory:
    """What the lines of one device are made of.

    Attributes:
        parameters: what it holds, as arrays ``(1,)``.
        chunk_bytes: activations that each chunk saves for one micro-batch [bytes].
        in_flight: micro-batches alive in each chunk.
        saved_codes: lines that count activations of micro-batches in flight.
    """

    parameters: Parameters
    chunk_bytes: tuple[float, ...]
    in_flight: tuple[int, ...]
    saved_codes: frozenset[str]


def device_memory(scenario: Scenario, grid: PlanGrid, stage: int) -> DeviceMemory:
    """Look into one device of a single plan.

    Args:
        scenario: model, cluster and job.
        grid: the plan.
        stage: place of the device in the pipeline.
    """
    evaluator = Evaluator(scenario, grid, every=True)
    plan = np.zeros(1, dtype=np.int64)
    parameters = evaluator.standing.standing.states.parameters
    row = evaluator.standing.of(plan, stage)
    chunk_bytes, in_flight = evaluator.moving.by_chunk(int(evaluator.moving.of(plan, stage)[0]))
    own = {f.name: getattr(parameters, f.name)[row] for f in fields(parameters)}
    return DeviceMemory(
        parameters=Parameters(**own),
        chunk_bytes=chunk_bytes,
        in_flight=in_flight,
        saved_codes=evaluator.moving.saved_codes,
    )


class _Report:
    """The rows of all devices of some plans, one plan after another."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        plan, device = evaluator.devices()
        self._plan, self._states = plan, evaluator.standing.of(plan, device)
        self._moving = evaluator.moving.of(plan, device)
        self._tables = evaluator.moving.tables(np.arange(len(evaluator.moving.device)))
        self._numbers = self._formula_numbers()
        judge = evaluator.judge
        self._fraction, self._beside = judge.fragmentation[plan], judge.beside[plan]
        self._outside = judge.communicators[plan], judge.user_buffers[plan]

    def plans(self, *, peaks_only: bool) -> tuple[tuple[StageMemory, ...], ...]:
        """The devices of each plan."""
        evaluator, moving = self._evaluator, self._evaluator.moving
        own = moving.device[self._moving]
        table = evaluator.table
        states = evaluator.standing.standing.states
        offloaded = states.offloaded[self._states] + self._tables.offloaded[self._moving, 0]
        host = offloaded * evaluator.behaviours["host_factor"][self._plan]
        head = table.head[own]
        lines = event_lines(evaluator.standing.standing, self._tables)
        totals = {event: self._total(of_event) for event, of_event in lines.items()}
        peaks = _peak_events(totals, head)
        terms: list[list[tuple[Event, tuple[Term, ...]]]] = [[] for _ in head]
        for event, of_event in lines.items():
            there = head if event in LOSS_EVENTS else np.ones_like(head)
            rows = np.flatnonzero(there & (peaks == event) if peaks_only else there)
            for row, alive in zip(rows.tolist(), self._terms(of_event, rows), strict=True):
                terms[row].append((event, alive))
        sums = {event: total.tolist() for event, total in totals.items()}
        found: list[list[StageMemory]] = [[] for _ in range(evaluator.num_plans)]
        for row, (place, has_head) in enumerate(
            zip(self._plan.tolist(), head.tolist(), strict=True)
        ):
            stage = StageMemory(
                stage=int(table.stage[own[row]]),
                num_layers=int(table.num_layers[own[row]]),
                peak_event=Event(int(peaks[row])),
                terms=tuple(terms[row]),
                totals={
                    event: total[row]
                    for event, total in sums.items()
                    if has_head or event not in LOSS_EVENTS
                },
                host_bytes=float(host[row]),
            )
            found[place].append(stage)
        return tuple(map(tuple, found))

    def _sizes(self, lines: Lines, rows: npt.NDArray[np.intp] | slice) -> dict[str, FloatArray]:
        states, moving = self._states[rows], self._moving[rows]
        return {
            code: line.table[states] if line.space is Space.STATES else line.table[moving, 0]
            for code, line in lines.items()
        }

    def _fragmentation(
        self, sizes: Mapping[str, FloatArray], rows: npt.NDArray[np.intp] | slice
    ) -> tuple[FloatArray, FloatArray]:
        """What is certain to be there, and what of it is lost between blocks [bytes]."""
        certain = sum(size for code, size in sizes.items() if code != IMBALANCE)
        return np.asarray(certain), rounded(self._fraction[rows] * certain)

    def _total(self, lines: Lines) -> FloatArray:
        """Total of an event on each device: whole bytes, in whatever order they are added."""
        sizes = self._sizes(lines, slice(None))
        certain, lost = self._fragmentation(sizes, slice(None))
        return certain + sizes.get(IMBALANCE, 0.0) + lost + self._beside

    def _terms(self, lines: Lines, rows: npt.NDArray[np.intp]) -> list[tuple[Term, ...]]:
        """The lines of an event on some devices."""
        sizes = self._sizes(lines, rows)
        _, lost = self._fragmentation(sizes, rows)
        alive: list[list[Term]] = [[] for _ in rows]
        places = rows.tolist()
        for code, size in sizes.items():
            numbers = self._numbers.get(code)
            for place, num_bytes in enumerate(size.tolist()):
                if num_bytes:
                    filled = numbers[places[place]] if numbers else ()
                    alive[place].append(Term(code, num_bytes, filled, code == IMBALANCE))
        return [
            (
                *terms,
                Term("fragmentation", spare, allowance=True),
                Term("communicators", groups),
                *([Term("user_buffers", buffers)] if buffers else []),
            )
            for terms, spare, groups, buffers in zip(
                alive,
                lost.tolist(),
                *(outside[rows].tolist() for outside in self._outside),
                strict=True,
            )
        ]

    def _formula_numbers(self) -> dict[str, list[_Numbers]]:
        """What formulas of lines were filled with: parameters, or micro-batches in flight."""
        p = self._evaluator.standing.standing.states.parameters
        held = (p.dense + p.expert + p.ends)[self._states]
        trained = (p.trainable_dense + p.trainable_expert)[self._states]
        in_flight = self._evaluator.moving.in_flight[self._moving].astype(np.float64)
        flight = _named("in_flight", in_flight)
        return {code: flight for code in self._tables.saved} | {
            "weights": _named("parameters", held),
            "gradients": _named("parameters", trained),
            "optimizer": _named("parameters", trained),
        }


def _peak_events(totals: Mapping[Event, FloatArray], head: npt.NDArray[np.bool_]) -> IntArray:
    """The event with the highest total on each device, the first of those that are equal."""
    events = sorted(totals)
    rows = [
        np.where(head, totals[event], -np.inf) if event in LOSS_EVENTS else totals[event]
        for event in events
    ]
    peaks: IntArray = np.array(events)[np.stack(rows).argmax(axis=0)]
    return peaks


def _named(name: str, values: FloatArray) -> list[_Numbers]:
    return [((name, value),) for value in values.tolist()]
