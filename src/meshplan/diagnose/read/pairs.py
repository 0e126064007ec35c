"""Events that a tool writes as two, where they begin and where they end (``ph`` ``B`` and ``E``).

Pairs of one thread nest, so that an end belongs to the last beginning of its thread that is still
open. What is open at a time is all that is kept.

Reference: Chrome trace event format, section "Duration events".
"""

from __future__ import annotations

from meshplan.diagnose.read.event import Event

__all__ = ["Pairs"]

_Thread = tuple[int | str | None, int | str | None]


class Pairs:
    """Beginnings that wait for their ends, by process and thread."""

    def __init__(self) -> None:
        self._open: dict[_Thread, list[Event]] = {}
        self._num_ends = 0

    def close(self, event: Event) -> Event | None:
        """Take a beginning or an end.

        Args:
            event: of phase ``B`` or ``E``.

        Returns:
            The whole event that an end closes, of phase ``X``; None for a beginning, and for an
            end without one.
        """
        thread = (event.pid, event.tid)
        if event.ph == "B":
            self._open.setdefault(thread, []).append(event)
            return None
        waiting = self._open.get(thread)
        if not waiting:
            self._num_ends += 1
            return None
        begun = waiting.pop()
        begun.ph, begun.dur = "X", event.ts - begun.ts
        if begun.args is None:
            begun.args = event.args
        return begun

    @property
    def num_halves(self) -> int:
        """Beginnings and ends whose other half is missing."""
        return self._num_ends + sum(len(waiting) for waiting in self._open.values())
