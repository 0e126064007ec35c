"""Rules of Accelerate 1.15.0: FSDP2 with the tensor-parallel plans of transformers.

``zero`` 0 is DDP, 2 is FSDP2 with ``reshard_after_forward: false``, 3 with ``true``. The context
parallelism of torch is a ring (``alltoall``) or an all-gather; Ulysses is ``sp_size`` with the
DeepSpeed backend and appears as all-to-all.
"""

from __future__ import annotations

from meshplan.space.facts import Facts
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Split
from meshplan.space.rules import predicates
from meshplan.space.rules.predicates import divides, equals
from meshplan.space.rules.rule import Fields, Legal
from meshplan.space.rules.shared import RuleMaker

__all__ = ["ACCELERATE_RULES"]

_rule = RuleMaker(Framework.ACCELERATE, "Accelerate 1.15.0")

_PARALLELISM = "accelerate/parallelism_config.py"
_OFFLOADED = Offload.OPTIMIZER | Offload.PARAMETERS


def _fsdp_has_shards(facts: Facts, plan: Fields) -> Legal:
    """FSDP2 needs ``dp_shard > 1`` or ``cp > 1``, but for a lone process, which has no mesh."""
    alone = equals(plan.dp * plan.tp * plan.cp, 1)
    return equals(plan.zero, 0) | (plan.dp_shard * plan.cp > 1) | alone


def _ddp_is_alone(facts: Facts, plan: Fields) -> Legal:
    """Plain replicas exclude tensor and context parallelism."""
    alone = equals(plan.tp, 1) & equals(plan.cp, 1)
    return (plan.zero > 0) | equals(plan.dp, 1) | alone


def _replicas_have_shards(facts: Facts, plan: Fields) -> Legal:
    """With ``tp`` or ``cp``, replicas need ``dp_shard > 1``."""
    alone = equals(plan.tp, 1) & equals(plan.cp, 1)
    return equals(plan.dp_replicate, 1) | (plan.dp_shard > 1) | alone


def _ring_splits_sequence(facts: Facts, plan: Fields) -> Legal:
    """Torch's ring takes two pieces per rank, Ulysses one."""
    ulysses = equals(plan.cp_comm, CpComm.ALL_TO_ALL) & divides(plan.cp, facts.seq_len)
    return ulysses | predicates.ring_splits_sequence(facts, plan)


def _stored_scores_without_cp(facts: Facts, plan: Fields) -> Legal:
    """Torch's ring and gather; Ulysses hands whole sequences to whatever kernel there is."""
    ulysses = equals(plan.cp_comm, CpComm.ALL_TO_ALL)
    return ulysses | predicates.stored_scores_without_cp(facts, plan)


def _ulysses_is_alone(facts: Facts, plan: Fields) -> Legal:
    """The DeepSpeed backend manages its own groups."""
    ulysses = (plan.cp > 1) & equals(plan.cp_comm, CpComm.ALL_TO_ALL)
    return ~ulysses | equals(plan.tp, 1)


