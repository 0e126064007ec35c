"""Seconds of single kernels: matrix products, attention and memory-bound work.

Speeds are those of the shipped surfaces (``cost.surfaces``), measured one kernel at a time on an
idle device, times the training factors of the profile.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.operators.records import (
    ALIGNED,
    Elementwise,
    Gemm,
    Number,
    Operator,
    Scan,
    ScoreProduct,
)
from meshplan.cost.surfaces import attention_surface, constant, gemm_surface, scan_bandwidth
from meshplan.cost.tuning import Tuning
from meshplan.inputs.cluster import Device
from meshplan.inputs.job import LOW_PRECISIONS
from meshplan.units import BF16_BYTES

__all__ = ["Kernels", "slows_odd_heads", "slows_odd_vocabularies"]

FloatArray = npt.NDArray[np.float64]


class Kernels:
    """Kernel times of one device in one job precision, under one profile.

    Args:
        device: the device.
        precision: number format of the job's large matrix products.
        tuning: training factors of the profile.
        gradient_bytes: width in which gradients of weights are accumulated [bytes per element].
    """

    def __init__(
        self, device: Device, *, precision: str, tuning: Tuning, gradient_bytes: Number = 4.0
    ) -> None:
        self._device = device
        self._gradient_bytes = gradient_bytes
        self._precision = precision
        self._tuning = tuning
        self._seconds_per_byte = 1.0 / (
            device.memory_bandwidth_bytes_per_s
            * constant("memory_efficiency")
            * tuning.memory_bound
        )

    def gemm_s(
        self, *, m: Number, n: Number, k: Number, groups: Number = 1.0, precision: str = "job"
    ) -> FloatArray:
        """Time of ``groups`` products ``y[m, n] = x[m, k] w[k, n]`` in one kernel [s]."""
        name = self._precision if precision == "job" else precision
        surface = gemm_surface(self._device, name)
        speed = self._tuning.gemm
        if name in LOW_PRECISIONS:
            speed = speed * self._tuning.low_precision
        return surface.seconds(m=m, n=n, k=k, groups=groups) / speed

    def products_s(self, gemm: Gemm) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Time of a product and of its input and weight gradient, casts included [s].

        The gradient of a weight is added to a buffer, which is read and written, instead of being
        written once in 16 bits.
        """
        m, n, k = gemm.m, gemm.n, gemm.k
        # products that are launched apart run one after another, each with its own ramp and tail
        apart = np.where(gemm.launched_apart, gemm.groups, 1.0)
        each = self.gemm_s(
            m=_rows(m, m, k),
            n=_rows(n, k, n),
            k=_rows(k, n, m),
            groups=gemm.groups / apart,
            precision=gemm.precision,
        )
        odd = np.less(gemm.peak_share, 1.0)
        if np.any(odd) and slows_odd_vocabularies(self._device):
            peak = self._device.peak_flop_per_s[self._device.peak_precision("bf16")]
            slow = 2.0 * m * n * k * (gemm.groups / apart) / (peak * gemm.peak_share)
            each = np.where(odd, np.maximum(each, slow), each)
        forward, inputs, weight = apart * each
        if gemm.dense_weight:
            per_element = 2.0 * self._gradient_bytes - BF16_BYTES
            moved = per_element * gemm.n * gemm.k * gemm.groups
            weight = weight + moved * self._seconds_per_byte
        if self.quantises(gemm):
            forward = forward + self._cast_s(gemm, width=gemm.k)
            inputs = inputs + self._cast_s(gemm, width=gemm.n)
        return forward * gemm.count, inputs * gemm.count, weight * gemm.count

    def quantises(self, operator: Operator) -> bool:
        """Whether an operator is a product of a weight whose input is cast to few bits."""
        if not isinstance(operator, Gemm) or not operator.dense_weight:
            return False
        return self._precision in LOW_PRECISIONS and operator.precision == "job"

    def _cast_s(self, gemm: Gemm, *, width: Number) -> FloatArray:
        """Quantisation of the input forward or of the output's gradient backward [s].

        Both orientations are written at once, so that the gradient of the weight casts nothing;
        cast weights are kept over the micro-batches of a step.
        """
        per_element = constant(f"cast_bytes_{self._precision}")
        if self._precision == "fp8" and self._tuning.current_scaling:
            per_element += constant("current_scaling_bytes")
        if self._precision == "fp8" and self._tuning.block_scaling:
            per_element += constant("block_scaling_bytes")
        moved = per_element * gemm.m * width * gemm.groups
        return np.where(np.asarray(gemm.n) > 0, self.memory_s(moved), 0.0)

    def attention_s(self, core: ScoreProduct) -> tuple[FloatArray, FloatArray]:
        """Time of the score product forward and backward [s].

        Where it is not fused, see :meth:`_unfused_attention_s`.

        Equation: forward from the surface; backward has ``2.5`` times the FLOP at a fraction
        ``r / (1 + s_0 / s)`` of the forward speed [1]_.

        References:
            .. [1] Shah et al., FlashAttention-3, arXiv:2407.08608, figures 5 and 6.
        """
        if not core.fused:
            return self._unfused_attention_s(core)
        # kernels for latent attention are written for its two widths; they run at the speed of
        # the narrower one (cuDNN, arXiv:2603.07685, table 9), unlike a padded kernel
        head_dim = min(float(np.max(core.qk_dim)), float(np.max(core.v_dim)))
        forward = attention_surface(self._device, head_dim).seconds(
            batch=core.batch,
            heads=core.heads,
            kv_heads=core.kv_heads,
            query_len=core.query_len,
            key_len=core.key_len,
            pairs=core.pairs,
            width=(core.qk_dim + core.v_dim) / 2.0,
            rounds=core.rounds,
        )
        seconds = forward / (self._tuning.attention * self._attention_share())
        half = constant("attention_backward_half_len") / np.asarray(core.key_len)
        speed = constant("attention_backward_speed") / (1.0 + half)
        return seconds, seconds * (constant("attention_backward_flop") / speed)

    def _attention_share(self) -> float:
        """Speed of an attention kernel of the Ampere generation over that of the table."""
        architecture = self._device.architecture
        if not self._tuning.ampere_attention or architecture not in ("hopper", "blackwell"):
            return 1.0
        return constant(f"ampere_attention_{architecture}")

    def _unfused_attention_s(self, core: ScoreProduct) -> tuple[FloatArray, FloatArray]:
        """Time of attention that stores its scores, forward and backward [s].

        Equation: two batched products over all pairs forward, four backward, and the traffic of
        softmax and dropout over ``b a q k`` scores.
        """
        groups = core.batch * core.heads
        scores = self._batched_s(
            m=core.query_len, n=core.key_len, k=core.qk_dim, groups=groups, width=core.qk_dim
        )
        values = self._batched_s(
            m=core.query_len, n=core.v_dim, k=core.key_len, groups=groups, width=core.v_dim
        )
        dropout_bytes = constant("unfused_dropout_bytes") if core.dropout else 0.0
        kernels = core.softmax_kernels + float(core.dropout)

        def of_pass(softmax_bytes: Number, products: float) -> FloatArray:
            moved = (softmax_bytes + dropout_bytes) * groups * core.query_len * core.key_len
            softmax = self.memory_s(moved, kernels=kernels)
            return ((scores + values) * products + softmax) * core.rounds

        return of_pass(core.softmax_bytes_forward, 1.0), of_pass(core.softmax_bytes_backward, 2.0)

    def _batched_s(
        self, *, m: Number, n: Number, k: Number, groups: Number, width: Number
    ) -> FloatArray:
        """Time of the batched products of attention that stores its scores [s].

        Where heads are no multiple of 16 bytes wide, batched products were as slow as on the vector
        units in the runs behind ``unaligned_products`` (A100 and V100, with cuBLAS 11 too). Devices
        of NVIDIA are taken to be so; of others no such run is known.
        """
        aligned = self.gemm_s(m=m, n=n, k=k, groups=groups, precision="bf16")
        is_aligned = np.asarray(width) % ALIGNED == 0
        if np.all(is_aligned) or not slows_odd_heads(self._device):
            return aligned
        speed = self._device.peak_flop_per_s["fp32"] * constant("unaligned_products")
        return np.where(is_aligned, aligned, np.maximum(aligned, 2.0 * groups * m * n * k / speed))

    def memory_s(self, num_bytes: Number, *, kernels: Number = 1.0) -> FloatArray:
        """Time to move bytes through the device memory [s].

        Equation: ``V / (B e) + floor`` per kernel.
        """
        return np.asarray(num_bytes * self._seconds_per_byte) + kernels * constant("kernel_floor_s")

    def elementwise_s(self, operator: Elementwise) -> tuple[FloatArray, FloatArray]:
        """Time of an element-wise operator forward and backward [s]."""
        factor = self._tuning.fusion if operator.fusable else 1.0
        kernels = operator.kernels * operator.groups
        return (
            self.memory_s(operator.forward_bytes * factor, kernels=kernels),
            self.memory_s(operator.backward_bytes * factor, kernels=kernels),
        )

    def scan_s(self, scan: Scan) -> tuple[FloatArray, FloatArray]:
        """Time of a recurrence or a short convolution forward and backward [s].

        Equation: ``V / B_kind + floor`` per kernel, with the bandwidth that kernels of its kind
        reach on the device. No training factor applies: Mamba 2 and convolutions were measured in
        a training step, and of the delta rule no such step was published.
        """
        speed = scan_bandwidth(self._device, scan.kind)
        floor_s = scan.kernels * constant("kernel_floor_s")
        return (
            np.asarray(scan.forward_bytes / speed + floor_s),
            np.asarray(scan.backward_bytes / speed + floor_s),
        )


def slows_odd_heads(device: Device) -> bool:
    """Whether heads whose width is no multiple of 8 are known to be slow on a device."""
    return device.vendor == "nvidia" and "fp32" in device.peak_flop_per_s


def slows_odd_vocabularies(device: Device) -> bool:
    """Whether products with a vocabulary that is no multiple of 8 are slow.

    Measured on A100. Other devices of NVIDIA are taken to be alike: the loads of Hopper and later
    that its fast kernels are built on need rows of whole 16 bytes [1]_. What is published of
    products in bf16 on Hopper disagrees: one ran as fast as with padded operands, others at an
    eighth of the peak and below [2]_.

    References:
        .. [1] CUDA Driver API, ``cuTensorMapEncodeTiled``: ``globalStrides`` in multiples of 16.
        .. [2] meta-pytorch/float8_experimental, pull request 145.
    """
    return device.vendor == "nvidia"


def _rows(*values: Number) -> FloatArray:
    """Values as rows of one array, those that are one number for all plans as often as needed."""
    rows = np.empty((len(values), max(np.size(value) for value in values)))
    for row, value in zip(rows, values, strict=True):
        row[:] = value
    return rows
