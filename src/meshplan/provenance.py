"""Where a number comes from."""

from __future__ import annotations

from typing import Literal

from meshplan.record import record

__all__ = ["Kind", "Sourced"]

Kind = Literal["published", "measured", "fitted", "derived", "assumed"]


@record
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
