"""Predicted memory in the way in which a table measured it.

Tables print the most that the allocator handed out, the most that it reserved, or what the driver
shows, on the fullest device or on the device that writes the log.
"""

from __future__ import annotations

from typing import Literal

from meshplan.cost.memory import peak_memory, stage_memory
from meshplan.inputs.load.presets import device_preset
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["Kind", "Where", "memory_as_measured", "memory_on_stage"]

Kind = Literal["allocated", "reserved", "driver"]
Where = Literal["worst", "first", "last"]


_OUTSIDE = ("communicators", "user_buffers")
"""Lines that the allocator of the framework does not hand out."""


def memory_as_measured(scenario: Scenario, plan: Plan, *, kind: Kind, where: Where) -> float:
    """Predict what a run with this plan would print as its peak memory.

    Args:
        scenario: model, cluster and job.
        plan: layout.
        kind: ``allocated`` (``torch.cuda.max_memory_allocated``), ``reserved`` (the same with
            fragmentation) or ``driver`` (nvidia-smi: with the context and process groups).
        where: ``worst`` device of the pipeline, its ``first`` or its ``last``.

    Returns:
        Bytes.
    """
    if where != "worst":
        return memory_on_stage(scenario, plan, kind=kind, index=0 if where == "first" else -1)
    grid = peak_memory(scenario, PlanGrid.of([plan]))
    if kind == "allocated":
        return float(grid.allocated_bytes[0])
    if kind == "reserved":
        return float(grid.reserved_bytes[0])
    return float(grid.peak_bytes[0]) + _context_bytes(scenario)


def memory_on_stage(scenario: Scenario, plan: Plan, *, kind: Kind, index: int) -> float:
    """Predict what one device of the pipeline would show as its peak memory [bytes]."""
    stage = stage_memory(scenario, plan)[index]
    totals = []
    for _, terms in stage.terms:
        dropped = {*_OUTSIDE, "fragmentation"} if kind == "allocated" else {*_OUTSIDE}
        if kind == "driver":
            dropped = set()
        totals.append(sum(term.num_bytes for term in terms if term.code not in dropped))
    return max(totals) + (_context_bytes(scenario) if kind == "driver" else 0.0)


def _context_bytes(scenario: Scenario) -> float:
    """What the runtime takes before the first tensor; 0 for a device that is no preset."""
    name = scenario.cluster.device.name
    return device_preset(name).context_bytes
