"""Read Kineto/Chrome traces, whole or in bounded memory.

A trace is a JSON object with a list ``traceEvents`` and other keys before or after it, or that
list alone. The list is decoded block by block: a block ends where an event ends, which is found by
trying the last ``},{`` of the block and going back while the text before it is not a whole list.
Decoding proves the cut, whatever strings and nested lists hold.

Reference: Chrome trace event format; fields as PyTorch's Kineto writes them.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import msgspec

from meshplan.diagnose.read.event import Event, events_of
from meshplan.diagnose.values import shown_name
from meshplan.errors import UserError, os_reason

__all__ = ["BLOCK_BYTES", "Header", "read_events"]

BLOCK_BYTES = 2 * 2**20
"""Text decoded at a time: as much as stays in the caches of a core with the events that it holds.

Measured: blocks of 2 to 8 MiB take 0.6 of the time of blocks of 32 MiB, whose copies are new pages
of memory each time.
"""
_PIECE_BYTES = 2**13  # unpacked at a time, so that little is lost before a damage [bytes]
_WINDOW = 2**16  # text searched for the end of an event at a time [bytes]
_OVERLAP = 2**8  # longest white space between two events that is looked across [bytes]
_NO_NUMBER_ANYWHERE = re.compile(rb"([\[,:]\s*)(-?(?:nan|NaN|inf|Infinity))(?=\s*[,}\]])")
_LONGEST_EVENT = 2**26  # an event with its arguments [bytes]
_LONGEST_HEAD = 2**28  # what stands before the events [bytes]
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
_NO_NUMBER = re.compile(rb'("\s*:\s*)(-?(?:nan|NaN|inf|Infinity))(?=\s*[,}\]])')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')


@dataclass(slots=True, kw_only=True)
class Header:
    """What stands around the events.

    Attributes:
        fields: top-level keys other than ``traceEvents``.
        complete: the file ended where the JSON ended; False when it was cut off.
        num_unreadable: events that could not be read and were left out.
    """

    fields: dict[str, object] = field(default_factory=dict)
    complete: bool = True
    num_unreadable: int = 0


_decode_raw_block = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode


def read_events(
    path: Path,
    *,
    header: Header,
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[int], None] | None = None,
) -> Iterator[list[Event]]:
    """Yield the events of a trace in lists, each from about ``block_bytes`` of text.

    Args:
        path: a ``.json`` or gzipped trace (recognised by content, not by name).
        header: filled in while reading; complete after the last list.
        block_bytes: text decoded at a time [bytes].
        progress: called with the text read so far [bytes].

    Raises:
        UserError: when the file holds no trace.
    """
    with _open(path) as stream:
        blocks = _Blocks(stream, path=path, header=header, progress=progress, size=block_bytes)
        yield from blocks


def _open(path: Path) -> IO[bytes]:
    try:
        stream = path.open("rb")
        magic = stream.read(2)
        if magic != b"\x1f\x8b":
            stream.seek(0)
            return stream
        stream.close()
        return cast(IO[bytes], gzip.open(path, "rb"))
    except OSError as error:
        where = shown_name(path)
        raise UserError.of("trace.unreadable", where=where, os_reason=os_reason(error)) from error


class _Blocks:
    """The pass over one file: head, blocks of events, tail."""

    def __init__(
        self,
        stream: IO[bytes],
        *,
        path: Path,
        header: Header,
        progress: Callable[[int], None] | None,
        size: int,
    ) -> None:
        self._stream = stream
        self._path = path
        self._header = header
        self._progress = progress
        self._size = size
        self._piece = _PIECE_BYTES if isinstance(stream, gzip.GzipFile) else size
        self._num_read = 0
        self._skipping = False

    def __iter__(self) -> Iterator[list[Event]]:
        text = self._find_events()
        # what is longer than a block, an event or the keys before the first one, is read by twice
        # as much each time, so that little of it is looked at again
        while more := self._read(at_least=len(text)):
            text += more
            cut, events = self._whole_events(text)
            if events:
                yield events
            elif len(text) > _LONGEST_EVENT + self._size:  # no event is this long
                cut = self._skip_event(text)
                if not cut:
                    self._header.complete = False
                    cut = len(text) - _OVERLAP
            text = text[cut:]
        yield self._last_events(text)

    def _read(self, *, at_least: int = 0) -> bytes:
        """Read one block; of a truncated or damaged archive, what comes before the damage."""
        parts: list[bytes] = []
        missing = max(self._size, at_least)
        try:
            while missing > 0 and (part := self._stream.read(min(missing, self._piece))):
                parts.append(part)
                missing -= len(part)
        except (EOFError, zlib.error, OSError):
            self._header.complete = False
        text = b"".join(parts)
        self._num_read += len(text)
        if self._progress is not None:
            self._progress(self._num_read)
        return text

    def _find_events(self) -> bytes:
        """Read up to the first event; the keys before it go to the header."""
        text = self._read().removeprefix(codecs.BOM_UTF8)
        if text.lstrip()[:1] == b"[":
            return text.lstrip()[1:]
        while (match := _EVENTS_KEY.search(text)) is None:
            more = self._read(at_least=len(text)) if len(text) < _LONGEST_HEAD else b""
            if not more:
                raise UserError.of("trace.no_events", where=shown_name(self._path))
            text += more
        self._add_fields(text[: match.start()].rstrip().rstrip(b",") + b"}")
        return text[match.end() :]

    def _add_fields(self, text: bytes) -> None:
        try:
            found = _decode_any(text)
        except msgspec.DecodeError:
            return
        if isinstance(found, dict):
            self._header.fields.update(found)

    def _whole_events(self, text: bytes) -> tuple[int, list[Event]]:
        """Decode up to the last place where an event ends.

        Returns:
            Where the next event starts in ``text``, and the events before it.
        """
        limit = len(text)
        for start in range(max(0, len(text) - _WINDOW), -_WINDOW, -_WINDOW):
            window = text[max(0, start) : min(limit, start + _WINDOW + _OVERLAP)]
            for match in reversed(list(_BETWEEN_EVENTS.finditer(window))):
                brace = max(0, start) + match.start() + 1
                if brace > limit:
                    continue
                try:
                    events = self._decode(text[:brace] + b"]")
                    self._skipping = False
                    return max(0, start) + match.end(), events
                except msgspec.DecodeError as error:
                    # where decoding broke, every longer text breaks too
                    limit = min(limit, _broken_at(error, otherwise=limit))
        return 0, []

    def _decode(self, text: bytes) -> list[Event]:
        """Decode events up to a closing bracket; odd ones are left out one by one and counted."""
        text = b"[" + text
        try:
            return self._events_of(text)
        except msgspec.DecodeError as error:
            problem = error
        # numbers that JSON has no word for become empty texts of the same length: as values of
        # keys, and only if that is not enough anywhere, since texts may hold lists of them too
        for wanted in (_NO_NUMBER, _NO_NUMBER_ANYWHERE):
            text, num = wanted.subn(_as_text, text)
            if num:
                try:
                    return self._events_of(text)
                except msgspec.DecodeError as error:
                    problem = error
        raise problem

    def _events_of(self, text: bytes) -> list[Event]:
        """Decode a whole list, and count what was left out."""
        events, num_unreadable = events_of(text)
        self._header.num_unreadable += num_unreadable
        return events

    def _skip_event(self, text: bytes) -> int:
        """Leave out the event at the start of the text, which cannot be read.

        Returns:
            Where the next one may start; 0 when none does.
        """
        after = _BETWEEN_EVENTS.search(text)
        if after is None:
            return 0
        # what looked like the next event may be a part of this one: it counts once
        self._header.num_unreadable += not self._skipping
        self._skipping = True
        return after.end()

    def _last_events(self, text: bytes) -> list[Event]:
        """Decode the rest: the last events, the closing bracket and the keys after it."""
        found: list[Event] = []
        while True:
            last = self._closed_events(text)
            if last is not None:
                return found + last
            cut, events = self._whole_events(text)
            found += events
            if not cut and _ends_early(text):
                found += self._whole_end(text)
            elif not cut:
                cut = self._skip_event(text)
            if not cut:
                # no closing bracket: the file was cut off, or goes on in nonsense
                self._header.complete = False
                return found
            text = text[cut:]

    def _whole_end(self, text: bytes) -> list[Event]:
        """The last event of a file that was cut off right behind it."""
        try:
            return self._decode(text.rstrip().rstrip(b",") + b"]")
        except msgspec.DecodeError:
            return []

    def _closed_events(self, text: bytes) -> list[Event] | None:
        """Decode up to the closing bracket and keep the keys after it; None without a bracket."""
        try:
            return self._decode(text)
        except msgspec.DecodeError as error:
            end = _broken_at(error, otherwise=len(text))
        body, tail = text[:end].rstrip(), text[end:].strip()
        try:
            events = self._decode(body)
        except msgspec.DecodeError:
            return None
        if tail.startswith(b","):
            self._add_fields(b"{" + tail[1:])
        return events


def _ends_early(text: bytes) -> bool:
    """Whether nothing is wrong with the events in a text but that they end too early."""
    try:
        _decode_raw_block(b"[" + _NO_NUMBER.sub(_as_text, text))
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    return False


def _as_text(match: re.Match[bytes]) -> bytes:
    """An empty text in place of what is no number, as long as it was."""
    return match[1] + b'""'.ljust(len(match[2]))


def _broken_at(error: msgspec.DecodeError, *, otherwise: int) -> int:
    """The place in the text (without the bracket put before it) where decoding stopped."""
    match = re.search(r"\(byte (\d+)\)", str(error))
    # msgspec counts from one, and from the bracket
    return int(match[1]) - 2 if match else otherwise
