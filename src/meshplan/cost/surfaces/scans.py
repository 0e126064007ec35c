"""Bandwidth that kernels along a sequence reach, kind by kind, from ``scans.json``.

Mamba 2 and convolutions were measured in a training step on one device, the delta rule on the same
device when idle. How much faster kernels are on others was measured on idle devices; for kernels in
chunks that is far from the ratio of their memories.
"""

from __future__ import annotations

from functools import lru_cache

from meshplan.cost.surfaces.shipped import shipped
from meshplan.cost.surfaces.tables import table_bandwidth, table_of
from meshplan.inputs.cluster import Device

__all__ = ["scan_bandwidth", "scan_table_of"]


@lru_cache(maxsize=256)
def scan_bandwidth(device: Device, kind: str) -> float:
    """Bytes that kernels of one kind move in a second on a device [bytes/s].

    A device without a measurement takes that of its architecture's sibling, or else that of the
    reference, in proportion to the bandwidth of their memories.

    Args:
        device: the device.
        kind: which kernels; see :class:`~meshplan.cost.operators.records.Scan`.
    """
    table = _table(device)
    own = shipped("scans")["reached"][kind]
    speeds = shipped("scans")["speed_over_reference"][own["scales_like"]]["value"]
    share = 1.0
    if table != device.kernel_table:
        share = device.memory_bandwidth_bytes_per_s / table_bandwidth(table)
    return float(own["value"] * speeds[table] * share)


def scan_table_of(device: Device) -> str | None:
    """Name of the measurements that stand in for a device; None for its own."""
    table = _table(device)
    return None if table == device.kernel_table else table


def _table(device: Device) -> str:
    """The device whose measurements serve."""
    measured = shipped("scans")["speed_over_reference"]["delta_rule"]["value"]
    table, _ = table_of(device)
    return table if table in measured else str(shipped("scans")["reference"])
