"""The vocabulary as a framework pads it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.parameters import padded_vocab
from meshplan.inputs.load.framework import memory_behaviour
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["training_vocab"]


def training_vocab(scenario: Scenario, grid: PlanGrid) -> npt.NDArray[np.int64]:
    """Rows of the embedding after padding, as each plan's framework pads it, ``(num_plans,)``."""
    multiples = np.ones(len(Framework), dtype=np.int64)
    for code in np.unique(grid.framework):
        name = Framework(int(code)).name.lower()
        multiples[code] = memory_behaviour(name, scenario.variant).vocab_multiple
    return padded_vocab(scenario.model.vocab, multiple=multiples[grid.framework], tp=grid.tp)
