"""What a path stands for: a file, a pipe that can be read once, or an archive of files.

Readers open a file several times and want to jump in it, which a pipe does not allow. So a pipe and
the members of an archive are copied to a temporary file first, one at a time: that takes room on
the disk and none in memory. Gzipped files are read as they are; zstd takes its package or
its program.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import importlib.util
import io
import lzma
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias, cast

from meshplan.diagnose.read.natural import natural
from meshplan.diagnose.values import shown_name
from meshplan.errors import UserError, os_reason
from meshplan.inputs.load.opening import is_pipe as is_unread
from meshplan.inputs.load.opening import opened

__all__ = ["STDIN", "is_pipe", "plain_files"]

STDIN = Path("-")
"""What the standard input is called among paths."""

Members: TypeAlias = Iterator[tuple[str, IO[bytes]]]

_PIECE_BYTES = 1 << 13  # copied at a time, so that little is lost before a damage
_HEAD_BYTES = 512  # of a tar archive the first block
_TAR_MARK = slice(257, 262)
_ZSTD = b"\x28\xb5\x2f\xfd"
_SQLITE = b"SQLite format 3\x00"
_DAMAGED = (
    EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile,
    RuntimeError, NotImplementedError,
)  # fmt: skip
"""What the standard library raises for damaged, encrypted and exotic archives."""


def is_pipe(path: Path) -> bool:
    """Whether a path is the standard input, or a pipe as ``<(...)`` and ``mkfifo`` make it."""
    return is_unread(path)


def plain_files(path: Path, *, is_named: bool) -> Iterator[tuple[Path, bool]]:
    """Yield the files that a path stands for, each to be read before the next is asked for.

    Args:
        path: a file, an archive (zip, tar), a pipe, or :data:`STDIN`.
        is_named: whether the path was named itself, not found in a folder.

    Yields:
        Files, and whether each was named itself; what an archive holds was not.

    Raises:
        UserError: ``trace.archive`` for an archive that breaks off, after what came before the
            break; ``trace.unreadable`` for what the system does not open; ``trace.zstd``.
    """
    where = "stdin" if path == STDIN else shown_name(path)
    try:
        if not is_pipe(path):
            yield from _unpacked(path, is_named=is_named)
            return
        with _scratch() as folder, opened(path) as stream:
            name = "stdin" if path == STDIN else f"pipe-{path.name}"
            yield from _unpacked(_copied(stream, folder / name), is_named=is_named)
    except _DAMAGED as error:
        raise UserError.of("trace.archive", where=where) from error
    except OSError as error:
        raise UserError.of("trace.unreadable", where=where, os_reason=os_reason(error)) from error


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="meshplan-") as folder:
        yield Path(folder)


def _copied(stream: IO[bytes], path: Path) -> Path:
    with path.open("wb") as copy:
        shutil.copyfileobj(stream, copy, _PIECE_BYTES)
    return path


def _unpacked(path: Path, *, is_named: bool) -> Iterator[tuple[Path, bool]]:
    members = _members(path)
    if members is None:
        yield path, is_named
        return
    with _scratch() as folder:
        for name, stream in members(path):
            copy = folder / (PurePosixPath(name).name or "member")
            try:
                yield _copied(stream, copy), is_named and name == _inner_name(path)
            except _DAMAGED:
                yield copy, False
                raise
            copy.unlink()


def _members(path: Path) -> Callable[[Path], Members] | None:
    """How to take a file apart; None for one that is read as it is.

    Raises:
        UserError: ``trace.zstd``.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(_HEAD_BYTES)
        if start.startswith(_ZSTD):
            return _of_zstd(path)
        if start.startswith(b"PK") and zipfile.is_zipfile(path):
            return _of_zip
        with _decompressed(path) as stream:
            head = stream.read(_HEAD_BYTES)
    except (*_DAMAGED, OSError, ValueError):
        return None  # a reader says what is wrong with it
    if head[_TAR_MARK] == b"ustar":
        return _of_tar
    packed_otherwise = start.startswith((b"BZh", b"\xfd7zXZ"))
    return _whole if packed_otherwise or (head.startswith(_SQLITE) and head != start) else None


def _of_zstd(path: Path) -> Callable[[Path], Members]:
    """How to unpack what the standard library cannot: a package for it, or its own program.

    Raises:
        UserError: ``trace.zstd`` where neither is there.
    """
    if importlib.util.find_spec("zstandard") is not None:
        return _by_zstandard
    if shutil.which("zstd") is not None:
        return _by_program
    raise UserError.of("trace.zstd", where=shown_name(path))


def _by_zstandard(path: Path) -> Members:
    zstandard = importlib.import_module("zstandard")
    unpacker = zstandard.ZstdDecompressor()
    with path.open("rb") as packed:
        try:
            yield from _streamed(
                path, io.BufferedReader(unpacker.stream_reader(packed, read_across_frames=True))
            )
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error


def _by_program(path: Path) -> Members:
    command = ["zstd", "--decompress", "--stdout", "--quiet", "--", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        yield from _streamed(path, cast(io.BufferedReader, program.stdout))
        if program.wait():
            raise EOFError("zstd")


def _streamed(path: Path, stream: io.BufferedReader) -> Members:
    """The one file of an unpacked stream, or those of a tar archive in it."""
    if stream.peek(_HEAD_BYTES)[_TAR_MARK] == b"ustar":
        yield from _of_open_tar(stream)
    else:
        yield _inner_name(path), stream


def _decompressed(path: Path) -> IO[bytes]:
    """A file without its compression, if it has one."""
    with path.open("rb") as stream:
        start = stream.read(6)
    openers: tuple[tuple[bytes, Callable[..., object]], ...] = (
        (b"\x1f\x8b", gzip.open),
        (b"BZh", bz2.open),
        (b"\xfd7zXZ", lzma.open),
    )
    open_it = next((opener for magic, opener in openers if start.startswith(magic)), open)
    return cast(IO[bytes], open_it(path, "rb"))


def _whole(path: Path) -> Members:
    """One compressed file."""
    with _decompressed(path) as stream:
        yield _inner_name(path), stream


def _inner_name(path: Path) -> str:
    return path.stem if path.suffix else path.name


def _of_zip(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist(), key=natural):
            if not name.endswith("/") and _is_seen(name):
                with archive.open(name) as stream:
                    yield name, stream


def _of_tar(path: Path) -> Members:
    with _decompressed(path) as packed:
        yield from _of_open_tar(packed)


def _of_open_tar(stream: IO[bytes]) -> Members:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None and _is_seen(member.name):
                yield member.name, file


def _is_seen(name: str) -> bool:
    """Whether a member of an archive is no hidden file, as in folders."""
    parts = PurePosixPath(name).parts
    return not any(part.startswith((".", "__MACOSX")) and part != "." for part in parts)
