"""What follows from the peaks of plans: whether they fit, and all that is said of their memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.devices import DeviceTable
from meshplan.cost.memory.records import MemoryGrid, Verdict
from meshplan.cost.memory.shapes import ACTIVATION_BYTES, Behaviours, FloatArray, rounded
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import PlanGrid

__all__ = ["Judge", "Peaks"]

IntArray = npt.NDArray[np.int64]

_GATHERED_IN_8_BITS = ("fp8", "mxfp8")


@record
class Peaks:
    """The most that the devices of plans hold; arrays of one shape.

    Attributes:
        peak_bytes: on the worst device, with allowances and process groups [bytes].
        allocated_bytes: without either [bytes].
        worst: which of the devices that are looked at that is.
        offloaded_bytes: what the fullest device keeps in host memory [bytes].
    """

    peak_bytes: FloatArray
    allocated_bytes: FloatArray
    worst: npt.NDArray[np.int16]
    offloaded_bytes: FloatArray

    def take(self, places: npt.NDArray[np.intp]) -> Peaks:
        """Some of them, by their place in the flattened arrays."""
        return Peaks(
            peak_bytes=self.peak_bytes.take(places),
            allocated_bytes=self.allocated_bytes.take(places),
            worst=self.worst.take(places),
            offloaded_bytes=self.offloaded_bytes.take(places),
        )


@record
class Judge:
    """What the verdicts of a grid follow from beside its peaks.

    Attributes:
        cluster: whose devices and hosts they are for.
        table: devices of the layouts of the grid.
        layout: layout of each plan, ``(num_plans,)``.
        fragmentation: of each plan, as a fraction, ``(num_plans,)``.
        communicators: buffers of the process groups [bytes], ``(num_plans,)``.
        user_buffers: buffers of overlapped tensor-parallel traffic [bytes], ``(num_plans,)``.
        beside: both, which are no memory of the framework's allocator [bytes], ``(num_plans,)``.
        host_factor: host memory over what is offloaded, ``(num_plans,)``.
    """

    cluster: Cluster
    table: DeviceTable
    layout: IntArray
    fragmentation: FloatArray
    communicators: FloatArray
    user_buffers: FloatArray
    beside: FloatArray
    host_factor: FloatArray

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        grid: PlanGrid,
        behaviours: Behaviours,
        *,
        table: DeviceTable,
        layout: IntArray,
    ) -> Judge:
        """Gather what a grid of plans needs.

        Args:
            scenario: model, job, and the cluster whose devices and hosts they are for.
            grid: plans.
            behaviours: of the framework of each plan.
            table: devices of the layouts of the grid.
            layout: layout of each plan, ``(num_plans,)``.
        """
        axes = (grid.tp, grid.cp, grid.pp, grid.dp, grid.ep)
        groups = sum((axis > 1).astype(np.float64) for axis in axes)
        communicators = rounded(behaviours["communicator_bytes"] * groups)
        user_buffers = _user_buffers(scenario, grid, behaviours)
        return cls(
            cluster=scenario.cluster,
            table=table,
            layout=layout,
            fragmentation=behaviours["fragmentation"],
            communicators=communicators,
            user_buffers=user_buffers,
            beside=communicators + user_buffers,
            host_factor=behaviours["host_factor"],
        )

    @property
    def usable_bytes(self) -> float:
        """What a process can use on the device [bytes]."""
        return self.cluster.device.usable_bytes

    def verdict(self, plans: IntArray, peaks: Peaks) -> npt.NDArray[np.int8]:
        """Compare with what can be used, on the device and on the host.

        Args:
            plans: plan of each entry, or of each row of entries.
            peaks: what they hold.

        Returns:
            Codes of :class:`Verdict`, of the shape of the peaks.
        """
        lost = peaks.allocated_bytes + _like(self.beside[plans], peaks) > self.usable_bytes
        if peaks.offloaded_bytes.any():
            host = self._host(plans, peaks)
            lost |= (host > self.cluster.host_memory_bytes) & (host > 0)
        verdict = (peaks.peak_bytes > self.usable_bytes).astype(np.int8)
        verdict[lost] = Verdict.OOM
        return verdict

    def memory(self, plans: IntArray, peaks: Peaks) -> MemoryGrid:
        """All that is said of the memory of some plans.

        Args:
            plans: plan of each entry, ``(n,)``.
            peaks: what they hold, ``(n,)``.
        """
        allocated, fraction = peaks.allocated_bytes, self.fragmentation[plans]
        device = self.table.first[self.layout[plans]] + peaks.worst
        return MemoryGrid(
            peak_bytes=peaks.peak_bytes,
            allocated_bytes=allocated,
            reserved_bytes=allocated + rounded(fraction * allocated),
            required_bytes=allocated + self.beside[plans],
            worst_stage=self.table.stage[device],
            host_bytes=self._host(plans, peaks),
            verdict=self.verdict(plans, peaks).astype(np.int64),
            usable_bytes=self.usable_bytes,
        )

    def _host(self, plans: IntArray, peaks: Peaks) -> FloatArray:
        """Host memory that one host needs."""
        per_host = min(self.cluster.gpus_per_node, self.cluster.num_gpus)
        factor = _like(self.host_factor[plans], peaks)
        return rounded(peaks.offloaded_bytes * per_host * factor)


def _user_buffers(scenario: Scenario, grid: PlanGrid, b: Behaviours) -> FloatArray:
    """Buffers into which devices of a tensor-parallel group write for one another [bytes].

    Equation:
        ``h T (2 n_16 + n_8)``: buffers of the tokens T of a whole micro-batch, of which those that
        take gathered inputs are in 8 bits in jobs in fp8. They need sequence parallelism and
        devices that reach one another's memory.

    References:
        1. Transformer Engine, pytorch/module/base.py: ``initialize_ub``.
    """
    narrow = b["gathering_user_buffers"] if scenario.job.precision in _GATHERED_IN_8_BITS else 0.0
    width = ACTIVATION_BYTES * (b["user_buffers"] - narrow) + narrow
    tokens = grid.micro_batch * (scenario.job.seq_len / grid.cp)
    used = (grid.tp > 1) & (grid.sp != 0) & (grid.tp <= scenario.cluster.joined_gpus)
    return rounded(np.where(used, width * tokens * scenario.model.hidden, 0.0))


def _like(values: FloatArray, peaks: Peaks) -> FloatArray:
    """Values of plans beside their entries, or their rows of entries."""
    return values.reshape(-1, *[1] * (peaks.peak_bytes.ndim - 1))
