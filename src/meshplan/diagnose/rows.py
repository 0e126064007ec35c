"""Device events and host calls while they are gathered, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import DeviceEvents
from meshplan.diagnose.values import integer

__all__ = ["DeviceTable", "Launches", "Rows", "integers"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def integers(values: Sequence[int]) -> IntArray:
    """Whole numbers as a column, -1 for those that are too large for one, shape ``(n,)``."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([integer(value) for value in values], dtype=np.int64)


class DeviceTable(NamedTuple):
    """Device events of one block as columns, ``(n,)`` each; see :class:`DeviceEvents`."""

    start: FloatArray
    end: FloatArray
    name: IntArray
    stream: IntArray
    correlation: IntArray
    collective: IntArray

    def chosen(self, which: npt.NDArray[np.bool_]) -> DeviceTable:
        """Some of its rows."""
        return self._replace(**{name: getattr(self, name)[which] for name in self._fields})


class Rows:
    """Device events of one kind."""

    def __init__(self) -> None:
        self._parts: list[DeviceTable] = []

    def add(self, table: DeviceTable) -> None:
        """Append the events of a block."""
        if len(table.start):
            self._parts.append(table)

    def arrays(self, launches: Launches) -> DeviceEvents:
        """Close the columns and look up the launch of each event."""
        if not self._parts:
            return DeviceEvents.none()
        whole = DeviceTable(*map(np.concatenate, zip(*self._parts, strict=True)))
        return DeviceEvents(
            start=whole.start,
            end=whole.end,
            stream=whole.stream,
            name=whole.name,
            launch=launches.starts(whole.correlation),
            collective=whole.collective,
        )


class Launches:
    """Host calls by their correlation number; of several with one number the last counts."""

    def __init__(self) -> None:
        self._key: list[IntArray] = []
        self._start: list[FloatArray] = []

    def add(self, correlation: IntArray, start: FloatArray) -> int:
        """Note calls; return how many of them have a number and a time."""
        known = (correlation > 0) & np.isfinite(start)
        self._key.append(correlation[known])
        self._start.append(start[known])
        return int(known.sum())

    def starts(self, correlation: IntArray) -> FloatArray:
        """Start of the call of each correlation number, NaN where there is none [us]."""
        found = np.full(len(correlation), np.nan)
        key = np.concatenate(self._key) if self._key else np.empty(0, dtype=np.int64)
        if not len(key):
            return found
        order = np.argsort(key, kind="stable")
        key = key[order]
        at = np.searchsorted(key, correlation, side="right") - 1
        hit = (at >= 0) & (correlation > 0) & (key[at] == correlation)
        found[hit] = np.concatenate(self._start)[order][at[hit]]
        return found
