"""Files and pipes that a person names, opened so that nobody waits unaware.

A path may be a pipe: ``/dev/stdin``, ``<(...)`` of a shell, what ``mkfifo`` makes, or ``-`` for the
standard input. One that nobody has written to yet is waited for, as every tool does; whoever asked
is told what for. A pipe gives its bytes once, so that within one command a second look at it gets
what the first one got.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

__all__ = ["STDIN", "is_nameless", "is_pipe", "is_there", "opened", "read_bytes", "telling_waits"]

STDIN = "-"
"""What the standard input is called among paths."""

_PATIENCE_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """What lasts as long as one command: whom to tell, and what pipes gave."""

    tell: Callable[[str], None]
    kept: dict[str, bytes] = field(default_factory=dict)


_command: ContextVar[_Command | None] = ContextVar("command", default=None)


@contextmanager
def telling_waits(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell of every pipe that is waited for, and keep what small ones gave, until the end.

    Args:
        tell: called with the name of a pipe that has given nothing for a second.
    """
    token = _command.set(_Command(tell=tell))
    try:
        yield
    finally:
        _command.reset(token)


def is_there(path: str | Path) -> bool:
    """Whether a file, folder or pipe has that name; a name that no file can have is none."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_pipe(path: str | Path) -> bool:
    """Whether a path is the standard input, or a pipe as ``<(...)`` and ``mkfifo`` make it."""
    if str(path) == STDIN:
        return True
    try:
        return Path(path).is_fifo()
    except (OSError, ValueError):
        return False


def is_nameless(path: str | Path) -> bool:
    """Whether a path tells nothing of what it holds: a pipe, or whatever a shell opened."""
    return is_pipe(path) or str(path).startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/"))


def read_bytes(path: str | Path, *, most_bytes: int) -> bytes:
    """Read a file or a pipe.

    Args:
        path: its name; :data:`STDIN` is the standard input.
        most_bytes: the largest size that is of use. A larger file gives one byte more.

    Raises:
        OSError: when the system does not open it, or it is a device.
        ValueError: when no file can have such a name.
    """
    command, name = _command.get(), str(path)
    name = STDIN if name == "/dev/stdin" else name
    if command is not None and name in command.kept:
        return command.kept[name]
    with opened(path) as stream:
        found = stream.read(most_bytes + 1)
    if command is not None and is_nameless(path):
        command.kept[name] = found
    return found


def opened(path: str | Path) -> BinaryIO:
    """Open a file or a pipe for reading bytes; one that has nothing yet is waited for.

    Raises:
        OSError: when the system does not open it, or it is a device.
        ValueError: when no file can have such a name.
    """
    if str(path) == STDIN:
        with contextlib.suppress(io.UnsupportedOperation):  # a program may have put its own there
            _await(sys.stdin.buffer.fileno(), STDIN)
        return sys.stdin.buffer
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat.S_ISREG(mode) or os.path.samefile(path, os.devnull):
        return open(path, "rb")
    # without waiting for a writer, so that the wait is ours and can be told of
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not (stat.S_ISFIFO(mode) or os.isatty(descriptor)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
    try:
        _await(descriptor, str(path))
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return io.BufferedReader(io.FileIO(descriptor, "rb"))


def _await(descriptor: int, name: str) -> None:
    """Wait until there is something to read, or whoever would write has gone."""
    if not hasattr(select, "poll"):
        return
    command = _command.get()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
    if not poll.poll(_PATIENCE_MS):
        if command is not None:
            command.tell(name)
        poll.poll()
