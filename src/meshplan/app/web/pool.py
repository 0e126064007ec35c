"""Worker processes: a search that nobody waits for any more is stopped with its process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["WORKER", "Pool", "Results", "worker_environment"]

Json = dict[str, Any]

WORKER = (sys.executable, "-m", "meshplan.app.web.worker")
"""The command of a process that answers."""
_KEPT_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
}
"""What glibc keeps of freed memory [bytes]: arrays of one answer are room for those of the next,
which would otherwise come back from the system page by page."""
_LONGEST_LINE = 64 * 2**20
_LAST = frozenset({"result", "problems", "fault"})
"""Keys of the last line of an answer."""


def worker_environment() -> dict[str, str]:
    """Environment of a worker: that of this process, and how memory is kept unless it says so."""
    return {**_KEPT_MEMORY, **os.environ}


class Pool:
    """A few processes that each answer one request at a time.

    Args:
        size: processes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._all: set[asyncio.subprocess.Process] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the processes, so that the first request need not wait for their imports."""
        for process in await asyncio.gather(*(self._spawn() for _ in range(self._size))):
            self._free.put_nowait(process)

    async def close(self) -> None:
        """Stop all processes."""
        self._closed = True
        await asyncio.gather(*self._replacing, return_exceptions=True)
        for process in tuple(self._all):
            await self._stop(process)

    async def ask(
        self,
        verb: str,
        request: Mapping[str, Any],
        *,
        tell: Callable[[Json], None] | None = None,
    ) -> Json:
        """Answer a request; when the caller is cancelled, the process is stopped.

        Args:
            verb: what is asked.
            request: with what.
            tell: told what the process says before it is done: ``share`` or ``part``.
        """
        process = await self._free.get()
        keep = False
        try:
            if process is None or process.returncode is not None:
                process = await self._spawn()
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps({"verb": verb, "request": request}).encode() + b"\n")
            await process.stdin.drain()
            while line := await process.stdout.readline():
                said: Json = json.loads(line)
                if said.keys() & _LAST:
                    keep = True
                    return said
                if tell is not None:
                    tell(said)
            return {"fault": "WorkerStopped"}
        finally:
            if keep or process is None:
                self._free.put_nowait(process)
            else:
                # a cancelled caller is gone; the process must be gone as well. A task of its own
                # sees to that: whoever waited here could be cancelled once more
                replacing = asyncio.create_task(self._replace(process))
                self._replacing.add(replacing)
                replacing.add_done_callback(self._replacing.discard)

    async def _replace(self, process: asyncio.subprocess.Process) -> None:
        """Put another process in the place of one, with its imports behind it when it is asked."""
        fresh: asyncio.subprocess.Process | None = None
        try:
            await self._stop(process)
            fresh = None if self._closed else await self._spawn()
        finally:
            self._free.put_nowait(fresh)

    async def _spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *WORKER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=worker_environment(),
            limit=_LONGEST_LINE,
        )
        self._all.add(process)
        return process

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        self._all.discard(process)
        if process.returncode is None:
            process.kill()
        await process.wait()


class Results:
    """The last answers, by request.

    Args:
        most: how many are kept.
        most_bytes: how much text is kept [bytes].
    """

    def __init__(self, *, most: int = 64, most_bytes: int = 32 * 2**20) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._texts: OrderedDict[str, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        """The text of an answer, None when it is not there."""
        if key in self._texts:
            self._texts.move_to_end(key)
        return self._texts.get(key)

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, key: str, text: str) -> None:
        """Keep an answer, and drop the oldest where there are too many."""
        self._bytes += len(text) - len(self._texts.pop(key, ""))
        self._texts[key] = text
        while len(self._texts) > self._most or self._bytes > self._most_bytes:
            _, oldest = self._texts.popitem(last=False)
            self._bytes -= len(oldest)
