"""Measured collectives inside a scale-up domain, for any message and group size."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshplan.cost.surfaces.shipped import shipped
from meshplan.inputs.cluster import Device, Tier
from meshplan.record import record

__all__ = ["bus_bandwidth", "collective_table_of", "scale_up_time", "table_for"]

FloatArray = npt.NDArray[np.float64]
PLAIN_TABLES = frozenset({"a100_sxm", "rtx_pro_6000_server"})
PCIE_TABLE = "rtx_pro_6000_server"
ARCHITECTURE_TABLES = {"hopper": "h100_sxm", "blackwell": "b200_sxm"}
DEFAULT_TABLE = "a100_sxm"


@record
class _Curve:
    """What was measured of one collective.

    Attributes:
        messages: logarithms of message sizes.
        counts: logarithms of group sizes.
        seconds: logarithms of times, ``(groups, messages)``.
        largest: the largest group.
        latency: times of the smallest message in the smallest and the largest group [s].
    """

    messages: FloatArray
    counts: FloatArray
    seconds: FloatArray
    largest: np.float64
    latency: tuple[np.float64, np.float64]


@lru_cache(maxsize=64)
def _curve(table: str, kind: str) -> _Curve:
    curves = shipped("collectives")["devices"][table]["seconds"][kind]
    numbers = sorted(int(count) for count in curves)
    seconds = np.log(np.array([curves[str(count)] for count in numbers], dtype=np.float64))
    counts = np.log(np.array(numbers, dtype=np.float64))
    small = np.exp(seconds[:, 0])
    return _Curve(
        messages=np.log(np.array(shipped("collectives")["message_bytes"], dtype=np.float64)),
        counts=counts,
        seconds=seconds,
        largest=np.exp(counts[-1]),
        latency=(small[0], small[-1]),
    )


def table_for(device: Device, tier: Tier) -> tuple[str, float]:
    """The table that stands for a fabric, and its device's bandwidth per direction [bytes/s].

    A device without a table takes the NVLink curve of its architecture, or of A100; boxes with
    PCIe alone take that of the RTX PRO 6000 server. Curves are stretched to the bandwidth.
    """
    devices = shipped("collectives")["devices"]
    if tier.fabric == "pcie":
        name = PCIE_TABLE
    elif tier.fabric == "nvlink" and device.kernel_table in devices:
        name = str(device.kernel_table)
    else:
        name = ARCHITECTURE_TABLES.get(device.architecture, DEFAULT_TABLE)
    return name, float(devices[name]["bandwidth_bytes_per_s"])


def collective_table_of(device: Device, tier: Tier) -> str | None:
    """Name of the table that stands in for a scale-up level; None for the device's own.

    Levels beyond the scale-up domain have no table.
    """
    if tier.fabric not in ("nvlink", "xgmi", "pcie", "ici"):
        return None
    name, _ = table_for(device, tier)
    return None if name == device.kernel_table else name


def scale_up_time(
    device: Device,
    tier: Tier,
    kind: str,
    *,
    message_bytes: FloatArray,
    size: FloatArray,
    speed: float = 1.0,
    latency: float = 1.0,
) -> FloatArray:
    """Time of a collective among ``size`` devices of one scale-up domain.

    Interpolated in the logarithms of message and group. Below the smallest message the time stays,
    above the largest it grows with the bytes. Beyond the largest measured group the bus bandwidth
    stays, and the latency goes on growing with the logarithm of the group where the switch
    reduces, with the group elsewhere.

    Args:
        device: the device.
        tier: the scale-up level.
        kind: name of the collective in the table.
        message_bytes: the whole buffer [bytes].
        size: devices in the group.
        speed: bandwidth over that of the table (a factor of the profile).
        latency: latency over that of the table (a factor of the profile).

    Returns:
        Seconds, in the shape of ``message_bytes`` and ``size`` broadcast.
    """
    table, bandwidth = table_for(device, tier)
    stretched = message_bytes * (bandwidth / (tier.bandwidth_bytes_per_s * speed))
    if tier.fabric == "pcie":
        return _over_pcie(kind, stretched, size, tier=tier, latency=latency)
    if kind == "all_reduce" and table not in PLAIN_TABLES and not tier.in_network_reduction:
        # the all-reduce of these tables was done by the switch
        return 2.0 * _lookup(table, "all_gather", stretched, size, tier=tier, latency=latency)
    return _lookup(table, kind, stretched, size, tier=tier, latency=latency)


def _over_pcie(
    kind: str, message: FloatArray, size: FloatArray, *, tier: Tier, latency: float
) -> FloatArray:
    """Time over PCIe alone, with the bus bandwidth of two devices and a ring's latency.

    Larger groups of the measured server span both of its sockets, whose link is a level of its own
    here.
    """
    pair = np.full_like(size, 2.0, dtype=np.float64)
    seconds = _lookup(PCIE_TABLE, kind, message, pair, tier=tier, latency=latency)
    floor = _lookup(PCIE_TABLE, kind, np.ones_like(message), pair, tier=tier, latency=latency)
    wide = np.maximum(size, 2.0)
    return seconds * (2.0 * (wide - 1.0) / wide) + floor * (wide - 2.0) / 2.0


def bus_bandwidth(
    device: Device, tier: Tier, kind: str, *, size: FloatArray, speed: float = 1.0
) -> FloatArray:
    """Bus bandwidth of large messages inside one domain [bytes/s].

    Equation: ``V (N - 1) / (N t)``, and twice that for an all-reduce.

    Args:
        device: the device.
        tier: the scale-up level.
        kind: name of the collective in the table.
        size: devices in the group, whole numbers.
        speed: bandwidth over that of the table (a factor of the profile).
    """
    # a domain has few devices, and the same ones are asked about for every collective
    number = np.asarray(size).astype(np.int64)
    return _bandwidths(device, tier, kind, speed, int(number.max(initial=2)))[number]


@lru_cache(maxsize=64)
def _bandwidths(device: Device, tier: Tier, kind: str, speed: float, most: int) -> FloatArray:
    """Bus bandwidth of groups of 0 to ``most`` devices [bytes/s]; of two for fewer."""
    wide = np.maximum(np.arange(most + 1.0), 2.0)
    message = np.full(wide.shape, 2.0**29)
    seconds = scale_up_time(device, tier, kind, message_bytes=message, size=wide, speed=speed)
    passes = 2.0 if kind == "all_reduce" else 1.0
    bandwidths: FloatArray = passes * message * (wide - 1.0) / wide / seconds
    return bandwidths


def _lookup(
    table: str,
    kind: str,
    message: FloatArray,
    size: FloatArray,
    *,
    tier: Tier,
    latency: float,
) -> FloatArray:
    curve = _curve(table, kind)
    messages, counts, seconds, largest = curve.messages, curve.counts, curve.seconds, curve.largest
    log = np.log(np.maximum(message, 1.0))
    # minimum and maximum: np.clip costs several times as much on short arrays
    inside = np.minimum(np.maximum(log, messages[0]), messages[-1])
    i = np.searchsorted(messages[1:-1], inside, side="right")
    u = (inside - messages[i]) / (messages[i + 1] - messages[i])
    log_size = np.minimum(np.maximum(np.log(np.maximum(size, 1.0)), counts[0]), counts[-1])
    j = np.searchsorted(counts[1:-1], log_size, side="right")
    v = (log_size - counts[j]) / (counts[j + 1] - counts[j])
    low = seconds[j, i] + (seconds[j, i + 1] - seconds[j, i]) * u
    high = seconds[j + 1, i] + (seconds[j + 1, i + 1] - seconds[j + 1, i]) * u
    time = np.exp(low + (high - low) * v) * np.exp(np.maximum(log - messages[-1], 0.0))
    wide = np.maximum(size, largest)
    time = time * ((wide - 1.0) / wide) / ((largest - 1.0) / largest)
    least, most = curve.latency
    if tier.in_network_reduction or kind == "all_to_all":
        per_step = (most - least) / (counts[-1] - counts[0])
        growth = per_step * (np.log(wide) - counts[-1])
    else:
        per_step = (most - least) / (largest - np.exp(counts[0]))
        growth = per_step * (wide - largest)
    floor = np.exp(seconds[j, 0] + (seconds[j + 1, 0] - seconds[j, 0]) * v)
    total: FloatArray = time + growth + (latency - 1.0) * (floor + growth)
    return total
