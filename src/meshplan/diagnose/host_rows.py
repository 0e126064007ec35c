"""Host ranges while they are gathered."""

from __future__ import annotations

from array import array

import numpy as np

from meshplan.diagnose.columns import HostKind, HostRanges

__all__ = ["HostRows"]


class HostRows:
    """Ranges of the host, kind by kind."""

    def __init__(self) -> None:
        self._rows: dict[HostKind, tuple[array[float], array[float]]] = {}

    def add(self, kind: HostKind, start: float, end: float) -> None:
        """Append one range [us]."""
        starts, ends = self._rows.setdefault(kind, (array("d"), array("d")))
        starts.append(start)
        ends.append(end)

    def finish(self) -> HostRanges:
        """Close the columns."""
        if not self._rows:
            return HostRanges.none()
        codes = {kind: HostRanges.KINDS.index(kind) for kind in self._rows}
        return HostRanges(
            start=np.concatenate([np.array(rows[0]) for rows in self._rows.values()]),
            end=np.concatenate([np.array(rows[1]) for rows in self._rows.values()]),
            kind=np.concatenate(
                [np.full(len(rows[0]), codes[kind]) for kind, rows in self._rows.items()]
            ),
        )
