"""Measure how fast plans are found: whole command, one core, peak memory.

Run with ``python tools/bench.py``; each case runs in a process of its own, with BLAS and OpenMP
held to one thread. Times are wall times of an idle machine; the CPU time stands beside them for a
busy one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass


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


def run(arguments: list[str]) -> tuple[str, float, float, float]:
    """Run the command; return its output, wall time [s], CPU time [s] and peak memory [MiB]."""
    command = [sys.executable, "-m", "meshplan", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, env={**os.environ, **ONE_THREAD})
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            raise SystemExit(f"failed: {' '.join(command)}")
        output.seek(0)
        cpu_s = usage.ru_utime + usage.ru_stime
        return output.read(), wall_s, cpu_s, usage.ru_maxrss / 1024


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


def bench_help() -> dict[str, object]:
    """Time of ``meshplan --help``, best of five."""
    walls = [run(["--help"])[1] for _ in range(5)]
    return {"case": "--help", "limit_s": HELP_LIMIT_S, "wall_s": round(min(walls), 3)}


def main() -> None:
    """Print one line per case, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    wanted = parser.parse_args()
    rows = [bench_help(), *(bench(case) for case in CASES)]
    if wanted.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(f"{row['case']}: {row['wall_s']} s wall (limit {row['limit_s']} s)")
        if "cpu_s" not in row:
            continue
        print(
            f"  {row['num_candidates']:,} candidates, {row['num_legal']:,} legal,"
            f" {row['num_evaluated']:,} evaluated in full ({row['evaluations_per_s']:,.0f} per"
            f" second), {row['num_exact']:,} simulated"
        )
        print(
            f"  {row['elapsed_s']:.2f} s in the search, {row['cpu_s']} s CPU,"
            f" {row['peak_mib']:,.0f} MiB peak"
        )


if __name__ == "__main__":
    main()
