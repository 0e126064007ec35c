"""Unpack gzip as far as it goes: of an archive that is cut off, all that comes before the cut."""

from __future__ import annotations

import io
import zlib
from typing import BinaryIO

__all__ = ["Gunzip", "is_gzip"]

_PIECE_BYTES = 1 << 13
_GZIP = 31  # window bits of zlib with a gzip header


def is_gzip(head: bytes) -> bool:
    """Whether a file that starts like this is packed with gzip."""
    return head.startswith(b"\x1f\x8b")


class Gunzip(io.RawIOBase):
    """The unpacked bytes of a gzip file, member by member.

    Where :mod:`gzip` raises when it meets the end of a damaged file, and loses what it had
    unpacked of the piece at hand, this ends there.

    Args:
        packed: the file, at its start.

    Attributes:
        complete: the file has not turned out to be cut off or damaged so far.
    """

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._unpacker = zlib.decompressobj(_GZIP)
        self._rest = b""
        self.complete = True

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer; 0 at the end, or where the file is damaged."""
        while True:
            piece = self._rest or self._packed.read(_PIECE_BYTES)
            if not piece:
                self.complete &= self._unpacker.eof or self._unpacker.unused_data != b""
                return 0
            if self._unpacker.eof:
                if not is_gzip(piece):  # padding behind the last member
                    return 0
                self._unpacker = zlib.decompressobj(_GZIP)
            try:
                found = self._unpacker.decompress(piece, len(buffer))
            except zlib.error:
                self.complete = False
                return 0
            self._rest = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if found:
                buffer[: len(found)] = found
                return len(found)
