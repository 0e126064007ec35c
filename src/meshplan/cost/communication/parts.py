"""What holds parameters: blocks and the two ends of the model."""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from meshplan.cost.adapters import adapter_shard
from meshplan.cost.behaviour import training_vocab
from meshplan.cost.shards import embedding_shard, layer_shard
from meshplan.inputs.model import Layer
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["End", "Part", "copies_embedding", "parameters_of", "trained_parameters_of"]

FloatArray = npt.NDArray[np.float64]


class End(Enum):
    """The two ends of the model, which hold parameters of their own."""

    EMBEDDING = "embedding"
    HEAD = "head"


Part = Layer | End


def parameters_of(scenario: Scenario, part: Part, grid: PlanGrid) -> tuple[FloatArray, FloatArray]:
    """Dense and routed-expert parameters of a part on one device, before ZeRO shards them.

    Returns:
        Two arrays ``(num_plans,)``, frozen weights included.
    """
    zero = np.zeros(len(grid))
    if isinstance(part, End):
        vocab = training_vocab(scenario, grid)
        ends = embedding_shard(scenario.model, tp=grid.tp, padded_vocab=vocab)
        if part is End.EMBEDDING:
            return (ends.embedding + ends.positions).astype(np.float64), zero
        held = ends.head + ends.final_norm + ends.mtp_joins
        copied = np.where(copies_embedding(scenario, grid), ends.embedding + ends.positions, 0)
        return (held + copied).astype(np.float64), zero
    shard = layer_shard(part, scenario.model, tp=grid.tp, ep=grid.ep, etp=grid.etp)
    dense = (shard.dense + shard.replicated).astype(np.float64) + zero
    return dense, shard.expert.astype(np.float64) + zero


def copies_embedding(scenario: Scenario, grid: PlanGrid) -> npt.NDArray[np.bool_]:
    """Tell where the device with the head holds a copy of the embedding for MTP blocks, ``(n,)``.

    References:
        .. [1] Megatron-LM, ``core/models/gpt/gpt_model.py``: ``pre_process or mtp_process``.
    """
    if not scenario.model.mtp_layers:
        return np.zeros(len(grid), dtype=np.bool_)
    apart: npt.NDArray[np.bool_] = (grid.pp > 1) & (grid.framework == Framework.MEGATRON)
    return apart


def trained_parameters_of(
    scenario: Scenario, part: Part, grid: PlanGrid
) -> tuple[FloatArray, FloatArray]:
    """Parameters of a part that get gradients: all of them, or the adapters alone.

    Returns:
        Two arrays ``(num_plans,)``, dense and routed-expert.
    """
    job = scenario.job
    if job.task in ("pretrain", "full_finetune"):
        return parameters_of(scenario, part, grid)
    zero = np.zeros(len(grid))
    if isinstance(part, End):
        return zero, zero
    shard = adapter_shard(
        part,
        scenario.model,
        rank=job.lora_rank,
        targets=job.lora_targets,
        tp=grid.tp,
        ep=grid.ep,
        etp=grid.etp,
    )
    dense = (shard.dense + shard.replicated).astype(np.float64) + zero
    return dense, shard.expert.astype(np.float64) + zero
