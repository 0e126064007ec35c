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
        self._known: dict[tuple[int, ...], tuple[Sequence[FloatArray], FloatArray, bool]] = {}

    def add(self, tables: Sequence[FloatArray]) -> FloatArray:
        """The sum of some tables."""
        return self._look_up(tables)[1]

    def joined(self, lines: Sequence[Line]) -> Line | None:
        """One line for some that count equally often; None where they are all empty."""
        _, table, empty = self._look_up([line.table for line in lines])
        return None if empty else Line(table, lines[0].spread, lines[0].count)

    def _look_up(
        self, tables: Sequence[FloatArray]
    ) -> tuple[Sequence[FloatArray], FloatArray, bool]:
        key = tuple(map(id, tables))
        found = self._known.get(key)
        if found is None:
            total = reduce(np.add, tables)
            found = self._known[key] = (tables, total, not total.any())
        return found


class Sums:
    """Sums of the lines of one device; what events have in common is spread once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._known: dict[object, FloatArray] = {}

    def largest(self, events: Iterable[Lines]) -> FloatArray | None:
        """The largest total of some events, ``(num_plans,)``; None where there are no events.

        Events that hold the same number of micro-batches differ in lines that count once: their
        largest is found before the others are added.
        """
        alike: dict[object, tuple[list[Line], list[list[Line]]]] = {}
        for lines in events:
            joined = self._joined(lines)
            counted = [line for line in joined if line.count is not None]
            plain = [line for line in joined if line.count is None]
            key = frozenset(map(_identity, counted))
            alike.setdefault(key, (counted, []))[1].append(plain)
        totals = [self._most(plain) + self._sum(counted) for counted, plain in alike.values()]
        return reduce(np.maximum, totals) if totals else None

    def _most(self, events: Iterable[list[Line]]) -> FloatArray:
        """The largest total of events whose lines count once."""
        totals: list[FloatArray] = [np.zeros(1)]
        tables: dict[Expand | None, FloatArray] = {}
        for lines in events:
            if len(lines) == 1:  # the largest of one table is found there
                (line,) = lines
                tables[line.spread] = np.maximum(tables.get(line.spread, line.table), line.table)
            else:
                totals.append(self._sum(lines))
        totals += [Line(table, spread).num_bytes() for spread, table in tables.items()]
        return reduce(np.maximum, totals)

    def _sum(self, lines: Iterable[Line]) -> FloatArray:
        total: FloatArray = np.zeros(1)
        for line in lines:
            found = self._known.get(_identity(line))
            if found is None:
                found = self._known[_identity(line)] = line.num_bytes()
            total = total + found
        return total

    def _joined(self, lines: Lines) -> list[Line]:
        """An event with one line for each table and count, the allowance left out."""
        groups: dict[object, list[Line]] = {}
        for code, parts in lines.items():
            for line in parts if code != IMBALANCE else ():
                groups.setdefault((line.spread, id(line.count)), []).append(line)
        joined = (self._tables.joined(group) for group in groups.values())
        return [line for line in joined if line is not None]


def _identity(line: Line) -> object:
    """What tells lines of known tables apart."""
    return id(line.table), line.spread, id(line.count)
