"""What a look for one cause comes to: a finding, or why there is none."""

from __future__ import annotations

from typing import Final, TypeAlias

from meshplan.diagnose.findings.records import Finding
from meshplan.record import record

__all__ = ["ABSENT", "CLEAR", "Absent", "Clear", "Open", "Outcome"]


@record(kw_only=False)
class Clear:
    """It was looked for and is not there."""


@record(kw_only=False)
class Absent:
    """The run has nothing of the kind to look at."""


@record(kw_only=False)
class Open:
    """What was given does not tell.

    Attributes:
        reason: ``diagnose.open.<reason>`` is its sentence.
    """

    reason: str


Outcome: TypeAlias = Finding | Clear | Absent | Open
CLEAR: Final = Clear()
ABSENT: Final = Absent()