ACCELERATE_RULES = (
    _rule.offers(
        "precision", "bf16", "fp16", "fp8", source="accelerate/utils/dataclasses.py: PrecisionType"
    ),
    _rule(
        "no_pipeline",
        axis="pp",
        reads="pp",
        legal=predicates.no_pipeline,
        source=f"{_PARALLELISM}:267 (mesh without a pipeline axis)",
    ),
    _rule.shared(
        "tp_divides_heads",
        source="transformers 5.24 models/llama/configuration_llama.py:48 (projections by columns)",
    ),
    _rule.shared(
        "tp_divides_kv_heads", source="transformers issue 48307 (no replication of key-value heads)"
    ),
    _rule.shared("tp_divides_ffn", source="uneven shards are not modelled"),
    _rule.shared(
        "tp_splits_recurrence",
        source="transformers 5.24: no tp_plan for state-space blocks, gathered outputs for linear "
        "attention, which is not modelled",
    ),
    _rule.shared(
        "quantized_weights_are_whole",
        source="bitsandbytes: a 4-bit weight is one packed column, without rows to split",
    ),
    _rule.shared(
        "no_sequence_parallelism",
        source="transformers 5.24 models/llama/configuration_llama.py:48 (norms stay whole)",
    ),
    _rule.shared(
        "cp_splits_recurrence",
        source="accelerate/accelerator.py:1666 (patches scaled_dot_product_attention)",
    ),
    _rule(
        "stored_scores_without_cp",
        axis="cp",
        reads="cp cp_comm",
        legal=_stored_scores_without_cp,
        source="torch/distributed/tensor/experimental/_context_parallel/_attention.py:939 (flash, "
        "memory-efficient and cuDNN attention; the math backend fails, eager attention sees its "
        "own piece alone)",
    ),
    _rule(
        "ring_splits_sequence",
        axis="cp",
        reads="cp cp_comm",
        legal=_ring_splits_sequence,
        source="torch/distributed/tensor/experimental/_attention.py (head-tail balance)",
        numbers="seq_len",
    ),
    _rule.shared(
        "all_to_all_shares_kv_heads", source="deepspeed/runtime/sequence_parallel/ulysses_sp.py:147"
    ),
    _rule(
        "ulysses_is_alone",
        axis="cp_comm",
        reads="tp cp cp_comm",
        legal=_ulysses_is_alone,
        source=f"{_PARALLELISM}:220 (no device mesh with the DeepSpeed backend)",
    ),
    _rule.shared(
        "no_expert_parallelism",
        source=f"{_PARALLELISM}:383 (expert parallelism takes the whole world)",
    ),
    _rule(
        "etp_is_tp",
        axis="etp",
        reads="tp etp",
        legal=predicates.etp_is_tp,
        source="transformers 5.24 models/qwen3_moe/configuration_qwen3_moe.py:62 (moe_tp_experts)",
    ),
    _rule.shared("etp_divides_expert_ffn", source="uneven shards are not modelled"),
    _rule.offers(
        "zero",
        0,
        2,
        3,
        source="accelerate/utils/dataclasses.py:1877 (reshard_after_forward is a bool)",
    ),
    _rule(
        "fsdp_has_shards",
        axis="zero",
        reads="tp cp dp dp_shard zero",
        legal=_fsdp_has_shards,
        source=f"{_PARALLELISM}:380; commands/launch.py:1399 and utils/fsdp_utils.py:780 (one "
        "process needs no parallelism_config, and its FSDP2 no mesh)",
    ),
    _rule(
        "ddp_is_alone",
        axis="zero",
        reads="tp cp dp zero",
        legal=_ddp_is_alone,
        source=f"{_PARALLELISM}:336",
    ),
    _rule(
        "replicas_have_shards",
        axis="dp_replicate",
        reads="tp cp dp_shard dp_replicate",
        legal=_replicas_have_shards,
        source=f"{_PARALLELISM}:336",
    ),
    _rule.offers(
        "recompute",
        Recompute.NONE,
        Recompute.FULL,
        source="accelerate/utils/dataclasses.py: activation_checkpointing",
    ),
    _rule.shared(
        "recompute_covers_all_layers", source="accelerate/utils/fsdp_utils.py: every wrapped layer"
    ),
    _rule.offers(
        "offload",
        Offload.NONE,
        _OFFLOADED,
        source="accelerate/utils/dataclasses.py:1716 (CPUOffloadPolicy)",
    ),
    _rule.shared(
        "offload_needs_shards", source="accelerate/utils/dataclasses.py:1716 (a policy of FSDP2)"
    ),
    _rule.shared(
        "offload_layers_exist",
        source="accelerate/utils/dataclasses.py: no option moves activations",
    ),
    _rule.offers("split", Split.EVEN, source="no pipelines for training"),
)
