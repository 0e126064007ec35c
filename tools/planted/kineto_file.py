"""A played run as the Kineto file that the profiler of PyTorch would have written."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec

from meshplan.diagnose.columns import Collective
from planted.play import Played
from planted.write import Columns, Seen, gathered, rank_trace

__all__ = ["write_kineto"]


def write_kineto(played: Played, rank: int, seen: Seen, folder: Path) -> Path:
    """Write the trace of one rank as the profiler of PyTorch does."""
    trace = rank_trace(played, rank, seen)
    made = gathered(played, rank, seen)
    events: list[dict[str, Any]] = []
    correlation = 0
    for kind, columns in (
        ("kernel", trace.compute),
        ("kernel", trace.communication),
        ("gpu_memcpy", trace.copies),
    ):
        for i in range(len(columns)):
            correlation += 1
            args: dict[str, Any] = {
                "device": rank % max(seen.gpus_per_node, 1),
                "stream": int(columns.stream[i]),
                "correlation": correlation,
            }
            if columns.collective[i] >= 0:
                args |= _meta(trace.collectives[columns.collective[i]])
            events.append(
                _slice(
                    kind,
                    trace.names[columns.name[i]],
                    columns.start[i],
                    columns.end[i],
                    tid=int(columns.stream[i]),
                    args=args,
                )
            )
            events.append(
                _slice(
                    "cuda_runtime",
                    "cudaMemcpyAsync" if kind == "gpu_memcpy" else "cudaLaunchKernel",
                    columns.launch[i],
                    columns.launch[i] + 2.0,
                    args={"correlation": correlation},
                )
            )
    events += _host_events(made)
    for window in trace.steps:
        events.append(_slice("user_annotation", window.name, window.start, window.end))
    if seen.reserved_bytes:
        events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": float(trace.steps[-1].start),
                "s": "t",
                "args": {
                    "Device Type": 1,
                    "Device Id": rank % max(seen.gpus_per_node, 1),
                    "Total Reserved": int(seen.reserved_bytes),
                    "Total Allocated": int(0.97 * seen.reserved_bytes),
                    "Bytes": 512,
                },
            }
        )
    head: dict[str, Any] = {"schemaVersion": 1}
    if seen.gpus_per_node:
        head["deviceProperties"] = [
            {"id": i, "name": seen.device, "totalGlobalMem": int(seen.memory_bytes)}
            for i in range(seen.gpus_per_node)
        ]
    if seen.rank:
        head["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": len(played.steps),
        }
        if trace.groups:
            head["distributedInfo"]["pg_config"] = [
                {"pg_name": name, "pg_desc": trace.purposes[name], "ranks": list(ranks)}
                for name, ranks in trace.groups.items()
            ]
    path = folder / f"rank_{rank}.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(msgspec.json.encode({**head, "traceEvents": events}))
    return path


def _slice(
    cat: str,
    name: str,
    start: float,
    end: float,
    *,
    tid: int = 1,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0 if cat in ("kernel", "gpu_memcpy") else 1,
        "tid": tid,
        "ts": round(float(start), 3),
        "dur": round(float(end - start), 3),
        "args": args or {},
    }


def _meta(found: Collective) -> dict[str, Any]:
    args: dict[str, Any] = {
        "Collective name": found.kind,
        "In msg nelems": found.in_elements,
        "Out msg nelems": found.out_elements,
        "dtype": found.dtype,
        "Group size": found.group_size,
        "Process Group Name": found.group,
    }
    if found.purpose:
        args["Process Group Description"] = found.purpose
    if found.ranks:
        args["Process Group Ranks"] = str(list(found.ranks)).replace(" ", "")
    return args


_HOST_EVENT = {
    "data": ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
    "recompute": ("cpu_op", "CheckpointFunctionBackward"),
    "backward": ("cpu_op", "autograd::engine::evaluate_function: MulBackward0"),
    "optimizer": ("user_annotation", "Optimizer.step#FusedAdam.step"),
    "allocate": ("cuda_runtime", "cudaFree"),
}


def _host_events(made: Columns) -> list[dict[str, Any]]:
    """Annotations, operators and calls of the allocator."""
    events = []
    for start, end, kind in made.host:
        if kind not in _HOST_EVENT:
            continue
        cat, name = _HOST_EVENT[kind]
        a, b = start * 1e6 + made.offset, end * 1e6 + made.offset
        events.append(_slice(cat, name, a, b))
        if kind == "allocate":
            events.append(_slice(cat, "cudaMalloc", b - 0.3 * (b - a), b))
    return events
