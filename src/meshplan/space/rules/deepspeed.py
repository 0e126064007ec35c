"""Rules of DeepSpeed 0.19.8, alone or under Megatron-DeepSpeed (4efb479d).

Tensor parallelism is AutoTP or Megatron-DeepSpeed's, the pipeline is ``PipelineModule``, context
parallelism is Ulysses, expert parallelism is AutoEP. Replica groups (MiCS) were removed.
"""

from __future__ import annotations

import numpy as np

from meshplan.space.facts import Facts
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split
from meshplan.space.rules import predicates
from meshplan.space.rules.predicates import divides, equals
from meshplan.space.rules.rule import Fields, Legal
from meshplan.space.rules.shared import RuleMaker

__all__ = ["DEEPSPEED_RULES"]

_rule = RuleMaker(Framework.DEEPSPEED, "DeepSpeed 0.19.8")

_ULYSSES = "deepspeed/runtime/sequence_parallel/ulysses_sp.py"
_FOLDING = "deepspeed/module_inject/auto_ep_folding.py"
_UNEVEN = "uneven shards are not modelled (deepspeed/module_inject/tp_shard.py:119 takes them)"


def _ulysses_is_alone(facts: Facts, plan: Fields) -> Legal:
    return equals(plan.cp, 1) | (equals(plan.tp, 1) & equals(plan.pp, 1))


def _ulysses_splits_sequence(facts: Facts, plan: Fields) -> Legal:
    return divides(plan.cp, facts.seq_len)


def _folding_without_pipeline(facts: Facts, plan: Fields) -> Legal:
    """Experts under AutoTP: no pipeline."""
    return equals(plan.tp, 1) | equals(plan.pp, 1) | np.bool_(not facts.is_moe)


def _folding_needs_ep(facts: Facts, plan: Fields) -> Legal:
    """Experts under AutoTP: ``ep > 1``, or routed tokens would count once per rank."""
    return equals(plan.tp, 1) | (plan.ep > 1) | np.bool_(not facts.is_moe)


def _folding_without_offload(facts: Facts, plan: Fields) -> Legal:
    kept = equals(plan.offload, int(Offload.NONE))
    return equals(plan.tp, 1) | kept | np.bool_(not facts.is_moe)


def _sharded_experts_without_ulysses(facts: Facts, plan: Fields) -> Legal:
    return equals(plan.cp, 1) | (plan.zero < 3) | np.bool_(not facts.is_moe)


DEEPSPEED_RULES = (
    _rule.offers(
        "precision", "bf16", "fp16", source="deepspeed/runtime/config.py:511 (fp16 or bf16)"
    ),
    _rule.shared("tp_divides_heads", source=_UNEVEN),
    _rule.shared(
        "tp_divides_kv_heads",
        source="deepspeed/runtime/engine.py:1046 (ranks beyond the key heads idle)",
    ),
    _rule.shared("tp_divides_ffn", source=_UNEVEN),
    _rule.shared(
        "tp_splits_recurrence",
        source="deepspeed/module_inject/auto_tp.py: attention and dense layers only",
    ),
    _rule.shared(
        "quantized_weights_are_whole",
        source="bitsandbytes: a 4-bit weight is one packed column, without rows to split",
    ),
    _rule.shared(
        "no_sequence_parallelism",
        source="deepspeed/runtime/tensor_parallel: no sequence-parallel regions",
    ),
    _rule(
        "ulysses_is_alone",
        axis="cp",
        reads="tp pp cp",
        legal=_ulysses_is_alone,
        source="Megatron-DeepSpeed megatron/core/parallel_state.py:146",
    ),
    _rule(
        "ulysses_splits_sequence",
        axis="cp",
        reads="cp",
        legal=_ulysses_splits_sequence,
        source=f"{_ULYSSES}:706",
        numbers="seq_len",
    ),
    _rule.shared("cp_splits_recurrence", source=f"{_ULYSSES}:51 (attention only)"),
    _rule.offers("cp_comm", CpComm.ALL_TO_ALL, source=f"{_ULYSSES} (all-to-all only)"),
    _rule.shared("all_to_all_shares_kv_heads", source=f"{_ULYSSES}:147"),
    _rule.offers(
        "schedule", Schedule.ONE_F_ONE_B, source="deepspeed/runtime/pipe/schedule.py: TrainSchedule"
    ),
    _rule.shared("experts_divide_over_ep", source="deepspeed/moe/layer.py:59"),
    _rule.shared("etp_is_one", source=f"{_FOLDING}:214"),
    _rule(
        "folding_without_pipeline",
        axis="tp",
        reads="tp pp",
        legal=_folding_without_pipeline,
        source=f"{_FOLDING}:206",
    ),
    _rule(
        "folding_needs_ep",
        axis="ep",
        reads="tp ep",
        legal=_folding_needs_ep,
        source=f"{_FOLDING}:240",
    ),
    _rule.shared(
        "sharded_gradients_without_pipeline", source="deepspeed/runtime/pipe/engine.py:76"
    ),
    _rule(
        "sharded_experts_without_ulysses",
        axis="zero",
        reads="cp zero",
        legal=_sharded_experts_without_ulysses,
        source="deepspeed/runtime/engine.py:2219",
    ),
    _rule.shared("no_replicas", source="deepspeed/runtime/config.py:119 (MiCS has been removed)"),
    _rule.offers(
        "recompute",
        Recompute.NONE,
        Recompute.FULL,
        source="deepspeed/runtime/activation_checkpointing/checkpointing.py: whole layers",
    ),
    _rule.shared(
        "recompute_covers_all_layers",
        source="activation_checkpoint_interval of PipelineModule and transformers: every layer",
    ),
    _rule(
        "offload_needs_shards",
        axis="zero",
        reads="zero offload",
        legal=predicates.offload_needs_shards,
        source="deepspeed/runtime/zero/config.py: offload_optimizer, offload_param",
    ),
    _rule(
        "folding_without_offload",
        axis="offload",
        reads="tp offload",
        legal=_folding_without_offload,
        source=f"{_FOLDING}:248",
    ),
    _rule.shared(
        "offload_layers_exist",
        source="deepspeed/runtime/activation_checkpointing/config.py: checkpoints alone move",
    ),
    _rule.offers(
        "split",
        Split.EVEN,
        Split.BALANCED,
        source="deepspeed/runtime/pipe/module.py: partition_method uniform, parameters or type",
    ),
)
