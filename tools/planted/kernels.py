"""Kernels of a block, forward and backward, with the names that profilers show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshplan.cost.kernels import Kernels
from meshplan.cost.operators import Gemm, Operator, Scan, ScoreProduct

__all__ = ["Kernel", "Library"]

_NVJET = "nvjet_{types}_{m}x{n}_64x4_2x1_v_bz_coopA_{kind}"
"""cuBLASLt from Hopper on; the letters are the types of the inputs, the sums and the result."""
_NVJET_TYPES = {"bf16": "tst", "fp16": "hsh", "fp8": "qqtst"}
_AMPERE = "ampere_{type}_s16816gemm_{type}_{m}x{n}_ldg8_f2f_stages_64x3_{kind}"
_AMPERE_TYPES = {"bf16": "bf16", "fp16": "fp16"}
_GROUPED = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<"
    "cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >, "
    "cutlass::gemm::collective::CollectiveMma<cutlass::bfloat16_t, cute::{kind}> > >"
)
_ATTENTION = (
    "void flash::flash_{way}_kernel<Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >"
)
_LAYOUTS = {"TNT": "tn", "NNT": "nn", "NTN": "nt"}
_ELEMENTWISE = {
    "norm": "void rmsnorm_{way}_tuned_kernel<__nv_bfloat16, float, {name}>",
    "rotary": "fused_rope_{way}_kernel<c10::BFloat16>",
    "residual": "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>_{way}",
    "embedding": "void at::native::index_elementwise_kernel_embedding_{way}",
    "loss": "void cross_entropy_{way}_kernel<float>",
    "top_k": "void topk_router_{way}_kernel<float>",
    "permute": "void moe_permute_{way}_kernel<__nv_bfloat16>",
}

_SCANS = {
    "state_space": "_chunk_scan_{way}_kernel",
    "delta_rule": "chunk_delta_rule_{way}_kernel",
    "convolution": "void causal_conv1d_{way}_kernel<Causal_conv1d_{way}_kernel_traits<128, 4> >",
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its name, its time [s] and whether routed tokens decide how long it takes."""

    name: str
    seconds: float
    routed: bool = False


@dataclass(frozen=True, slots=True)
class Library:
    """The kernels that a device runs.

    Attributes:
        times: their times.
        device: name of the device.
        precision: number format of the products.
    """

    times: Kernels
    device: str
    precision: str

    def forward(self, operator: Operator) -> list[Kernel]:
        """Kernels of the forward pass of an operator."""
        if isinstance(operator, Gemm):
            return self._products(operator, float(self.times.products_s(operator)[0][0]), "TNT")
        if isinstance(operator, ScoreProduct):
            seconds = float(np.ravel(self.times.attention_s(operator)[0])[0])
            return [Kernel(_ATTENTION.format(way="fwd"), seconds)]
        if isinstance(operator, Scan):
            seconds = float(np.ravel(self.times.scan_s(operator)[0])[0])
            return _along_sequence(operator, seconds, "fwd")
        seconds = float(np.ravel(self.times.elementwise_s(operator)[0])[0])
        return _elementwise(operator.name, seconds, int(operator.kernels), "fwd")

    def backward(self, operator: Operator) -> list[Kernel]:
        """Kernels of the backward pass of an operator, towards inputs and weights."""
        if isinstance(operator, Gemm):
            _, inputs, weights = self.times.products_s(operator)
            found = self._products(operator, float(inputs[0]), "NNT")
            if operator.weight_gradient:
                found += self._products(operator, float(weights[0]), "NTN")
            return found
        if isinstance(operator, ScoreProduct):
            seconds = float(np.ravel(self.times.attention_s(operator)[1])[0])
            return [Kernel(_ATTENTION.format(way="bwd_dq_dk_dv_loop_seqk_parallel"), seconds)]
        if isinstance(operator, Scan):
            seconds = float(np.ravel(self.times.scan_s(operator)[1])[0])
            return _along_sequence(operator, seconds, "bwd")
        seconds = float(np.ravel(self.times.elementwise_s(operator)[1])[0])
        return _elementwise(operator.name, seconds, int(operator.kernels), "bwd")

    def _products(self, gemm: Gemm, seconds: float, kind: str) -> list[Kernel]:
        if seconds <= 0 or float(np.ravel(gemm.n)[0]) <= 0:
            return []
        if gemm.name.startswith("expert_"):
            return [Kernel(_GROUPED.format(kind=kind), seconds, routed=True)]
        count = max(1, int(np.ravel(gemm.count)[0]))
        wide = 256 if float(np.ravel(gemm.n)[0]) > 4096 else 128
        tile = {"m": 128 if kind != "NTN" else 192, "n": wide}
        return [Kernel(self._product_name(kind, tile), seconds / count)] * count

    def _product_name(self, kind: str, tile: dict[str, int]) -> str:
        if self.device == "A100":
            types = _AMPERE_TYPES[self.precision]
            return _AMPERE.format(type=types, kind=_LAYOUTS[kind], **tile)
        return _NVJET.format(types=_NVJET_TYPES[self.precision], kind=kind, **tile)


def _along_sequence(scan: Scan, seconds: float, way: str) -> list[Kernel]:
    if seconds <= 0:
        return []
    count = int(np.ravel(scan.kernels)[0])
    return [Kernel(_SCANS[scan.kind].format(way=way), seconds / count)] * count


def _elementwise(name: str, seconds: float, count: int, way: str) -> list[Kernel]:
    if seconds <= 0:
        return []
    kind = next((k for k in _ELEMENTWISE if k in name), None)
    if kind is None:
        text = f"triton_poi_fused_{name}_{way}"
    else:
        text = _ELEMENTWISE[kind].format(way=way, name=name)
    routed = name.startswith("expert_")
    return [Kernel(text, seconds / count, routed=routed)] * count
