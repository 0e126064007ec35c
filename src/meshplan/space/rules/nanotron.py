"""Rules of nanotron (2411b022). ``sp`` is ``tp_mode: REDUCE_SCATTER``."""

from __future__ import annotations

from meshplan.space.facts import Facts
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule
from meshplan.space.rules import predicates
from meshplan.space.rules.predicates import equals, holds_for, only, only_facts
from meshplan.space.rules.rule import Fields, Legal, rule_maker

__all__ = ["NANOTRON_RULES"]

_rule = rule_maker(Framework.NANOTRON, "nanotron 2411b022")

_CONFIG = "src/nanotron/config/config.py"
_CONTEXT = "src/nanotron/parallel/context.py"
_ENGINE = "src/nanotron/parallel/pipeline_parallel/engine.py"


def _pipeline_is_filled(facts: Facts, plan: Fields) -> Legal:
    """1F1B: ``num_micro_batches >= pp - 1``."""
    one = equals(plan.schedule, Schedule.ONE_F_ONE_B)
    return ~one | (plan.num_micro_batches >= plan.pp - 1)


NANOTRON_RULES = (
    _rule(
        "mixer_exists",
        axis="framework",
        reads="",
        legal=holds_for(lambda facts: not (facts.is_recurrent or facts.has_latent_attention)),
        source="src/nanotron/models: llama, qwen and starcoder2",
    ),
    _rule(
        "precision_exists",
        axis="framework",
        reads="",
        legal=only_facts("precision", "bf16", "fp16"),
        source="src/nanotron/config/utils_config.py:70",
        numbers="precision",
    ),
    _rule(
        "task_exists",
        axis="framework",
        reads="",
        legal=only_facts("task", "pretrain", "full_finetune"),
        source="no adapters in src/nanotron",
        numbers="task",
    ),
    _rule(
        "optimizer_exists",
        axis="framework",
        reads="",
        legal=only_facts("optimizer", "adamw", "sgd"),
        source=f"{_CONFIG}:391, 396",
        numbers="optimizer",
    ),
    _rule(
        "tp_divides_heads",
        axis="tp",
        reads="tp",
        legal=predicates.tp_divides_heads,
        source=f"{_CONFIG}:536",
        numbers="num_heads",
    ),
    _rule(
        "tp_divides_kv_heads",
        axis="tp",
        reads="tp",
        legal=predicates.tp_divides_kv_heads,
        source=f"{_CONFIG}:542, src/nanotron/models/llama.py:351",
        numbers="num_kv_heads",
    ),
    _rule(
        "tp_divides_ffn",
        axis="tp",
        reads="tp",
        legal=predicates.tp_divides_ffn,
        source="src/nanotron/parallel/tensor_parallel/nn.py (model build)",
        numbers="ffn_hidden shared_ffn_hidden",
    ),
    _rule(
        "sp_needs_tp",
        axis="sp",
        reads="tp sp",
        legal=predicates.sp_needs_tp,
        source="src/nanotron/parallel/tensor_parallel (no effect)",
    ),
    _rule(
        "sp_splits_sequence",
        axis="tp",
        reads="tp cp sp",
        legal=predicates.sp_splits_sequence,
        source="src/nanotron/parallel/tensor_parallel/distributed_differentiable_primitives.py",
        numbers="seq_len",
    ),
    _rule(
        "ring_splits_sequence",
        axis="cp",
        reads="cp",
        legal=predicates.ring_splits_sequence,
        source="src/nanotron/models/qwen.py:777",
        numbers="seq_len",
    ),
    _rule(
        "cp_comm_exists",
        axis="cp_comm",
        reads="cp cp_comm",
        legal=lambda facts, plan: (plan.cp == 1) | ~equals(plan.cp_comm, CpComm.ALL_TO_ALL),
        source="src/nanotron/nn/attention.py:214 (ring, llama3_ring_attention)",
    ),
    _rule(
        "schedule_exists",
        axis="schedule",
        reads="schedule",
        legal=only("schedule", Schedule.GPIPE, Schedule.ONE_F_ONE_B),
        source=f"{_ENGINE}:175, 235 (afab, 1f1b)",
    ),
    _rule(
        "pipeline_is_filled",
        axis="micro_batch",
        reads="pp schedule num_micro_batches",
        legal=_pipeline_is_filled,
        source=f"{_ENGINE}:252",
    ),
    _rule(
        "no_expert_parallelism",
        axis="ep",
        reads="ep",
        legal=predicates.no_expert_parallelism,
        source=f"{_CONTEXT}:26, 62: the world must be tp*cp*dp*pp and ep*pp*dp*cp*tp at once",
    ),
    _rule(
        "etp_is_one",
        axis="etp",
        reads="etp",
        legal=predicates.etp_is_one,
        source="src/nanotron/nn/moe.py:66 (experts are not split)",
    ),
    _rule(
        "zero_exists",
        axis="zero",
        reads="zero",
        legal=only("zero", 0, 1),
        source="src/nanotron/helpers.py:409 (3 is taken for 1)",
    ),
    _rule(
        "no_replicas",
        axis="dp_replicate",
        reads="dp_replicate",
        legal=only("dp_replicate", 1),
        source="src/nanotron/optim/zero.py: shards over all of dp",
    ),
    _rule(
        "recompute_exists",
        axis="recompute",
        reads="recompute",
        legal=only("recompute", Recompute.NONE, Recompute.FULL),
        source="src/nanotron/config/parallelism_config.py:35",
    ),
    _rule(
        "recompute_covers_all_layers",
        axis="recompute_layers",
        reads="recompute_layers",
        legal=only("recompute_layers", 0),
        source="src/nanotron/models/llama.py:774 (every layer)",
    ),
    _rule(
        "offload_exists",
        axis="offload",
        reads="offload",
        legal=only("offload", Offload.NONE),
        source="no offload in src/nanotron/optim",
    ),
    _rule(
        "offload_layers_exist",
        axis="offload_layers",
        reads="offload_layers",
        legal=only("offload_layers", 0),
        source="no offload of activations in src/nanotron",
    ),
)
