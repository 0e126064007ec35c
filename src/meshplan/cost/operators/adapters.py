"""Operators that low-rank adapters add to frozen products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshplan.cost.operators.elementwise import residual
from meshplan.cost.operators.records import Elementwise, Gemm, Operator
from meshplan.inputs.job import Job
from meshplan.inputs.load.framework import load_memory_constants
from meshplan.units import BF16_BYTES

__all__ = ["with_adapters"]


def with_adapters(operators: Sequence[Operator], job: Job, *, part: str) -> list[Operator]:
    """Add the adapters of one part of a block to its operators.

    A frozen product ``[t, k] x [k, n]`` gets two small ones, ``[t, k] x [k, r]`` and
    ``[t, r] x [r, n]``, in 16 bits, and the sum of both outputs [1]_. Frozen 4-bit weights are
    turned into 16 bits before each use, forward and backward [2]_.

    Args:
        operators: operators of the part.
        job: the job, which says rank and targets.
        part: ``attention`` for token mixers or ``mlp`` for feed-forward networks.

    References:
        .. [1] Hu et al., LoRA, arXiv:2106.09685, section 4.1.
        .. [2] Dettmers et al., QLoRA, arXiv:2305.14314, section 3.
    """
    if job.task not in ("lora", "qlora"):
        return list(operators)
    joined: list[Operator] = []
    adapted = job.lora_targets in (part, "all")
    for operator in operators:
        joined.append(operator)
        if not isinstance(operator, Gemm) or not operator.dense_weight:
            continue
        if job.task == "qlora" and operator.name != "router":
            joined.append(_dequantised(operator))
        if adapted and operator.name != "router":
            joined.extend(_adapter(operator, rank=float(job.lora_rank)))
    return joined


def _adapter(frozen: Gemm, *, rank: float) -> tuple[Operator, ...]:
    """The two products of an adapter, and the sum of its output and the frozen one's."""
    down = Gemm(
        name=f"{frozen.name}_adapter_down",
        m=frozen.m,
        n=np.where(np.asarray(frozen.n) > 0, rank, 0.0),
        k=frozen.k,
        count=frozen.count,
        groups=frozen.groups,
        precision="bf16",
        launched_apart=frozen.launched_apart,
        rerun=frozen.rerun,
    )
    up = Gemm(
        name=f"{frozen.name}_adapter_up",
        m=frozen.m,
        n=frozen.n,
        k=rank,
        count=frozen.count,
        groups=frozen.groups,
        precision="bf16",
        launched_apart=frozen.launched_apart,
        rerun=frozen.rerun,
    )
    return down, up, residual(frozen.m * frozen.n * frozen.count * frozen.groups)


def _dequantised(frozen: Gemm) -> Elementwise:
    """A 4-bit weight read and written in 16 bits, once for each pass over it."""
    elements = frozen.n * frozen.k * frozen.count * frozen.groups
    width = load_memory_constants().frozen_4bit_bytes + BF16_BYTES
    return Elementwise(
        name=f"{frozen.name}_dequantised",
        forward_bytes=width * elements,
        backward_bytes=width * elements,
        rerun=frozen.rerun,
        fusable=False,
    )
