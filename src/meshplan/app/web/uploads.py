"""Files that a person drops on the page: kept under names of our own until they are not needed.

A name from a request never becomes a path as it is: what is left of it are its harmless characters,
inside a folder that the server made for this one file. The name is kept that far because it may say
which rank a trace is of.
"""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterable
from pathlib import Path

from anyio import open_file

from meshplan.errors import UserError, os_reason
from meshplan.record import record
from meshplan.units import format_memory

__all__ = ["MOST_FILE_BYTES", "Upload", "Uploads"]

MOST_FILE_BYTES = 4 * 2**30
"""Largest file: traces of 2 GB are met in the wild."""
_MOST_BYTES = 8 * 2**30
_MOST_FILES = 1024
_LONGEST_NAME = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@record
class Upload:
    """One file that was received.

    Attributes:
        key: what a request names it by.
        path: where it lies.
        num_bytes: its size [bytes].
    """

    key: str
    path: Path
    num_bytes: int


class Uploads:
    """The files of a server; the oldest go when there are too many."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="meshplan-"))
        self._files: OrderedDict[str, Upload] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    async def receive(self, name: str, parts: AsyncIterable[bytes]) -> Upload:
        """Write a file down as it comes in.

        Raises:
            UserError: ``web_upload_too_large``; ``web_upload_failed`` when the disk is full.
        """
        key = secrets.token_urlsafe(12)
        folder = self._folder / key
        path = folder / _harmless(name)
        size = 0
        try:
            folder.mkdir()
            async with await open_file(path, "wb") as out:
                async for part in parts:
                    size += len(part)
                    if size > MOST_FILE_BYTES:
                        most = format_memory(MOST_FILE_BYTES)
                        raise UserError.of("web_upload_too_large", where=path.name, allowed=(most,))
                    await out.write(part)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise UserError.of(
                "web_upload_failed", where=path.name, os_reason=os_reason(error)
            ) from error
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        found = Upload(key=key, path=path, num_bytes=size)
        self._files[key] = found
        self._make_room()
        return found

    def paths(self, keys: list[str]) -> list[Path]:
        """Where files lie.

        Raises:
            UserError: ``web_upload_gone`` for a key that is not known any more.
        """
        for key in keys:
            if key not in self._files:
                raise UserError.of("web_upload_gone", where="files", value=str(key)[:40])
            self._files.move_to_end(key)
        return [self._files[key].path for key in keys]

    def close(self) -> None:
        """Delete all files."""
        self._files.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_room(self) -> None:
        while len(self._files) > 1 and (
            len(self._files) > _MOST_FILES
            or sum(file.num_bytes for file in self._files.values()) > _MOST_BYTES
        ):
            _, oldest = self._files.popitem(last=False)
            shutil.rmtree(oldest.path.parent, ignore_errors=True)


def _harmless(name: str) -> str:
    """Letters, digits, dots, dashes and underscores of the last part of a name."""
    last = re.split(r"[/\\]", name)[-1]
    return _UNSAFE.sub("_", last)[-_LONGEST_NAME:].lstrip(".-") or "file"
