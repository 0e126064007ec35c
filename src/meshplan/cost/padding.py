"""The vocabulary as a framework pads it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.parameters import padded_vocab
from meshplan.cost.surfaces import per_framework
from meshplan.inputs.model import Model
from meshplan.space.plan import PlanGrid

__all__ = ["training_vocab"]


def training_vocab(model: Model, grid: PlanGrid) -> npt.NDArray[np.int64]:
    """Rows of the embedding after padding, as each plan's framework pads it, ``(num_plans,)``."""
    multiple = per_framework("vocab_multiple", grid.framework).astype(np.int64)
    return padded_vocab(model.vocab, multiple=1, tp=grid.tp * multiple)
