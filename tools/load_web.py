"""Fifty clients for a minute against a running app: ``python tools/load_web.py URL PID [SECONDS]``.

Prints requests, errors, latencies, and the memory of the server before and after.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path

import httpx

CLIENTS = 50
SCENARIO = {
    "model": "llama-3.1-8b",
    "cluster": "8xH100",
    "job": {"seq_len": 4096, "global_batch": 64},
}


def memory_mib(pid: int) -> float:
    """Resident memory of a process [MiB]."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Run the clients and print what happened."""
    url, pid = sys.argv[1], int(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    took: list[float] = []
    errors: list[str] = []
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            turn = number
            while time.monotonic() < end:
                turn += 1
                # every batch size is new, so that the answers are computed and not remembered
                job = {**SCENARIO["job"], "global_batch": 64 * (1 + turn % 400)}
                asked = {**SCENARIO, "job": job, "plan": {"tp": 2, "zero": 1}}
                began = time.monotonic()
                sent = client.post("/api/estimate", json=asked)
                took.append(time.monotonic() - began)
                if sent.status_code != 200:
                    errors.append(f"{sent.status_code} {sent.text[:200]}")

    marks = [memory_mib(pid)]
    threads = [threading.Thread(target=work, args=(37 * i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(min(15.0, max(end - time.monotonic(), 0.0)))
        marks.append(memory_mib(pid))
    for thread in threads:
        thread.join()
    print(f"{len(took)} requests, {len(errors)} errors {errors[:3]}")
    print(f"median {statistics.median(took):.3f} s, longest {max(took):.3f} s")
    print("memory of the server [MiB]:", " ".join(f"{mark:.0f}" for mark in marks))


if __name__ == "__main__":
    main()
