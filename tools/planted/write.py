"""What a profiler would have seen of a played run, as the columns of a trace."""

from __future__ import annotations

from dataclasses import dataclass

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
from planted.operations import STREAMS, Program, Talk, Work
from planted.play import Played, RankStep
from planted.script import Script

__all__ = ["Columns", "Seen", "gathered", "rank_trace"]

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
        batched: sends and receives go through ``batch_isend_irecv``, as Megatron-LM does by
            default: what is posted together shares a kernel, which carries no metadata.
    """

    purposes: bool = True
    group_ranks: bool = True
    rank: bool = True
    offset_us: tuple[float, ...] = ()
    device: str = "NVIDIA H100 80GB HBM3"
    gpus_per_node: int = 8
    memory_bytes: float = 0.0
    reserved_bytes: float = 0.0
    batched: bool = False


class Columns:
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
        self.talk_stream = np.array(
            [_stream(op, batched=seen.batched) for op in talks], dtype=np.int64
        )
        self.talk_name = np.array([self.name(_KERNEL[op.kind]) for op in talks], dtype=np.int64)
        bare = [seen.batched and op.axis == "pp" for op in talks]
        self.talk_meta = np.array(
            [
                NO_COLLECTIVE if b else self.collective(op)
                for op, b in zip(talks, bare, strict=True)
            ],
            dtype=np.int64,
        )
        self.shares = _posted_together(self.program) if seen.batched else np.zeros(len(talks), bool)
        self.kernel_name = np.array([self.name(label) for label in self.script.labels])

    def name(self, text: str) -> int:
        """Number of a name."""
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


def _posted_together(program: Program) -> npt.NDArray[np.bool_]:
    """Talks that share the kernel of the talk before: the receive that follows a send.

    Of a forward pass that a backward pass follows, or the other way round; passes of one kind in
    a row are sent and received one by one.
    """
    found, before = [], None
    for op in program:
        if isinstance(op, Talk):
            pair = before is not None and op.axis == before.axis == "pp"
            found.append(
                pair
                and before is not None
                and (before.kind, op.kind) == ("send", "recv")
                and before.key[1] != op.key[1]
            )
            before = op
        elif isinstance(op, Work):
            before = None
    return np.array(found, dtype=bool)


def _stream(op: Talk, *, batched: bool) -> int:
    if batched and op.axis == "pp":
        return STREAMS["send"]  # the communicator of the group has one stream
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


def gathered(played: Played, rank: int, seen: Seen) -> Columns:
    """Device events and ranges of the host of one rank, of the steps after the first."""
    made = Columns(played, rank, seen)
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


def _communication(made: Columns, num_steps: int) -> DeviceEvents:
    """Communication kernels; talks that were posted together are one."""
    talks = np.concatenate([p[3] for p in made.parts])
    first = np.flatnonzero(~np.tile(made.shares, num_steps))

    def of_first(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.tile(values, num_steps)[first]

    ends = np.maximum.reduceat(talks[:, 2], first) if len(first) else talks[:, 2]
    return DeviceEvents(
        start=_us(talks[first, 1], made.offset),
        end=_us(ends, made.offset),
        stream=of_first(made.talk_stream),
        name=of_first(made.talk_name),
        launch=_us(talks[first, 0], made.offset),
        collective=of_first(made.talk_meta),
    )


def _listed_groups(made: Columns) -> dict[str, tuple[tuple[int, ...], str]]:
    """Groups of the job that the header lists, with their ranks and descriptions."""
    plan, seen = made.played.plan, made.seen
    if not seen.group_ranks or not seen.rank:
        return {}
    for op in made.program:
        if isinstance(op, Talk) and len(ranks_of_group(plan, op.group, made.rank)) > 1:
            made.collective(op)  # gives the group its name
    purposes = _PURPOSE.get(plan.framework, _PURPOSE[Framework.MEGATRON])
    by_number = {_axis_number(group): purposes[group] for group in purposes}
    return {
        name: (key[:-1], by_number[key[-1]] if seen.purposes else "undefined")
        for key, name in made.group_names.items()
    }


def rank_trace(played: Played, rank: int, seen: Seen) -> RankTrace:
    """The trace of one rank as columns."""
    made = gathered(played, rank, seen)
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
    communication = _communication(made, n)
    groups = _listed_groups(made)
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
        groups={name: ranks for name, (ranks, _) in groups.items()},
        purposes={name: purpose for name, (_, purpose) in groups.items()},
        collectives=tuple(made.collectives),
        host=HostRanges(
            start=_us(np.array([a for a, _, _ in host]), offset),
            end=_us(np.array([b for _, b, _ in host]), offset),
            kind=np.array([HostRanges.KINDS.index(kind) for _, _, kind in host]),
        ),
        num_events=len(start) + len(communication) + n,
    )
