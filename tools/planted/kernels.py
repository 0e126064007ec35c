"""Kernels of a block, forward and backward, with the names that profilers show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshplan.cost.kernels import Kernels
from meshplan.cost.operators import Gemm, Operator, ScoreProduct

__all__ = ["Kernel", "backward", "forward"]

_GEMM = "nvjet_hsh_{m}x{n}_64x4_2x1_v_bz_coopA_{kind}"
_GROUPED = "void cutlass::device_kernel<grouped_gemm_bf16_{name}>"
_ELEMENTWISE = {
    "norm": "void rmsnorm_{way}_tuned_kernel<__nv_bfloat16, float, {name}>",
    "rotary": "fused_rope_{way}_kernel<c10::BFloat16>",
    "residual": "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>_{way}",
    "embedding": "void at::native::index_elementwise_kernel_embedding_{way}",
    "loss": "void cross_entropy_{way}_kernel<float>",
    "top_k": "void topk_router_{way}_kernel<float>",
    "permute": "void moe_permute_{way}_kernel<__nv_bfloat16>",
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its name, its time [s] and whether routed tokens decide how long it takes."""

    name: str
    seconds: float
    routed: bool = False


def forward(kernels: Kernels, operator: Operator) -> list[Kernel]:
    """Kernels of the forward pass of an operator."""
    if isinstance(operator, Gemm):
        return _products(operator, float(kernels.product_s(operator)[0]), "TNT")
    if isinstance(operator, ScoreProduct):
        seconds = float(np.ravel(kernels.attention_s(operator, backward=False))[0])
        return [Kernel("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", seconds)]
    seconds = float(np.ravel(kernels.elementwise_s(operator, backward=False))[0])
    return _elementwise(operator.name, seconds, int(operator.kernels), "fwd")


def backward(kernels: Kernels, operator: Operator) -> list[Kernel]:
    """Kernels of the backward pass of an operator, towards inputs and weights."""
    if isinstance(operator, Gemm):
        inputs = float(kernels.product_s(operator, gradient="input")[0])
        found = _products(operator, inputs, "NNT")
        if operator.weight_gradient:
            weights = float(kernels.product_s(operator, gradient="weight")[0])
            found += _products(operator, weights, "NTN")
        return found
    if isinstance(operator, ScoreProduct):
        seconds = float(np.ravel(kernels.attention_s(operator, backward=True))[0])
        name = "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_traits<128>>"
        return [Kernel(name, seconds)]
    seconds = float(np.ravel(kernels.elementwise_s(operator, backward=True))[0])
    return _elementwise(operator.name, seconds, int(operator.kernels), "bwd")


def _products(gemm: Gemm, seconds: float, kind: str) -> list[Kernel]:
    if seconds <= 0 or float(np.ravel(gemm.n)[0]) <= 0:
        return []
    routed = gemm.name.startswith("expert_")
    count = max(1, int(np.ravel(gemm.count)[0]))
    if routed:
        return [Kernel(_GROUPED.format(name=f"{gemm.name}_{kind}"), seconds, routed=True)]
    wide = 256 if float(np.ravel(gemm.n)[0]) > 4096 else 128
    name = _GEMM.format(m=128 if kind != "NTN" else 192, n=wide, kind=kind)
    return [Kernel(name, seconds / count)] * count


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
