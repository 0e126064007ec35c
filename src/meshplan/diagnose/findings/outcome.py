"""What a look for one cause comes to: a finding, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from meshplan.diagnose.findings.records import Finding

__all__ = ["ABSENT", "CLEAR", "Absent", "Clear", "Open", "Outcome"]


@dataclass(frozen=True, slots=True)
class Clear:
    """It was looked for and is not there."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The run has nothing of the kind to look at."""


@dataclass(frozen=True, slots=True)
class Open:
    """What was given does not tell.

    Attributes:
        reason: ``diagnose.open.<reason>`` is its sentence.
    """

    reason: str


Outcome: TypeAlias = Finding | Clear | Absent | Open
CLEAR: Final = Clear()
ABSENT: Final = Absent()
