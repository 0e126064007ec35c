"""Memory of single plans, stage by stage and line by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from meshplan.cost.memory.evaluator import Evaluator
from meshplan.cost.memory.lines import IMBALANCE, Lines, Space
from meshplan.cost.memory.records import StageMemory, Term
from meshplan.cost.memory.shapes import FloatArray, rounded
from meshplan.cost.memory.stage import LOSS_EVENTS, event_lines
from meshplan.cost.memory.state_records import Parameters
from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, Plan, PlanGrid

__all__ = ["DeviceMemory", "device_memory", "stage_memories", "stage_memory"]

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
) -> tuple[tuple[StageMemory, ...], ...]:
    """Break the memory of some plans down; see :func:`stage_memory`."""
    return _Report(Evaluator(scenario, grid, behaviours=behaviours, every=True)).plans()


@dataclass(frozen=True, slots=True, kw_only=True)
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
        fraction, beside = evaluator.overhead()
        self._fraction, self._beside = fraction[plan], beside[plan].tolist()

    def plans(self) -> tuple[tuple[StageMemory, ...], ...]:
        """The devices of each plan."""
        evaluator, moving = self._evaluator, self._evaluator.moving
        own = moving.device[self._moving]
        table, plan = evaluator.table, self._plan
        states = evaluator.standing.standing.states
        offloaded = states.offloaded[self._states] + self._tables.offloaded[self._moving, 0]
        host = offloaded * evaluator.behaviours["host_factor"][plan]
        head = table.head[own].tolist()
        events = event_lines(evaluator.standing.standing, self._tables)
        terms = {event: self._terms(lines) for event, lines in events.items()}
        found: list[list[StageMemory]] = [[] for _ in range(evaluator.num_plans)]
        for row, place in enumerate(plan.tolist()):
            alive = tuple(
                (event, rows[row])
                for event, rows in terms.items()
                if head[row] or event not in LOSS_EVENTS
            )
            sums = {event: sum([term.num_bytes for term in lines]) for event, lines in alive}
            stage = StageMemory(
                stage=int(table.stage[own[row]]),
                num_layers=int(table.num_layers[own[row]]),
                peak_event=max(sums, key=lambda event: (sums[event], -event)),
                terms=alive,
                totals=sums,
                host_bytes=float(host[row]),
            )
            found[place].append(stage)
        return tuple(map(tuple, found))

    def _terms(self, lines: Lines) -> list[tuple[Term, ...]]:
        """The lines of an event on each device."""
        sizes = {
            code: line.table[self._states]
            if line.space is Space.STATES
            else line.table[self._moving, 0]
            for code, line in lines.items()
        }
        certain = sum(size for code, size in sizes.items() if code != IMBALANCE)
        fragmentation = rounded(self._fraction * certain).tolist()
        rows: list[list[Term]] = [[] for _ in fragmentation]
        for code, size in sizes.items():
            numbers = self._numbers.get(code)
            for row, num_bytes in enumerate(size.tolist()):
                if num_bytes:
                    filled = numbers[row] if numbers else ()
                    rows[row].append(Term(code, num_bytes, filled, code == IMBALANCE))
        return [
            (
                *terms,
                Term("fragmentation", spare, allowance=True),
                Term("communicators", beside),
            )
            for terms, spare, beside in zip(rows, fragmentation, self._beside, strict=True)
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


def _named(name: str, values: FloatArray) -> list[_Numbers]:
    return [((name, value),) for value in values.tolist()]
