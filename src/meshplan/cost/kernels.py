"""Seconds of single kernels: matrix products, attention and memory-bound work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.operators.records import Elementwise, Gemm, Number, ScoreProduct
from meshplan.cost.tuning import Tuning
from meshplan.inputs.cluster import Device

__all__ = ["Kernels"]

FloatArray = npt.NDArray[np.float64]


class Kernels:
    """Kernel times of one device in one job precision.

    A first version with constant efficiency; the fitted surfaces take its place behind the same
    functions.
    """

    def __init__(self, device: Device, *, precision: str, tuning: Tuning) -> None:
        self._device = device
        self._precision = precision
        self._tuning = tuning

    def gemm_s(self, *, m: Number, n: Number, k: Number, precision: str) -> FloatArray:
        """Time of one product ``y[m, n] = x[m, k] w[k, n]`` [s]."""
        name = self._precision if precision == "job" else precision
        peak = self._device.peak_flop_per_s
        rate = peak.get(name) or peak.get("bf16") or peak["fp16"]
        compute = 2.0 * np.asarray(m) * n * k / (rate * 0.75 * self._tuning.gemm)
        moved = 2.0 * (np.asarray(m) * n + np.asarray(m) * k + np.asarray(n) * k)
        return np.maximum(compute, moved / self._bandwidth)

    def attention_s(self, core: ScoreProduct, *, backward: bool) -> FloatArray:
        """Time of the score product [s]; backward does 2.5 times the forward FLOP."""
        peak = self._device.peak_flop_per_s
        rate = peak.get("bf16") or peak["fp16"]
        seconds = core.forward_flop / (rate * 0.55 * self._tuning.attention)
        return np.asarray(seconds * (3.0 if backward else 1.0))

    def memory_s(self, num_bytes: Number) -> FloatArray:
        """Time to move bytes through the device memory [s]."""
        return np.asarray(num_bytes / self._bandwidth)

    def elementwise_s(self, operator: Elementwise, *, backward: bool) -> FloatArray:
        """Time of an element-wise operator [s]."""
        moved = operator.backward_bytes if backward else operator.forward_bytes
        factor = self._tuning.fusion if operator.fusable else 1.0
        return self.memory_s(moved * factor)

    @property
    def _bandwidth(self) -> float:
        return self._device.memory_bandwidth_bytes_per_s * 0.85 * self._tuning.memory_bound

    def operator_gemm_s(self, gemm: Gemm, *, gradient: str = "") -> FloatArray:
        """Time of a product, or of its ``input`` or ``weight`` gradient [s]."""
        m, n, k = gemm.m, gemm.n, gemm.k
        if gradient == "input":
            n, k = k, n
        elif gradient == "weight":
            m, n, k = k, n, m
        return self.gemm_s(m=m, n=n, k=k, precision=gemm.precision) * gemm.count * gemm.groups
