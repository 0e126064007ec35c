"""The shipped kernel surfaces: which one serves a device, and its time for any shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from meshplan.cost.surfaces.forms import Number, attention_terms, gemm_terms
from meshplan.cost.surfaces.shipped import shipped
from meshplan.inputs.cluster import Device
from meshplan.record import record
from meshplan.units import BF16_BYTES

__all__ = [
    "AttentionSurface",
    "GemmSurface",
    "attention_surface",
    "gemm_surface",
    "table_bandwidth",
    "table_of",
]

FloatArray = npt.NDArray[np.float64]
BEST_SHARE = 0.96
"""The best product of the A100 and H100 tables reaches this share of the peak, none more."""


@record
class GemmSurface:
    """Time of matrix products on one device in one precision.

    Attributes:
        weights: weights of :func:`~meshplan.cost.surfaces.forms.gemm_terms` [s].
        residual: logarithm of measured over fitted time on the grid ``rows x widths x widths``.
        log_rows: logarithm of the row counts of the grid.
        log_widths: logarithm of the widths of the grid.
        scale_flop: seconds per FLOP of the device over those of the table's device.
        scale_bytes: seconds per byte likewise.
        flop_per_byte: balance of the table's device, where its roofline bends.
        peak_flop_per_s: peak of the device [flop/s].
        derived: the surface is a sibling's, scaled by the roofline.
    """

    weights: tuple[float, ...]
    residual: npt.NDArray[np.float64]
    log_rows: FloatArray
    log_widths: FloatArray
    scale_flop: float
    scale_bytes: float
    flop_per_byte: float
    peak_flop_per_s: float
    derived: bool

    def seconds(self, *, m: Number, n: Number, k: Number, groups: Number = 1.0) -> FloatArray:
        """Time of ``groups`` products ``[m, k] x [k, n]`` in one kernel [s]; 0 for empty ones.

        Outside the grid the fitted form goes on and the residual keeps its value at the edge.
        """
        m, n, k, groups = (np.asarray(x, dtype=np.float64) for x in (m, n, k, groups))
        fitted = _weighted(self.weights, gemm_terms(m=m, n=n, k=k, groups=groups))
        seconds = fitted * np.exp(self._residual(m * groups, n, k))
        if self.derived:
            seconds = seconds * self._roofline_ratio(m, n, k, groups)
            flop = 2.0 * groups * m * n * k
            seconds = np.maximum(seconds, flop / (self.peak_flop_per_s * BEST_SHARE))
        return np.where(m * n * k * groups > 0, seconds, 0.0)

    def _residual(self, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
        """Trilinear interpolation in the logarithms, clamped at the edges."""
        i, u = _cell(self.log_rows, m)
        j, v = _cell(self.log_widths, n)
        h, w = _cell(self.log_widths, k)
        flat = self.residual.ravel()
        plane, row = self.residual.shape[1] * self.residual.shape[2], self.residual.shape[2]
        corner = (i * row + j) * row + h
        near = _square(flat, corner, row, v, w)
        far = _square(flat, corner + plane, row, v, w)
        return near + (far - near) * u

    def _roofline_ratio(
        self, m: FloatArray, n: FloatArray, k: FloatArray, groups: FloatArray
    ) -> FloatArray:
        """Roofline time of this device over that of the sibling."""
        flop = 2.0 * groups * m * n * k
        moved = BF16_BYTES * groups * (m * n + m * k + n * k)
        table = np.maximum(flop / self.flop_per_byte, moved)
        own = np.maximum(self.scale_flop * flop / self.flop_per_byte, self.scale_bytes * moved)
        ratio: FloatArray = own / np.maximum(table, 1.0)
        return ratio


@record
class AttentionSurface:
    """Time of the fused attention kernel on one device for one head width.

    Attributes:
        weights: weights of :func:`~meshplan.cost.surfaces.forms.attention_terms` [s].
        scale: time of the device over that of the table's device (1 for its own table).
        derived: the surface is a sibling's, scaled by the roofline.
    """

    weights: tuple[float, ...]
    scale: float
    derived: bool

    def seconds(
        self,
        *,
        batch: Number,
        heads: Number,
        kv_heads: Number,
        query_len: Number,
        key_len: Number,
        pairs: Number,
        width: Number,
        rounds: Number = 1.0,
    ) -> FloatArray:
        """Forward time [s]; see :func:`~meshplan.cost.surfaces.forms.attention_terms`."""
        terms = attention_terms(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            query_len=query_len,
            key_len=key_len,
            pairs=pairs,
            width=width,
            rounds=rounds,
        )
        return _weighted(self.weights, terms) * self.scale


def _weighted(weights: tuple[float, ...], terms: tuple[Number, ...]) -> FloatArray:
    """Sum in a fixed order, so that one plan and a million agree bit for bit."""
    total: Number = 0.0
    for weight, term in zip(weights, terms, strict=True):
        if weight:
            total = total + weight * term
    return np.asarray(total, dtype=np.float64)


def _square(
    flat: FloatArray, corner: npt.NDArray[np.intp], row: int, v: FloatArray, w: FloatArray
) -> FloatArray:
    """Bilinear interpolation in one plane of a flattened grid."""
    low = flat[corner] + (flat[corner + 1] - flat[corner]) * w
    high = flat[corner + row] + (flat[corner + row + 1] - flat[corner + row]) * w
    return low + (high - low) * v


def _cell(points: FloatArray, values: FloatArray) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Index of the grid cell and position inside it, clamped to the grid."""
    log = np.log(np.maximum(values, 1.0))
    # searching the inner points alone keeps the index inside the grid
    index = np.searchsorted(points[1:-1], log, side="right")
    position = (log - points[index]) / (points[index + 1] - points[index])
    return index, np.minimum(np.maximum(position, 0.0), 1.0)


