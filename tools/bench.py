"""Measure how fast plans are found: whole command, one core, peak memory; changes in the app.

Run with ``python tools/bench.py``; each case runs in a process of its own, with BLAS and OpenMP
held to one thread and with compiled modules, as an installation has them. Times are wall times of
an idle machine; the CPU time stands beside them for a busy one. A change in the app is one more
request to a worker of the server that has answered others before, never one that it was asked
before: the time until the first answer (plans with memory and time, what was refused), until the
second (why) and until the whole one (what would change the choice).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from meshplan.app.web.pool import WORKER, worker_environment


@dataclass(frozen=True)
class Case:
    """One job to plan, and what its search may take."""

    name: str
    model: str
    cluster: str
    seq_len: int
    global_batch: int
    limit_s: float


CASES = (
    Case("64 GPUs, with start-up", "llama-3.1-70b", "64xH100", 8192, 1024, 1.0),
    Case("GPT-3 on 1,024 A100", "gpt3-175b", "1024xA100-80GB", 2048, 1536, 10.0),
    Case("405B on 16,384 H100", "llama-3.1-405b", "16384xH100", 8192, 2048, 15.0),
)
HELP_LIMIT_S = 0.150
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


@dataclass(frozen=True)
class Change:
    """A job of the app that a person changes, and what the first answer may take."""

    name: str
    model: str
    cluster: str
    global_batch: int
    limit_s: float
    objective: str = "fastest"


CHANGES = (
    Change("a change at 256 GPUs", "llama-3.1-70b", "256xH100", 1024, 0.150),
    Change("a change at 4,096 GPUs", "llama-3.1-70b", "4096xH100", 4096, 1.0),
    Change("a change at 16,384 GPUs", "llama-3.1-405b", "16384xH100", 4096, 1.0),
    Change("Pareto picture up to 256 GPUs", "llama-3.1-70b", "256xH100", 1024, 5.0, "pareto"),
)
SEQ_LENS = (4096, 8192, 6144, 16384, 12288, 10240, 2048)
"""What is typed one after another; the first answers warm the worker and do not count."""
_WARM_UP = 2


def run(arguments: list[str]) -> tuple[str, float, float, float]:
    """Run the command; return its output, wall time [s], CPU time [s] and peak memory [MiB]."""
    command = [sys.executable, "-m", "meshplan", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, env=_environment())
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            raise SystemExit(f"failed: {' '.join(command)}")
        output.seek(0)
        cpu_s = usage.ru_utime + usage.ru_stime
        return output.read(), wall_s, cpu_s, usage.ru_maxrss / 1024


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **ONE_THREAD}


def bench(case: Case) -> dict[str, object]:
    """Plan one job and gather what the result says of its search."""
    arguments = ["plan", case.model, "--cluster", case.cluster, "--json"]
    arguments += ["--seq-len", str(case.seq_len), "--global-batch", str(case.global_batch)]
    output, wall_s, cpu_s, peak_mib = run(arguments)
    searched = json.loads(output)["searched"]
    return {
        "case": case.name,
        "limit_s": case.limit_s,
        "wall_s": round(wall_s, 3),
        "cpu_s": round(cpu_s, 3),
        "peak_mib": round(peak_mib, 1),
        **searched,
    }


def on_cpu_s(pid: int) -> float:
    """Time that a process has been on a CPU so far [s], as Linux counts it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def answers(change: Change) -> Iterator[tuple[float, float, float, float]]:
    """Ask a worker of the app again and again.

    Yields:
        Wall times to the first answer, to why, and to all, and CPU time to the first answer [s].
    """
    pipe = subprocess.PIPE
    environment = {**worker_environment(), **_environment()}
    with subprocess.Popen(WORKER, stdin=pipe, stdout=pipe, text=True, env=environment) as worker:
        assert worker.stdin
        assert worker.stdout
        for seq_len in SEQ_LENS:
            request = {
                "model": change.model,
                "cluster": change.cluster,
                "frameworks": ["megatron"],  # the page always names one
                "job": {"seq_len": seq_len, "global_batch": change.global_batch},
                "objective": change.objective,
                "top": 8,
            }
            began, parts_s = time.perf_counter(), []
            cpu_s = on_cpu_s(worker.pid)
            worker.stdin.write(json.dumps({"verb": "plan", "request": request}) + "\n")
            worker.stdin.flush()
            for line in worker.stdout:
                said = json.loads(line)
                if "part" in said:
                    if not parts_s:
                        cpu_s = on_cpu_s(worker.pid) - cpu_s
                    parts_s.append(time.perf_counter() - began)
                elif "share" not in said:
                    if "result" not in said:
                        raise SystemExit(f"failed: {change.name}: {line}")
                    break
            whole_s = time.perf_counter() - began
            if not parts_s:
                cpu_s = on_cpu_s(worker.pid) - cpu_s
            parts_s += [whole_s] * 2
            yield parts_s[0], parts_s[1], whole_s, cpu_s
        worker.stdin.close()


def bench_change(change: Change) -> dict[str, object]:
    """Median times of a warm worker of the app."""
    first_s, why_s, whole_s, cpu_s = zip(*list(answers(change))[_WARM_UP:], strict=True)
    return {
        "case": change.name,
        "limit_s": change.limit_s,
        "wall_s": round(statistics.median(first_s), 3),
        "first_cpu_s": round(statistics.median(cpu_s), 3),
        "why_s": round(statistics.median(why_s), 3),
        "whole_s": round(statistics.median(whole_s), 3),
    }


def bench_help() -> dict[str, object]:
    """Time of ``meshplan --help``, best of five."""
    walls = [run(["--help"])[1] for _ in range(5)]
    return {"case": "--help", "limit_s": HELP_LIMIT_S, "wall_s": round(min(walls), 3)}


def measured() -> Iterator[dict[str, object]]:
    """All rows, one after another."""
    bench_help()  # compiles what an installation has compiled
    yield bench_help()
    yield from map(bench, CASES)
    yield from map(bench_change, CHANGES)


def main() -> None:
    """Print one line per case, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    wanted = parser.parse_args()
    rows = measured()
    if wanted.json:
        print(json.dumps(list(rows), indent=2))
        return
    for row in rows:
        print(f"{row['case']}: {row['wall_s']} s wall (limit {row['limit_s']} s)")
        if "whole_s" in row:
            print(
                f"  to the first answer ({row['first_cpu_s']} s CPU); {row['why_s']} s to why,"
                f" {row['whole_s']} s to all"
            )
        if "cpu_s" not in row:
            continue
        print(
            f"  {row['num_candidates']:,} candidates, {row['num_legal']:,} legal,"
            f" ({row['evaluations_per_s']:,.0f} judged per second), {row['num_evaluated']:,}"
            f" evaluated in full, {row['num_exact']:,} simulated"
        )
        print(
            f"  {row['elapsed_s']:.2f} s in the search, {row['cpu_s']} s CPU,"
            f" {row['peak_mib']:,.0f} MiB peak"
        )


if __name__ == "__main__":
    main()
