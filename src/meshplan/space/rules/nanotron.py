"""Rules of nanotron (2411b022). ``sp`` is ``tp_mode: REDUCE_SCATTER``."""

from __future__ import annotations

import numpy as np

from meshplan.space.facts import Facts
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split
from meshplan.space.rules.predicates import equals, holds_for
from meshplan.space.rules.rule import Fields, Legal
from meshplan.space.rules.shared import RuleMaker

__all__ = ["NANOTRON_RULES"]

_rule = RuleMaker(Framework.NANOTRON, "nanotron 2411b022")

_CONFIG = "src/nanotron/config/config.py"
_CONTEXT = "src/nanotron/parallel/context.py"
_ENGINE = "src/nanotron/parallel/pipeline_parallel/engine.py"


def _pipeline_is_filled(facts: Facts, plan: Fields) -> Legal:
    """1F1B: ``num_micro_batches >= pp - 1``."""
    one = equals(plan.schedule, Schedule.ONE_F_ONE_B)
    return ~one | (plan.num_micro_batches >= plan.pp - 1)


def _stages_are_weighed(facts: Facts, plan: Fields) -> Legal:
    """A pipeline deals blocks by their cost; there is no other way."""
    return np.where(plan.pp > 1, equals(plan.split, Split.BY_COST), equals(plan.split, Split.EVEN))


NANOTRON_RULES = (
    _rule(
        "mixer_exists",
        axis="framework",
        reads="",
        legal=holds_for(lambda facts: not (facts.is_recurrent or facts.has_latent_attention)),
        source="src/nanotron/models: llama, qwen and starcoder2",
    ),
    _rule.offers("precision", "bf16", "fp16", source="src/nanotron/config/utils_config.py:70"),
    _rule.offers("task", "pretrain", "full_finetune", source="no adapters in src/nanotron"),
    _rule.offers("optimizer", "adamw", "sgd", source=f"{_CONFIG}:391, 396"),
    _rule.shared("tp_divides_heads", source=f"{_CONFIG}:536"),
    _rule.shared("tp_divides_kv_heads", source=f"{_CONFIG}:542, src/nanotron/models/llama.py:351"),
    _rule.shared(
        "tp_divides_ffn", source="src/nanotron/parallel/tensor_parallel/nn.py (model build)"
    ),
    _rule.shared("sp_needs_tp", source="src/nanotron/parallel/tensor_parallel (no effect)"),
    _rule.shared(
        "sp_splits_sequence",
        source="src/nanotron/parallel/tensor_parallel/distributed_differentiable_primitives.py",
    ),
    _rule.shared("ring_splits_sequence", source="src/nanotron/models/qwen.py:777"),
    _rule.shared(
        "stored_scores_without_cp",
        source="src/nanotron/models/qwen.py:287, 309 (kernels of flash attention alone)",
    ),
    _rule.offers(
        "cp_comm",
        CpComm.P2P,
        CpComm.ALL_GATHER,
        source="src/nanotron/nn/attention.py:214 (ring, llama3_ring_attention)",
    ),
    _rule.offers(
        "schedule", Schedule.GPIPE, Schedule.ONE_F_ONE_B, source=f"{_ENGINE}:175, 235 (afab, 1f1b)"
    ),
    _rule(
        "pipeline_is_filled",
        axis="micro_batch",
        reads="pp schedule num_micro_batches",
        legal=_pipeline_is_filled,
        source=f"{_ENGINE}:252",
    ),
    _rule.shared(
        "no_expert_parallelism",
        source=f"{_CONTEXT}:26, 62: the world must be tp*cp*dp*pp and ep*pp*dp*cp*tp at once",
    ),
    _rule.shared("etp_is_one", source="src/nanotron/nn/moe.py:66 (experts are not split)"),
    _rule.offers("zero", 0, 1, source="src/nanotron/helpers.py:409 (3 is taken for 1)"),
    _rule.shared("no_replicas", source="src/nanotron/optim/zero.py: shards over all of dp"),
    _rule.offers(
        "recompute",
        Recompute.NONE,
        Recompute.FULL,
        source="src/nanotron/config/parallelism_config.py:35",
    ),
    _rule.shared(
        "recompute_covers_all_layers", source="src/nanotron/models/llama.py:774 (every layer)"
    ),
    _rule.offers("offload", Offload.NONE, source="no offload in src/nanotron/optim"),
    _rule.shared("offload_layers_exist", source="no offload of activations in src/nanotron"),
    _rule(
        "split_exists",
        axis="split",
        reads="pp split",
        legal=_stages_are_weighed,
        source="src/nanotron/models/base.py: build_model weighs blocks by get_block_compute_costs",
    ),
)
