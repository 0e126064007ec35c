"""One tensor that a layer saves for its backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from meshplan.cost.memory.shapes import FloatArray
from meshplan.space.plan import Recompute

__all__ = ["Saved"]


@dataclass(frozen=True, slots=True, kw_only=True)
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
