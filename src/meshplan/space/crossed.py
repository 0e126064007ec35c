"""Many plans as the product of few: plans without a way to recompute, times the ways.

What is recomputed decides activations and time and nothing else, and nearly every legal plan is
legal with every way to recompute. A space keeps that product as it is, since most of its plans are
only looked at to see that they do not fit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.record import record
from meshplan.space.plan import BoolArray, PlanGrid

__all__ = ["MODE_FIELDS", "CrossedGrid"]

MODE_FIELDS = ("recompute", "recompute_layers")
"""Plan fields that say how activations are recomputed."""

IndexArray = npt.NDArray[np.intp]


@record
class CrossedGrid:
    """Plans as pairs of a row and a mode.

    Attributes:
        rows: plans of which all but ``MODE_FIELDS`` is meaningful, ``(num_rows,)``.
        modes: plans of which only ``MODE_FIELDS`` are meaningful, ``(num_modes,)``.
        legal: which pairs are legal plans, ``(num_rows, num_modes)``.
    """

    rows: PlanGrid
    modes: PlanGrid
    legal: BoolArray

    @classmethod
    def of(cls, grid: PlanGrid) -> CrossedGrid:
        """Plans of which each has a row of its own; its mode is that of the row."""
        legal = np.ones((len(grid), 1), dtype=np.bool_)
        return cls(rows=grid, modes=grid.take(np.arange(min(1, len(grid)))), legal=legal)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.legal))

    @property
    def is_product(self) -> bool:
        """Whether the modes are those of the product, and not each row's own."""
        return len(self.modes) > 1

    def part(self, start: int, stop: int) -> CrossedGrid:
        """Some of the rows."""
        return replace(
            self, rows=self.rows.take(np.arange(start, stop)), legal=self.legal[start:stop]
        )

    def take(self, rows: IndexArray, modes: IndexArray) -> PlanGrid:
        """The plans of some pairs of a row and a mode."""
        if not self.is_product:
            return self.rows.take(rows)
        columns = {name: getattr(self.modes, name)[modes] for name in MODE_FIELDS}
        return PlanGrid.with_rows(self.rows, rows, columns)

    def flat(self) -> PlanGrid:
        """All legal plans."""
        if not self.is_product and self.legal.all():
            return self.rows
        return self.take(*np.nonzero(self.legal))
