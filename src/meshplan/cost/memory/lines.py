"""Lines of memory as tables.

A line stays in the table of what it depends on: states of a device, or its activations. Lines are
whole bytes, and whole numbers below ``2^53`` add up exactly in any order: lines of one table are
added up in it, and only the sums of the two tables are spread to plans (see
:mod:`meshplan.cost.memory.sums`).
"""

from __future__ import annotations

from enum import Enum

from meshplan.cost.memory.shapes import FloatArray
from meshplan.record import record

__all__ = ["IMBALANCE", "Line", "Lines", "Space"]

IMBALANCE = "imbalance"
"""The one line that is an allowance: it need not be used."""


class Space(Enum):
    """The two tables of a grid."""

    STATES = "states"
    ACTIVATIONS = "activations"


@record(kw_only=False)
class Line:
    """Bytes of one line.

    Attributes:
        table: whole bytes, one entry for each row of its space.
        space: what its rows are.
    """

    table: FloatArray
    space: Space


Lines = dict[str, Line]
