"""A config that somebody packed: gzip, bzip2, xz, and zstd where its package is."""

from __future__ import annotations

import bz2
import gzip
import importlib
import importlib.util
import io
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Any, cast

from meshplan.errors import UserError

__all__ = ["plain_name", "unpacked"]

_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_OPENERS: dict[bytes, Callable[[io.BytesIO], Any]] = {
    b"\x1f\x8b": lambda packed: gzip.GzipFile(fileobj=packed),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_ZSTD = b"\x28\xb5\x2f\xfd"
# archives of several files, of which nobody says which is meant
_ARCHIVES = {b"PK\x03\x04": "unzip -p", b"7z\xbc\xaf": "7z x -so"}
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)


def plain_name(name: str) -> str:
    """The name of a file without what packing it added."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def unpacked(raw: bytes, *, where: str, most_bytes: int) -> bytes:
    """What a file holds, packed or not.

    Args:
        raw: its bytes.
        where: its name.
        most_bytes: the largest size that is of use; what is larger gives one byte more.

    Raises:
        UserError: ``check_packed`` with a command that unpacks it, ``check_damaged``.
    """
    for mark, program in _ARCHIVES.items():
        if raw.startswith(mark):
            raise UserError.of("check_packed", where=where, value=where, program=program)
    stream = _stream(raw, where)
    if stream is None:
        return raw
    try:
        return stream.read(most_bytes + 1)
    except _DAMAGED:
        raise UserError.of("check_damaged", where=where, value=where) from None


def _stream(raw: bytes, where: str) -> IO[bytes] | None:
    for mark, opener in _OPENERS.items():
        if raw.startswith(mark):
            return cast(IO[bytes], opener(io.BytesIO(raw)))
    if not raw.startswith(_ZSTD):
        return None
    if importlib.util.find_spec("zstandard") is None:
        raise UserError.of("check_packed", where=where, value=where, program="zstd -dc")
    reader = importlib.import_module("zstandard").ZstdDecompressor()
    return cast(IO[bytes], reader.stream_reader(io.BytesIO(raw)))
