"""Lines of a text file, plain or gzipped, in UTF-8 or what a Windows console writes."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from pathlib import Path

from meshplan.diagnose.read.gunzip import Gunzip, is_gzip
from meshplan.diagnose.values import shown_name
from meshplan.errors import UserError, os_reason

__all__ = ["as_utf8", "text_lines"]

_LONGEST_LINE = 1 << 20
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def as_utf8(head: bytes) -> bytes:
    """The start of a file without its mark of encoding, in UTF-8."""
    if head.startswith(_WIDE):
        return head[: len(head) // 2 * 2].decode("utf-16", "replace").encode()
    return head.removeprefix(codecs.BOM_UTF8)


def text_lines(
    path: Path, *, code: str, damaged: Callable[[], None] | None = None
) -> Iterator[str]:
    """Yield lines without their ends; of a damaged archive, those before the damage.

    A carriage return ends a line too, as progress bars use it.

    Args:
        path: the file.
        code: error to raise when it cannot be read.
        damaged: called at the end of an archive that is cut off or damaged.

    Raises:
        UserError: ``code``.
    """
    try:
        with path.open("rb") as plain:
            archive = Gunzip(plain) if is_gzip(plain.read(2)) else None
            plain.seek(0)
            stream = plain if archive is None else io.BufferedReader(archive)
            encoding = "utf-16" if stream.peek(2)[:2] in _WIDE else "utf-8-sig"
            text = io.TextIOWrapper(stream, encoding=encoding, errors="replace")
            while line := text.readline(_LONGEST_LINE):
                yield from line.splitlines()
            if archive is not None and not archive.complete and damaged is not None:
                damaged()
    except (OSError, ValueError, UnicodeError) as error:
        raise UserError.of(code, where=shown_name(path), os_reason=os_reason(error)) from error
