"""The vocabulary as a framework pads it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.parameters import padded_vocab
from meshplan.cost.surfaces import constant
from meshplan.inputs.model import Model
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["training_vocab"]


def training_vocab(model: Model, grid: PlanGrid) -> npt.NDArray[np.int64]:
    """Rows of the embedding after padding, as each plan's framework pads it, ``(num_plans,)``."""
    multiples = np.array(
        [int(constant(f"vocab_multiple_{framework.name.lower()}")) for framework in Framework],
        dtype=np.int64,
    )
    step = grid.tp * multiples[grid.framework]
    return padded_vocab(model.vocab, multiple=1, tp=step)
