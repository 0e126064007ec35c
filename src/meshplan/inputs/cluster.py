"""The cluster: devices, the memory they can really use, and the links between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal

from meshplan.record import record

__all__ = ["Cluster", "Device", "Fabric", "Tier"]

Fabric = Literal[
    "nvlink", "xgmi", "pcie", "socket", "infiniband", "roce", "ethernet", "efa", "ici", "other"
]


@record
class Device:
    """One accelerator as a framework sees it (one GCD of an MI250X, one TPU chip).

    Attributes:
        name: preset name, such as ``H100``.
        vendor: ``nvidia``, ``amd``, ``intel``, ``huawei`` or ``google``.
        architecture: chip family, such as ``hopper``; efficiency surfaces are shared by it.
        memory_bytes: nominal memory [bytes].
        usable_bytes: what a training process can allocate on a fresh device [bytes].
        memory_bandwidth_bytes_per_s: peak of the device memory [bytes/s].
        peak_flop_per_s: dense peak by precision (``bf16``, ``fp16``, ``fp8``, ``mxfp8``,
            ``nvfp4``, ``fp32``) [flop/s]; a precision that is missing cannot be used.
        num_sms: compute units that communication kernels take from.
        kernel_table: key of the measured kernel surfaces, None when the device has none and
            a sibling's surface is scaled by the roofline.
        usd_per_hour: price of one device for one hour; None when the user gave none.
        sources: attribute name to a source that another person can look up.
    """

    name: str
    vendor: str
    architecture: str
    memory_bytes: float
    usable_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float] = field(hash=False)
    num_sms: int
    kernel_table: str | None
    usd_per_hour: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def peak_precision(self, precision: str) -> str:
        """Name the peak that counts for work in a precision: its own, else bf16's, else fp16's."""
        names = (precision, "bf16", "fp16")
        return next(name for name in names if name in self.peak_flop_per_s)


@record
class Tier:
    """One level of the network, from the inside out.

    Attributes:
        name: such as ``nvlink``, ``node``, ``leaf``, ``spine``.
        fabric: the technology, which decides latency and bandwidth curves.
        num_gpus: GPUs inside one group of this level (8 in a DGX node, 72 in an NVL72 domain).
        bandwidth_bytes_per_s: peak of one GPU in one direction on this level [bytes/s], after
            the NICs of a node are shared between its GPUs.
        latency_s: one-way latency of a small message [s].
        oversubscription: how many times the traffic offered from below exceeds the capacity
            of this level (1 is non-blocking).
        in_network_reduction: the fabric adds all-reduce contributions itself (NVLS, SHARP).
        nics_per_node: network cards per node on this level; 0 for a scale-up fabric.
    """

    name: str
    fabric: Fabric
    num_gpus: int
    bandwidth_bytes_per_s: float
    latency_s: float
    oversubscription: float = 1.0
    in_network_reduction: bool = False
    nics_per_node: int = 0


@record
class Cluster:
    """Equal devices joined by levels of network.

    Attributes:
        name: how the user called it, such as ``64xH100``.
        device: the accelerator.
        num_gpus: accelerators in all.
        gpus_per_node: accelerators per host.
        tiers: levels from the inside out; the last one spans ``num_gpus``. Their ``num_gpus``
            grow strictly.
        host_memory_bytes: memory of one host [bytes].
        host_link_bytes_per_s: one GPU to its host, one direction [bytes/s].
        host_time_factor: time that its host processor takes to launch work, over that of the x86
            hosts that the profiles of frameworks describe.
        profile: name of the measured cluster profile that fits, or ``default``.
        assumptions: ``(code, value)`` of what the user did not say.
        of_size: builds a cluster of the same kind with another number of GPUs, which may have
            further levels; None where every level was spelled out.
    """

    name: str
    device: Device
    num_gpus: int
    gpus_per_node: int
    tiers: tuple[Tier, ...]
    host_memory_bytes: float
    host_link_bytes_per_s: float
    host_time_factor: float = 1.0
    profile: str = "default"
    assumptions: tuple[tuple[str, str], ...] = ()
    of_size: Callable[[int], Cluster] | None = field(default=None, compare=False, repr=False)

    @property
    def joined_gpus(self) -> int:
        """GPUs that reach one another's memory: of a host, or of a larger domain of links."""
        return max(self.gpus_per_node, self.tiers[0].num_gpus)

    @property
    def num_nodes(self) -> int:
        """Hosts, the last one possibly part filled."""
        return -(-self.num_gpus // self.gpus_per_node)
