"""Figures of the memory behaviour of frameworks that traffic and compute depend on too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.shards import padded_vocab
from meshplan.inputs.load.framework import memory_behaviour
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, PlanGrid

__all__ = [
    "accumulated_bytes",
    "gathers_again",
    "leaves_vocabulary",
    "reduces_once",
    "training_vocab",
]


def training_vocab(scenario: Scenario, grid: PlanGrid) -> npt.NDArray[np.int64]:
    """Rows of the embedding after padding, as each plan's framework pads it, ``(num_plans,)``."""
    multiple = _figure(scenario, grid, "vocab_multiple").astype(np.int64)
    return padded_vocab(scenario.model.vocab, multiple=multiple, tp=grid.tp)


def leaves_vocabulary(scenario: Scenario, *, multiple: int) -> bool:
    """Whether a framework of the job leaves a vocabulary that is no multiple of ``multiple``.

    What a framework pads to holds for the part of each device.
    """
    if scenario.model.vocab % multiple == 0:
        return False
    behaviours = [memory_behaviour(name, scenario.variant) for name in scenario.frameworks]
    return any(int(one.vocab_multiple) % multiple for one in behaviours)


def gathers_again(scenario: Scenario, grid: PlanGrid) -> npt.NDArray[np.bool_]:
    """Tell whose backward pass gathers the inputs of split products once more, ``(num_plans,)``.

    With sequence parallelism a framework saves its own part of an input, or all that was gathered.
    """
    again: npt.NDArray[np.bool_] = _figure(scenario, grid, "keeps_gathered_input") == 0
    return again


def reduces_once(scenario: Scenario, grid: PlanGrid) -> npt.NDArray[np.bool_]:
    """Tell whose sharded gradients are accumulated whole and reduced once per step, ``(n,)``.

    A figure of its own for pipelines: torch's stages do so whatever trains them.
    """
    alone = _figure(scenario, grid, "accumulation_gradient_bytes") > 0
    piped = _figure(scenario, grid, "pipeline_gradient_bytes") > 0
    return np.where(grid.pp > 1, piped, alone)


def accumulated_bytes(scenario: Scenario, grid: PlanGrid) -> npt.NDArray[np.float64]:
    """Width in which each plan's framework accumulates gradients [bytes per element], ``(n,)``."""
    return _figure(scenario, grid, "gradient_bytes")


def _figure(scenario: Scenario, grid: PlanGrid, name: str) -> npt.NDArray[np.float64]:
    table = np.zeros(len(Framework))
    for framework in grid.frameworks:
        figures = memory_behaviour(framework.name.lower(), scenario.variant)
        table[framework] = getattr(figures, name)
    return table[grid.framework]
