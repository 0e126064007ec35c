"""Where a number comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "Sourced"]

Kind = Literal["published", "measured", "fitted", "derived", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A value with its unit and its source.

    Attributes:
        value: the number itself.
        unit: its unit, such as ``bytes`` or ``flop/s``.
        source: a document, table or command that another person can look up.
        kind: how the number came to be.
    """

    value: float
    unit: str
    source: str
    kind: Kind
