"""Seconds of the optimizer step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.communication.parts import Part, trained_parameters_of
from meshplan.cost.communication.step import REPLICA_FIELDS
from meshplan.cost.factoring import factor
from meshplan.cost.kernels import Kernels
from meshplan.cost.surfaces import constant
from meshplan.cost.tuning import NEUTRAL, Tuning
from meshplan.inputs.scenario import Scenario
from meshplan.space.placement import axis_group
from meshplan.space.plan import Offload, PlanGrid
from meshplan.units import BF16_BYTES, FP32_BYTES

__all__ = ["optimizer_time"]

FloatArray = npt.NDArray[np.float64]
FIELDS = (*REPLICA_FIELDS, "offload")
"""Plan fields that the optimizer step depends on."""


def optimizer_time(
    scenario: Scenario, part: Part, grid: PlanGrid, *, tuning: Tuning = NEUTRAL
) -> FloatArray:
    """Time the optimizer step over the parameters of one block or end, once per step.

    Equation: ``(P_local u + P g) / bandwidth`` for ``u`` bytes per updated parameter (ZeRO divides
    the parameters over the shard group) and ``g`` bytes for the gradients of all ``P``, which are
    cleared at least; Muon adds five iterations of ``4 m^2 n + 2 m^3`` FLOP per ``m x n`` matrix,
    about ``6 h`` FLOP per parameter each [1]_; an offloaded optimizer adds the way to the host and
    back and the update there [2]_.

    Args:
        scenario: model, cluster and job.
        part: a block, or an end of the model.
        grid: plans.
        tuning: training factors of the profile.

    Returns:
        Seconds per step on one device, ``(num_plans,)``.

    References:
        .. [1] Jordan et al., Muon, 2024.
        .. [2] Ren et al., ZeRO-Offload, arXiv:2101.06840.
    """
    factored = factor(grid, FIELDS)
    small = factored.grid
    job = scenario.job
    kernels = Kernels(scenario.cluster.device, precision=job.precision, tuning=tuning)
    dense, expert = trained_parameters_of(scenario, part, small)
    sharded = small.zero > 0
    shards = [axis_group(small, axis).size for axis in ("dp_shard_cp", "edp_shard")]
    local = np.zeros(len(small))
    for count, devices in zip((dense, expert), shards, strict=True):
        local = local + count / np.where(sharded, np.maximum(devices, 1), 1)
    update = constant(f"{job.optimizer}_update_bytes") + constant("gradient_norm_bytes")
    whole = np.where(small.zero >= 2, local, dense + expert)
    seconds = kernels.memory_s(local * update + whole * tuning.whole_gradient_bytes)
    if job.optimizer == "muon":
        side = np.full(len(small), float(scenario.model.hidden))
        per_product = kernels.gemm_s(m=side, n=side, k=side, precision="bf16")
        products = 3.0 * constant("muon_iterations") * local / side**2
        seconds = seconds + products * per_product
    seconds = np.where(
        (small.offload & int(Offload.OPTIMIZER)) != 0, _on_host(scenario, local), seconds
    )
    return factored.expand(seconds)


def _on_host(scenario: Scenario, local: FloatArray) -> FloatArray:
    """Gradients to the host, update there, parameters back [s]."""
    cluster = scenario.cluster
    moved = local * (FP32_BYTES + BF16_BYTES) / cluster.host_link_bytes_per_s
    node = local * cluster.gpus_per_node * constant("host_adam_s_per_parameter")
    return moved + node
