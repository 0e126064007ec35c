"""What kind of file something is, and the files of a folder."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from meshplan.diagnose.read.gunzip import Gunzip, is_gzip
from meshplan.diagnose.read.natural import natural
from meshplan.diagnose.read.packed import STDIN
from meshplan.diagnose.read.text import as_utf8
from meshplan.diagnose.values import shown_name
from meshplan.errors import ProblemList, UserError, os_reason

__all__ = ["FileKind", "files_of", "kind_of_file"]

FileKind: TypeAlias = Literal["trace", "nsight", "metrics", "log", "unknown"]

_HEAD_BYTES = 1 << 16
_SQLITE = b"SQLite format 3\x00"
_TRACE = re.compile(rb'^\s*(?:\[\s*(?:\{|$)|\{\s*(?:"|\}|$))')
_EVENTS = re.compile(rb'"traceEvents"|"ph"\s*:')
_METRICS = re.compile(
    rb"utilization\.|^#\s*(?:(?:Date[\s,]+)?(?:Time[\s,]+)?gpu[\s,]|Entity)|DCGM_FI_|memory\.used|clocks\.(?:sm|gr|current)",
    re.MULTILINE,
)


def files_of(paths: Iterable[str | Path]) -> list[tuple[Path, bool]]:
    """All files that were named, folders opened, in natural order; ``-`` is the standard input.

    Returns:
        Files, and whether each was named itself.

    Raises:
        UserError: ``trace.absent`` for every path that does not exist, ``trace.empty_folder``
            for every folder without files.
    """
    problems = ProblemList()
    found: list[tuple[Path, bool]] = []
    for name in paths:
        path = Path(name)
        try:
            is_folder, exists = path.is_dir(), path.exists()
        except (OSError, ValueError):
            is_folder = exists = False
        if is_folder:
            inside = sorted(_inside(path), key=lambda file: natural(str(file)))
            if not inside:
                problems.add("trace.empty_folder", where=shown_name(path))
            found.extend((file, False) for file in inside)
        elif exists or path == STDIN:
            found.append((path, True))
        else:
            problems.add("trace.absent", where=shown_name(path))
    problems.raise_if_any()
    return list(dict.fromkeys(found))


def _inside(folder: Path) -> Iterator[Path]:
    """Files below a folder; hidden ones are left out."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file():
            yield path


def kind_of_file(path: Path) -> FileKind:
    """Tell from its first bytes what a file is.

    Raises:
        UserError: ``trace.unreadable`` when it cannot be opened, ``trace.nothing_whole`` when an
            archive is damaged before anything of it can be unpacked.
    """
    head = as_utf8(_head(path))
    if head.startswith(_SQLITE):
        return "nsight"
    if _is_trace(head):
        return "trace"
    if _METRICS.search(head[:4096]):
        return "metrics"
    if b"\x00" in head:
        return "unknown"
    return "log" if head.strip() else "unknown"


def _is_trace(head: bytes) -> bool:
    """Whether a text starts like a trace and not like a log of one JSON object a line."""
    if not _TRACE.match(head):
        return False
    if _EVENTS.search(head):
        return True
    line, newline, _ = head.strip().partition(b"\n")
    if not newline or not line.startswith(b"{"):
        return True
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError:
        return True
    return False


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
        if not is_gzip(head):
            return head
        with path.open("rb") as packed:
            archive = Gunzip(packed)
            found = io.BufferedReader(archive).read(_HEAD_BYTES)
    except (OSError, ValueError) as error:
        raise UserError.of(
            "trace.unreadable", where=shown_name(path), os_reason=os_reason(error)
        ) from error
    if not found and not archive.complete:
        raise UserError.of("trace.nothing_whole", where=shown_name(path))
    return found
