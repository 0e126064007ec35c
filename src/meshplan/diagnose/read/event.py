"""One event of a Kineto/Chrome trace, and lists of them from text.

Profilers write numbers as numbers, so that events are decoded to exact types first, which is quick.
Where some tool wrote a number as text, or nonsense, its events are read as whatever is there and
brought to the same types: what is no number is NaN or -1, and what is no event is left out.

Reference: Chrome trace event format; fields as PyTorch's Kineto writes them.
"""

from __future__ import annotations

from math import nan
from typing import TypeAlias

import msgspec

from meshplan.diagnose.columns import Collective
from meshplan.diagnose.values import integer, number, ranks_of

__all__ = ["Args", "Event", "collective_of", "events_of"]

_Number: TypeAlias = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """What meshplan uses of an event's ``args``; numbers that are not stated are -1."""

    stream: int = -1
    device: int = -1
    correlation: int = -1
    collective: str | None = msgspec.field(name="Collective name", default=None)
    in_elements: int = msgspec.field(name="In msg nelems", default=-1)
    out_elements: int = msgspec.field(name="Out msg nelems", default=-1)
    dtype: str | None = None
    group_size: int = msgspec.field(name="Group size", default=-1)
    group_name: str | None = msgspec.field(name="Process Group Name", default=None)
    group_purpose: str | None = msgspec.field(name="Process Group Description", default=None)
    group_ranks: str | list[int] | None = msgspec.field(name="Process Group Ranks", default=None)
    device_type: int = msgspec.field(name="Device Type", default=-1)
    total_allocated: int = msgspec.field(name="Total Allocated", default=-1)
    total_reserved: int = msgspec.field(name="Total Reserved", default=-1)


class Event(msgspec.Struct, gc=False):
    """One trace event.

    Attributes:
        ph: phase: ``X`` for what has a start and a duration, ``B`` and ``E`` for its two ends.
        cat: category.
        name: name.
        ts: start [us]; NaN where it is not stated or no number.
        dur: duration [us]; NaN where it is no number.
        pid: process.
        tid: thread.
        args: what else is known.
    """

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: float = nan
    dur: float = 0.0
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None


class _AnyArgs(msgspec.Struct, gc=False):
    """The same with whatever stands there."""

    stream: _Number = None
    device: _Number = None
    correlation: _Number = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    in_elements: _Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: _Number = msgspec.field(name="Out msg nelems", default=None)
    dtype: str | None = None
    group_size: _Number = msgspec.field(name="Group size", default=None)
    group_name: _Number = msgspec.field(name="Process Group Name", default=None)
    group_purpose: str | None = msgspec.field(name="Process Group Description", default=None)
    group_ranks: str | list[int] | None = msgspec.field(name="Process Group Ranks", default=None)
    device_type: _Number = msgspec.field(name="Device Type", default=None)
    total_allocated: _Number = msgspec.field(name="Total Allocated", default=None)
    total_reserved: _Number = msgspec.field(name="Total Reserved", default=None)


class _AnyEvent(msgspec.Struct, gc=False):
    """The same with whatever stands there."""

    ph: str = ""
    cat: str | None = None
    name: _Number = None
    ts: _Number = None
    dur: _Number = None
    pid: _Number = None
    tid: _Number = None
    args: _AnyArgs | None = None


_decode_block = msgspec.json.Decoder(list[Event]).decode
_decode_any_block = msgspec.json.Decoder(list[_AnyEvent]).decode
_decode_raw_block = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any_event = msgspec.json.Decoder(_AnyEvent).decode


def events_of(text: bytes) -> tuple[list[Event], int]:
    """Decode a whole list of events.

    Returns:
        The events, and how many could not be read and were left out.

    Raises:
        msgspec.DecodeError: when the text is no JSON list.
    """
    try:
        return _decode_block(text), 0
    except msgspec.ValidationError:
        pass
    try:
        return [_exact(event) for event in _decode_any_block(text)], 0
    except msgspec.ValidationError:
        raws = _decode_raw_block(text)
    events = []
    for raw in raws:
        try:
            events.append(_exact(_decode_any_event(raw)))
        except msgspec.ValidationError:
            continue
    return events, len(raws) - len(events)


def _exact(event: _AnyEvent) -> Event:
    """Bring an event to its types."""
    name, start, duration = event.name, number(event.ts), number(event.dur, otherwise=0.0)
    return Event(
        ph=event.ph,
        cat=event.cat,
        name=None if name is None else str(name),
        ts=nan if start is None else start,
        dur=nan if duration is None else duration,
        pid=_owner(event.pid),
        tid=_owner(event.tid),
        args=None if event.args is None else _exact_args(event.args),
    )


def _owner(value: _Number) -> int | str:
    """A process or a thread as a number or a text."""
    return value if isinstance(value, int) else str(value)


def _exact_args(args: _AnyArgs) -> Args:
    return Args(
        stream=integer(args.stream),
        device=integer(args.device),
        correlation=integer(args.correlation),
        collective=args.collective,
        in_elements=integer(args.in_elements),
        out_elements=integer(args.out_elements),
        dtype=args.dtype,
        group_size=integer(args.group_size),
        group_name=None if args.group_name is None else str(args.group_name),
        group_purpose=args.group_purpose,
        group_ranks=args.group_ranks,
        device_type=integer(args.device_type),
        total_allocated=integer(args.total_allocated),
        total_reserved=integer(args.total_reserved),
    )


def collective_of(args: Args) -> Collective:
    """What the metadata of a collective says."""
    return Collective(
        kind=args.collective or "",
        in_elements=max(0, integer(args.in_elements)),
        out_elements=max(0, integer(args.out_elements)),
        dtype=args.dtype or "",
        group=args.group_name or "",
        purpose=args.group_purpose or "",
        group_size=max(0, integer(args.group_size)),
        ranks=ranks_of(args.group_ranks),
    )
