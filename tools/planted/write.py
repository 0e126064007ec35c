"""What a profiler would have seen of a played run: columns of a trace, or a Kineto file."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import (
    NO_COLLECTIVE,
    Collective,
    DeviceEvents,
    HostRanges,
    RankTrace,
    Window,
)
from meshplan.space.placement import AxisName, ranks_of_group
from meshplan.space.plan import Framework
from planted.operations import STREAMS, Talk
from planted.play import Played, RankStep, Script

__all__ = ["Seen", "rank_trace", "write_kineto"]

FloatArray = npt.NDArray[np.float64]

_KIND = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "send": "send",
    "recv": "recv",
}
_KERNEL = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
_PURPOSE = {
    Framework.MEGATRON: {
        "tp": "TENSOR_MODEL_PARALLEL_GROUP",
        "cp": "CONTEXT_PARALLEL_GROUP",
        "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
        "ep": "EXPERT_MODEL_PARALLEL_GROUP",
        "dp_cp": "DATA_PARALLEL_GROUP_WITH_CP",
        "dp_shard_cp": "DATA_PARALLEL_GROUP_WITH_CP",
        "edp": "EXPERT_DATA_PARALLEL_GROUP",
        "edp_shard": "EXPERT_DATA_PARALLEL_GROUP",
    },
    Framework.TORCHTITAN: {
        "tp": "mesh_tp",
        "cp": "mesh_cp",
        "pp": "mesh_pp",
        "ep": "mesh_ep",
        "dp_cp": "mesh_dp_replicate",
        "dp_shard_cp": "mesh_dp_shard_cp",
        "edp": "mesh_dp_shard_mod_ep",
        "edp_shard": "mesh_dp_shard_mod_ep",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the profiler keeps.

    Attributes:
        purposes: descriptions of process groups.
        group_ranks: ranks of process groups.
        rank: the rank in the header.
        offset_us: what the clock of each rank shows more than the true time, by rank.
        device: name of the device.
        gpus_per_node: devices that the header lists; 0 when it lists none.
        memory_bytes: memory of a device; 0 when it is not stated.
        reserved_bytes: peak of the allocator; 0 when it is not recorded.
    """

    purposes: bool = True
    group_ranks: bool = True
    rank: bool = True
    offset_us: tuple[float, ...] = ()
    device: str = "NVIDIA H100 80GB HBM3"
    gpus_per_node: int = 8
    memory_bytes: float = 0.0
    reserved_bytes: float = 0.0


class _Columns:
    """Device events of one rank while they are gathered [us]."""

    def __init__(self, played: Played, rank: int, seen: Seen) -> None:
        plan = played.plan
        per_stage = plan.tp * plan.cp * plan.dp
        self.stage = rank // per_stage
        self.rank, self.seen, self.played = rank, seen, played
        self.script: Script = played.scripts[self.stage]
        self.program = played.programs[self.stage]
        self.offset = seen.offset_us[rank] if seen.offset_us else 0.0
        self.names: dict[str, int] = {}
        self.collectives: dict[Collective, int] = {}
        self.group_names: dict[tuple[int, ...], str] = {}
        self.known: dict[tuple[object, ...], int] = {}
        self.parts: list[tuple[FloatArray, ...]] = []
        self.host: list[tuple[float, float, str]] = []
        talks = [op for op in self.program if isinstance(op, Talk)]
        self.talk_stream = np.array([_stream(op) for op in talks], dtype=np.int64)
        self.talk_name = np.array([self.name(_KERNEL[op.kind]) for op in talks], dtype=np.int64)
        self.talk_meta = np.array([self.collective(op) for op in talks], dtype=np.int64)
        self.kernel_name = np.array([self.name(label) for label in self.script.labels])

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def collective(self, op: Talk) -> int:
        """Number of the metadata of a talk."""
        known = (op.axis, op.group, op.kind, op.elements, op.dtype)
        if known not in self.known:
            self.known[known] = self.new_collective(op)
        return self.known[known]

    def new_collective(self, op: Talk) -> int:
        """Write the metadata of a talk."""
        plan, seen = self.played.plan, self.seen
        ranks = ranks_of_group(plan, op.group, self.rank)
        size = len(ranks)
        both = {"all_gather": (size, 1), "reduce_scatter": (1, size)}.get(op.kind, (1, 1))
        purpose = _PURPOSE.get(plan.framework, _PURPOSE[Framework.MEGATRON])[op.group]
        key = (*ranks, _axis_number(op.group))
        group = self.group_names.setdefault(key, str(len(self.group_names) + 1))
        found = Collective(
            kind=_KIND[op.kind],
            in_elements=op.elements // both[0],
            out_elements=op.elements // both[1],
            dtype=op.dtype,
            group=group,
            purpose=purpose if seen.purposes else "",
            group_size=2 if op.axis == "pp" and plan.pp == 2 else size,
            ranks=ranks if seen.group_ranks else (),
        )
        return self.collectives.setdefault(found, len(self.collectives))


def _axis_number(group: AxisName) -> int:
    return -1 - sorted(_PURPOSE[Framework.MEGATRON]).index(group)


def _stream(op: Talk) -> int:
    return STREAMS[op.kind if op.axis == "pp" else op.axis]


