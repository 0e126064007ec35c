"""Lines of memory as tables, and their sums.

Lines are whole bytes, and whole numbers below ``2^53`` add up exactly in any order: lines of one
table are added up in it, and their sum is spread to all plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.shapes import FloatArray

__all__ = ["IMBALANCE", "Expand", "Line", "Lines", "Sums", "Tables"]

IMBALANCE = "imbalance"
"""The one line that is an allowance: it need not be used."""

Expand = Callable[[FloatArray], FloatArray]
Count = npt.NDArray[np.integer | np.bool_]


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes of one line, in the table of what they depend on.

    Attributes:
        table: whole bytes, ``(num_combinations,)``; ``(num_plans,)`` without ``spread``.
        spread: finds the entry of each plan; lines of one table share one function.
        count: how often each plan has them, ``(num_plans,)``; None means once.
    """

    table: FloatArray
    spread: Expand | None = None
    count: Count | None = None

    def num_bytes(self) -> FloatArray:
        """Bytes of each plan."""
        values = self.table if self.spread is None else self.spread(self.table)
        return values if self.count is None else self.count * values


Lines = dict[str, tuple[Line, ...]]


class Tables:
    """Sums of tables; what several devices have in common is added up once."""

    def __init__(self) -> None:
        # the tables are kept with their sum, so that no other takes the identity of one
        self._known: dict[tuple[int, ...], tuple[Sequence[FloatArray], FloatArray]] = {}

    def add(self, tables: Sequence[FloatArray]) -> FloatArray:
        """The sum of some tables."""
        if len(tables) == 1:
            return tables[0]
        key = tuple(map(id, tables))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (tables, reduce(np.add, tables))
        return found[1]


class Sums:
    """Sums of the lines of one device; what events have in common is spread once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._known: dict[tuple[object, ...], tuple[Line, FloatArray]] = {}

    def total(self, lines: Lines) -> FloatArray:
        """All lines of an event but the allowance, ``(num_plans,)``."""
        total: FloatArray = np.zeros(1)
        for group in _alike(lines):
            total = total + self._spread(group)
        return total

    def largest(self, events: Iterable[Lines]) -> FloatArray | None:
        """The largest total of some events, ``(num_plans,)``; None where there are no events."""
        totals: list[FloatArray] = []
        tables: dict[Expand | None, FloatArray] = {}
        for lines in events:
            first, *more = _alike(lines)
            if more or first[0].count is not None:
                totals.append(self.total(lines))
            else:
                # all in one table: the largest is found there
                spread, table = first[0].spread, self._tables.add([line.table for line in first])
                tables[spread] = np.maximum(tables.get(spread, table), table)
        totals += [Line(table, spread).num_bytes() for spread, table in tables.items()]
        return reduce(np.maximum, totals) if totals else None

    def _spread(self, group: list[Line]) -> FloatArray:
        table, first = self._tables.add([line.table for line in group]), group[0]
        key = (id(table), first.spread, id(first.count))
        found = self._known.get(key)
        if found is None:
            line = Line(table, first.spread, first.count)
            found = self._known[key] = (line, line.num_bytes())
        return found[1]


def _alike(lines: Lines) -> list[list[Line]]:
    """Lines of one table that count equally often, the allowance left out."""
    groups: dict[tuple[Expand | None, int], list[Line]] = {}
    for code, parts in lines.items():
        for line in parts if code != IMBALANCE else ():
            groups.setdefault((line.spread, id(line.count)), []).append(line)
    return list(groups.values())
