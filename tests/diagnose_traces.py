"""Small traces by hand, written as PyTorch's profiler writes them."""

import gzip
import json
from pathlib import Path


class TraceMaker:
    """Collects events of one rank; times in microseconds."""

    def __init__(self, rank=None, world_size=None, *, device="NVIDIA H100 80GB HBM3", clock=0.0):
        self.events = []
        self.header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": device}]}
        if rank is not None:
            self.header["distributedInfo"] = {"rank": rank, "world_size": world_size}
        self.clock = clock
        self._correlation = 0

    def kernel(self, name, start, duration, *, launch=None, stream=7, **args):
        self._correlation += 1
        number = self._correlation
        if launch is not None:
            self.host(
                "cudaLaunchKernel", launch, 5, cat="cuda_runtime", args={"correlation": number}
            )
        self._add(
            "kernel", name, start, duration, {"stream": stream, "correlation": number, **args}
        )

    def copy(self, start, duration, *, stream=9):
        self._add(
            "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, duration, {"stream": stream}
        )

    def collective(
        self, kind, start, duration, *, ranks, elements, launch=None, stream=20, group="1",
        purpose="undefined", dtype="BFloat16",
    ):  # fmt: skip
        names = {
            "all_reduce": ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", "allreduce", 1, 1),
            "all_gather": ("ncclDevKernel_AllGather_RING_LL()", "_allgather_base", 1, len(ranks)),
            "reduce_scatter": (
                "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()",
                "_reduce_scatter_base", len(ranks), 1,
            ),
            "all_to_all": ("ncclDevKernel_SendRecv()", "all_to_allv", 1, 1),
            "send_recv": ("ncclDevKernel_SendRecv()", "send", 1, 1),
            "broadcast": ("ncclDevKernel_Broadcast_RING_LL()", "broadcast", 1, 1),
        }  # fmt: skip
        kernel, stated, into, out = names[kind]
        self.kernel(
            kernel,
            start,
            duration,
            launch=launch,
            stream=stream,
            **{
                "Collective name": stated,
                "In msg nelems": elements * into,
                "Out msg nelems": elements * out,
                "Group size": len(ranks),
                "dtype": dtype,
                "Process Group Name": group,
                "Process Group Description": purpose,
                "Process Group Ranks": str(list(ranks)),
            },
        )

    def host(self, name, start, duration, *, cat="user_annotation", args=None):
        self._add(cat, name, start, duration, args or {})

    def step(self, number, start, duration):
        self.host(f"ProfilerStep#{number}", start, duration)

    def _add(self, cat, name, start, duration, args):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 0, "ts": start + self.clock,
             "dur": duration, "args": args}
        )  # fmt: skip

    def write(self, path: Path, *, indent=None) -> Path:
        text = json.dumps({**self.header, "traceEvents": self.events}, indent=indent).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path