def _kernel_times(
    script: Script, step: RankStep, durations: FloatArray, pace: float
) -> tuple[FloatArray, FloatArray]:
    """Starts and launches of the compute kernels of one step [s]."""
    ends = np.cumsum(durations)
    before = ends - durations
    work = np.repeat(np.arange(len(step.works)), np.diff(script.first))
    launch = np.array(step.bases)[work] + script.launch * pace
    least = np.array(step.works) - before[script.first[:-1]]
    late = np.maximum(launch - before, least[work])
    # a running maximum inside each work: works are lifted above each other
    span = float(late.max() - late.min()) + 1.0
    late = np.maximum.accumulate(late + work * span) - work * span
    return late + before, launch


def _gather(played: Played, rank: int, seen: Seen) -> _Columns:
    made = _Columns(played, rank, seen)
    machine = played.machine
    # the profiler starts when the first step is over, which no rank enters late
    for step, durations in zip(played.steps[rank][1:], played.durations[rank][1:], strict=True):
        pace = machine.launch_s
        start, launch = _kernel_times(made.script, step, durations, pace)
        talks = np.array(step.talks).reshape(-1, 3)
        made.parts.append((start, start + durations, launch, talks))
        made.host.append((*step.data, "data"))
        made.host += [(*stall, "allocate") for stall in step.stalls]
        made.host += _phases(made.script, launch, pace)
    return made


def _phases(script: Script, launch: FloatArray, pace: float) -> list[tuple[float, float, str]]:
    """Ranges of the host in which it launches one phase."""
    found: list[tuple[float, float, str]] = []
    for w, phase in enumerate(script.phases):
        a, b = script.first[w], script.first[w + 1]
        start, end = float(launch[a]), float(launch[b - 1]) + pace
        if found and found[-1][2] == phase and start - found[-1][1] < 1e-3:
            start = found.pop()[0]
        found.append((start, end, phase))
    return found


def _us(seconds: FloatArray, offset: float) -> FloatArray:
    """Microseconds on the clock of the rank, to the nanosecond."""
    return np.round(seconds * 1e6 + offset, 3)


def rank_trace(played: Played, rank: int, seen: Seen) -> RankTrace:
    """The trace of one rank as columns."""
    made = _gather(played, rank, seen)
    steps, offset = played.steps[rank][1:], made.offset
    n = len(steps)
    start, end, launch = (np.concatenate([p[i] for p in made.parts]) for i in range(3))
    none = np.full(len(start), NO_COLLECTIVE)
    compute = DeviceEvents(
        start=_us(start, offset),
        end=_us(end, offset),
        stream=np.full(len(start), STREAMS["compute"]),
        name=np.tile(made.kernel_name[made.script.names], n),
        launch=_us(launch, offset),
        collective=none,
    )
    talks = np.concatenate([p[3] for p in made.parts])
    communication = DeviceEvents(
        start=_us(talks[:, 1], offset),
        end=_us(talks[:, 2], offset),
        stream=np.tile(made.talk_stream, n),
        name=np.tile(made.talk_name, n),
        launch=_us(talks[:, 0], offset),
        collective=np.tile(made.talk_meta, n),
    )
    copies = np.array([step.copy for step in steps])
    htod = made.name("Memcpy HtoD (Pinned -> Device)")
    host = [(a, b, kind) for a, b, kind in made.host if kind in HostRanges.KINDS]
    return RankTrace(
        file=f"rank_{rank}.json.gz",
        rank=rank if seen.rank else None,
        world_size=len(played.steps) if seen.rank else None,
        device=seen.device,
        num_devices=seen.gpus_per_node or None,
        device_memory_bytes=seen.memory_bytes or None,
        peak_allocated_bytes=0.97 * seen.reserved_bytes or None,
        peak_reserved_bytes=seen.reserved_bytes or None,
        compute=compute,
        communication=communication,
        copies=DeviceEvents(
            start=_us(copies[:, 1], offset),
            end=_us(copies[:, 2], offset),
            stream=np.full(n, STREAMS["copy"]),
            name=np.full(n, htod),
            launch=_us(copies[:, 0], offset),
            collective=np.full(n, NO_COLLECTIVE),
        ),
        steps=tuple(
            Window(
                name=f"ProfilerStep#{i + 1}",
                start=float(step.begin * 1e6 + offset),
                end=float(step.end * 1e6 + offset),
            )
            for i, step in enumerate(steps)
        ),
        names=tuple(made.names),
        collectives=tuple(made.collectives),
        host=HostRanges(
            start=_us(np.array([a for a, _, _ in host]), offset),
            end=_us(np.array([b for _, b, _ in host]), offset),
            kind=np.array([HostRanges.KINDS.index(kind) for _, _, kind in host]),
        ),
        num_events=len(start) + len(talks) + n,
    )


def write_kineto(played: Played, rank: int, seen: Seen, folder: Path) -> Path:
    """Write the trace of one rank as the profiler of PyTorch does."""
    trace = rank_trace(played, rank, seen)
    made = _gather(played, rank, seen)
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


def _host_events(made: _Columns) -> list[dict[str, Any]]:
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
