"""Measure how fast traces are read and measured, and in how much memory.

Run with ``python tools/bench_diagnose.py``; ``--large`` adds a trace of 2 GB and a folder of 64
ranks. The traces are written first, in the form and with the mix of events that PyTorch's profiler
writes. Each case runs in a process of its own; its CPU time stands beside the wall time for a busy
machine, and the CPU time of ``json.load`` on the same file gives the scale.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
LIMIT_CPU_S, LIMIT_MIB = 2.0, 1024.0

READ = """
import sys
from meshplan.diagnose.reading import read_run
run = read_run(sys.argv[1:])
print(sum(rank.num_events for rank in run.ranks), len(run.ranks), len(run.ranks[0].steps))
"""
LOAD = "import json, sys; print(len(json.load(open(sys.argv[1]))['traceEvents']), 1, 0)"

HEAD = """{{
"schemaVersion": 1,
"deviceProperties": [{{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85029158912}}],
"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {world}}},
"traceEvents": ["""
OPERATOR = """
{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 2119, "tid": 2119, "ts": {ts:.3f},
"dur": 11.5,
"args": {{"External id": {i}, "Record function id": 0, "Concrete Inputs": ["", "", "1", "[]"],
"Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar", ""],
"Input Dims": [[4096, 8192], [8192, 1024], [], []], "Ev Idx": {i}}}}},"""
LAUNCH = """
{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 2119, "tid": 2119,
"ts": {ts:.3f}, "dur": 4.2, "args": {{"External id": {i}, "cbid": 211, "correlation": {i}}}}},
{{"ph": "s", "id": {i}, "pid": 2119, "tid": 2119, "ts": {ts:.3f}, "cat": "ac2g", "name": "ac2g"}},
{{"ph": "f", "id": {i}, "pid": 0, "tid": 7, "ts": {kernel:.3f}, "cat": "ac2g", "name": "ac2g",
"bp": "e"}},"""
KERNEL = """
{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {kernel:.3f},
"dur": {dur:.3f}, "args": {{"External id": {i}, "queued": 0, "device": 0, "context": 1,
"stream": {stream}, "correlation": {i}, "registers per thread": 168, "shared memory": 214016,
"blocks per SM": 1.0,
"warps per SM": 12.0, "grid": [132, 1, 1], "block": [384, 1, 1]{more}}}}},"""
COLLECTIVE = """, "Collective name": "_allgather_base", "In msg nelems": 4194304,
"Out msg nelems": 33554432, "Group size": 8, "dtype": "BFloat16", "Process Group Name": "3",
"Process Group Description": "mesh_fsdp", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]\""""
STEP = """
{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 2119, "tid": 2119,
"ts": {ts:.3f}, "dur": {dur:.3f}, "args": {{"External id": {step}}}}},"""
PER_STEP = 6000


def write_trace(path: Path, *, num_bytes: float, rank: int = 0, world: int = 64) -> Path:
    """Write a trace of about so many bytes."""
    with path.open("w") as stream:
        written = stream.write(HEAD.format(rank=rank, world=world))
        i = 0
        while written < num_bytes:
            i += 1
            ts = 1.7e12 + 25.0 * i
            if i % PER_STEP == 1:
                step = STEP.format(step=i // PER_STEP, ts=ts, dur=25.0 * PER_STEP)
                written += stream.write(step)
            is_collective = i % 40 == 0
            name = "ncclDevKernel_AllGather_RING_LL" if is_collective else f"sm90_gemm_{i % 97}"
            values = {"i": i, "ts": ts, "kernel": ts + 40.0, "dur": 21.5, "name": name}
            written += stream.write(OPERATOR.format(**{**values, "name": f"aten::op{i % 61}"}))
            written += stream.write(LAUNCH.format(**values))
            more = COLLECTIVE if is_collective else ""
            text = KERNEL.format(**values, stream=20 if is_collective else 7, more=more)
            written += stream.write(text)
        stream.write('\n{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "x"}}]}')
    return path


def run(code: str, *paths: Path) -> tuple[str, float, float, float]:
    """Run a program; return its output, wall time [s], CPU time [s] and peak memory [MiB]."""
    command = [sys.executable, "-c", code, *map(str, paths)]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, env={**os.environ, **ONE_THREAD})
        began = os.times().elapsed
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = os.times().elapsed - began
        if os.waitstatus_to_exitcode(status) != 0:
            raise SystemExit(f"failed: {' '.join(command[2:])}")
        output.seek(0)
        return output.read(), wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def report(name: str, num_bytes: float, code: str, *paths: Path) -> tuple[float, float]:
    """Run one case and print it; return CPU time [s] and peak memory [MiB]."""
    output, wall_s, cpu_s, peak_mib = run(code, *paths)
    events = int(output.split()[0])
    print(
        f"{name:<28}{num_bytes / 1e6:>8.0f} MB{events:>12,} events"
        f"{wall_s:>8.2f} s wall{cpu_s:>8.2f} s CPU{peak_mib:>8.0f} MiB"
    )
    return cpu_s, peak_mib


def main() -> int:
    """Run the cases; exit 1 when the 150 MB trace takes more than its limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="2 GB, and 64 ranks of 32 MB")
    parser.add_argument("--ranks", type=int, default=64, help="ranks of the folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = write_trace(folder / "rank0.json", num_bytes=150e6)
        cpu_s, peak_mib = report("one trace", 150e6, READ, path)
        loaded_s, loaded_mib = report("the same with json.load", 150e6, LOAD, path)
        print(f"CPU time {cpu_s / loaded_s:.2f}, memory {peak_mib / loaded_mib:.2f} of json.load")
        path.unlink()
        if given.large:
            path = write_trace(folder / "rank0.json", num_bytes=2e9)
            report("one large trace", 2e9, READ, path)
            path.unlink()
            ranks = folder / "ranks"
            ranks.mkdir()
            for rank in range(given.ranks):
                write_trace(
                    ranks / f"rank{rank}.json", num_bytes=32e6, rank=rank, world=given.ranks
                )
            report(f"a folder of {given.ranks} ranks", 32e6 * given.ranks, READ, ranks)
    return int(cpu_s > LIMIT_CPU_S or peak_mib > LIMIT_MIB)


if __name__ == "__main__":
    raise SystemExit(main())
