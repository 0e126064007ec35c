"""Fifty clients for a minute against a running app: ``python tools/load_web.py URL PID [SECONDS]``.

Prints requests, errors, latencies, and the memory of the server and of its workers over time.
Plans, models, clusters and batches vary, so that answers are computed and not remembered; two of
the clients search all the time, the others glance at plans and pictures.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

CLIENTS, SEARCHERS = 50, 2
DEVICES = ("H100", "A100", "B200")
SCENES = (
    ("data", "transmission"),
    ("pipeline", "output"),
    ("scale", "overview"),
    ("combination", "transmission"),
    ("panorama", "output"),
)


def requests(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Endless requests of one client: a path and its body."""
    chance = random.Random(seed)
    for turn in itertools.count():
        asked: dict[str, Any] = {
            "model": chance.choice(("llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b")),
            "cluster": f"{chance.choice((8, 16, 64, 256))}x{chance.choice(DEVICES)}",
            "job": {
                "seq_len": 2048 + 128 * chance.randrange(48),
                "global_batch": 256 * chance.randrange(1, 9),
            },
        }
        if seed < SEARCHERS:
            yield "search", {**asked, "top": 5, "axes": {"pp": [1, 2], "cp": [1]}}
            continue
        asked["plan"] = {"tp": chance.choice((1, 2, 4)), "zero": 1, "recompute": "full"}
        if turn % 3:
            yield "glance?soft=1", asked
        else:
            mechanism, mode = chance.choice(SCENES)
            yield "scene?soft=1", {**asked, "mechanism": mechanism, "mode": mode}


def memory_mib(pid: int) -> float:
    """Resident memory of a process and its children [MiB]."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    total = 0.0
    for each in (pid, *map(int, children)):
        try:
            status = Path(f"/proc/{each}/status").read_text(encoding="utf-8")
        except FileNotFoundError:  # a worker that was stopped
            continue
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        total += int(line.split()[1]) / 1024
    return total


def main() -> None:
    """Run the clients and print what happened."""
    url, pid = sys.argv[1], int(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    took: list[float] = []
    errors: list[str] = []
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        with httpx.Client(base_url=url, timeout=300) as client:
            for path, asked in requests(number):
                if time.monotonic() >= end:
                    return
                began = time.monotonic()
                sent = client.post(f"/api/{path}", json=asked)
                took.append(time.monotonic() - began)
                if sent.status_code != 200 or '"fault"' in sent.text[:40]:
                    errors.append(f"{path} {sent.status_code} {sent.text[:200]}")

    marks = [memory_mib(pid)]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(min(15.0, max(end - time.monotonic(), 0.0)))
        marks.append(memory_mib(pid))
    for thread in threads:
        thread.join()
    print(f"{len(took)} requests, {len(errors)} errors {errors[:3]}")
    print(f"median {statistics.median(took):.3f} s, longest {max(took):.3f} s")
    shown = " ".join(f"{mark:.0f}" for mark in [*marks, memory_mib(pid)])
    print("memory of the server and its workers [MiB]:", shown)


if __name__ == "__main__":
    main()