@lru_cache(maxsize=1)
def _residuals() -> dict[str, npt.NDArray[np.int8]]:
    with np.load(Path(__file__).with_name("gemm_residuals.npz")) as archive:
        return {name: archive[name] for name in archive.files}


def table_of(device: Device) -> tuple[str, bool]:
    """Key of the table that serves a device, and whether it is a sibling's."""
    if device.kernel_table is not None:
        return device.kernel_table, False
    entry = shipped("siblings")["architectures"].get(device.architecture)
    return str(entry["table"] if entry else shipped("siblings")["default"]), True


def table_bandwidth(table: str) -> float:
    """Memory bandwidth of the device that a table was measured on [bytes/s]."""
    return float(shipped("siblings")["tables"][table]["memory_bandwidth_bytes_per_s"])


def _sibling_speed(device: Device) -> float:
    """Share of its peak that a device reaches, over the share that its sibling reaches."""
    entry = shipped("siblings")["architectures"].get(device.architecture)
    return float(entry["speed"]) if entry and device.kernel_table is None else 1.0


def _peak(device: Device, precision: str) -> float:
    return device.peak_flop_per_s[device.peak_precision(precision)]


@lru_cache(maxsize=256)
def _gemm_fit(table: str, precision: str) -> tuple[tuple[float, ...], FloatArray]:
    """Weights and residuals of one table."""
    document = shipped("kernels")
    weights = tuple(document["gemm"][table][precision])
    step = float(document["residual_step"])
    return weights, _residuals()[f"{table}/{precision}"].astype(np.float64) * step


@lru_cache(maxsize=64)
def gemm_surface(device: Device, precision: str) -> GemmSurface:
    """The surface of matrix products that serves a device in one precision.

    A device without a table takes that of its architecture's sibling, and a precision without
    one the sibling's bf16; both are scaled by the roofline and marked as derived.
    """
    table, derived = table_of(device)
    facts = shipped("siblings")["tables"][table]
    key = shipped("siblings")["precisions"].get(precision, "bfloat16")
    own_peak = _peak(device, precision) * _sibling_speed(device)
    if key not in shipped("kernels")["gemm"][table]:
        key, derived = "bfloat16", True
    weights, residual = _gemm_fit(table, key)
    table_peak = float(facts["peak_flop_per_s"][key])
    table_bandwidth = float(facts["memory_bandwidth_bytes_per_s"])
    return GemmSurface(
        weights=weights,
        residual=residual,
        log_rows=np.log(np.array(shipped("kernels")["rows"], dtype=np.float64)),
        log_widths=np.log(np.array(shipped("kernels")["widths"], dtype=np.float64)),
        scale_flop=table_peak / own_peak,
        scale_bytes=table_bandwidth / device.memory_bandwidth_bytes_per_s,
        flop_per_byte=table_peak / table_bandwidth,
        peak_flop_per_s=own_peak,
        derived=derived,
    )


def attention_surface(device: Device, head_dim: float) -> AttentionSurface:
    """The surface of fused attention that serves a device for one head width.

    Between the widths of the table the weights are interpolated in the logarithm of the width,
    outside they are those of the nearest. A table with a single width borrows the ratio between
    widths from a device that has them all.
    """
    table, derived = table_of(device)
    fits = shipped("kernels")["attention"]
    scale = 1.0
    if derived:
        own = _peak(device, "bf16") * _sibling_speed(device)
        scale = float(shipped("siblings")["tables"][table]["peak_flop_per_s"]["bfloat16"]) / own
    weights = _interpolated(fits[table], head_dim)
    if len(fits[table]) == 1:
        reference = fits[str(shipped("siblings")["head_dim_reference"])]
        measured_dim = float(next(iter(fits[table])))
        scale *= _flop_weight(reference, head_dim) / _flop_weight(reference, measured_dim)
        derived = derived or head_dim != measured_dim
    return AttentionSurface(weights=weights, scale=scale, derived=derived)


def _interpolated(fits: Mapping[str, Sequence[float]], head_dim: float) -> tuple[float, ...]:
    """Weights for a head width between, or beyond, those of a table."""
    dims = sorted(int(dim) for dim in fits)
    above = next((dim for dim in dims if dim >= head_dim), dims[-1])
    below = next((dim for dim in reversed(dims) if dim <= head_dim), dims[0])
    low, high = fits[str(below)], fits[str(above)]
    if above == below:
        return tuple(low)
    share = (np.log(head_dim) - np.log(below)) / (np.log(above) - np.log(below))
    return tuple(float((1.0 - share) * a + share * b) for a, b in zip(low, high, strict=True))


def _flop_weight(fits: Mapping[str, Sequence[float]], head_dim: float) -> float:
    """Seconds per pair and channel of a long kernel, its per-row terms included."""
    terms = attention_terms(
        batch=1.0,
        heads=64.0,
        kv_heads=64.0,
        query_len=4096.0,
        key_len=4096.0,
        pairs=4096.0 * 4097.0 / 2.0,
        width=head_dim,
    )
    return float(_weighted(_interpolated(fits, head_dim), terms)) / head_dim
