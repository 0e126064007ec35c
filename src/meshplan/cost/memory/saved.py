"""One tensor that a layer saves for its backward pass."""

from __future__ import annotations

import numpy as np

from meshplan.cost.memory.shapes import FloatArray, Shapes
from meshplan.record import record
from meshplan.space.plan import Recompute

__all__ = ["Saved"]


@record
class Saved:
    """A saved tensor.

    Attributes:
        code: the line it belongs to in a breakdown.
        num_bytes: whole bytes per micro-batch on one device, shape ``(num_plans,)``.
        dropped_by: module-wise recompute modes that throw it away (full recompute drops all).
    """

    code: str
    num_bytes: FloatArray
    dropped_by: Recompute = Recompute.NONE

    def kept(self, x: Shapes) -> FloatArray:
        """What the plan's module-wise recompute leaves of it, shape ``(num_plans,)``."""
        if not self.dropped_by:
            return self.num_bytes
        return np.where(x.has(self.dropped_by), 0.0, self.num_bytes)
