"""Rules of torchtitan 0.3.0 and of torch.distributed.pipelining 2.13.

All schedules of a plan can run: GPipe, 1F1B, interleaved 1F1B and zero bubble, ZBV and DualPipeV by
name, ZB-H1, ZB-1p and ZB-2p from ``pipeline_parallel_schedule_csv``.

``zero`` 0 is ``data_parallel_replicate_degree`` alone, 2 is FSDP2 with
``fsdp_reshard_after_forward: never``, 3 with ``always``.
"""

from __future__ import annotations

import numpy as np

from meshplan.space.facts import Facts
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split
from meshplan.space.rules.predicates import (
    divides,
    equals,
    holds_for,
    is_one_of,
)
from meshplan.space.rules.rule import Fields, Legal
from meshplan.space.rules.shared import RuleMaker

__all__ = ["TORCHTITAN_RULES"]

_rule = RuleMaker(Framework.TORCHTITAN, "torchtitan 0.3.0, torch 2.13.0")

_MESH = "torchtitan/distributed/parallel_dims.py"
_DECODER = "torchtitan/models/common/decoder.py"
_SCHEDULES = "torch/distributed/pipelining/schedules.py"
_MTP = "torchtitan/models/deepseek_v3/mtp.py"

_LOOPED = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB)
_OFFLOADED = Offload.OPTIMIZER | Offload.PARAMETERS


def _pipeline_is_filled(facts: Facts, plan: Fields) -> Legal:
    """1F1B: ``num_micro_batches >= pp``; DualPipeV: at least the number of virtual stages."""
    one = equals(plan.schedule, Schedule.ONE_F_ONE_B) & (plan.num_micro_batches < plan.pp)
    dual = equals(plan.schedule, Schedule.DUALPIPE_V)
    return ~(one | (dual & (plan.num_micro_batches < 2 * plan.pp)))


def _rounds_are_equal(facts: Facts, plan: Fields) -> Legal:
    """Interleaving: ``m % max(1, m // pp) == 0``."""
    rounds = np.maximum(plan.num_micro_batches // plan.pp, 1)
    return ~is_one_of(plan.schedule, _LOOPED) | divides(rounds, plan.num_micro_batches)


def _ep_divides_mesh(facts: Facts, plan: Fields) -> Legal:
    """``ep`` divides ``dp_shard * cp * tp``; plain data parallelism has ``dp_shard`` 1."""
    shard = np.where(equals(plan.zero, 0), 1, plan.dp_shard)
    return divides(plan.ep, shard * plan.cp * plan.tp)


def _etp_follows_ep(facts: Facts, plan: Fields) -> Legal:
    """Experts are split over ``tp`` without expert parallelism and whole with it."""
    if not facts.is_moe:
        return plan.etp >= 1
    return equals(plan.etp, np.where(equals(plan.ep, 1), plan.tp, 1))


def _cp_shards_states(facts: Facts, plan: Fields) -> Legal:
    """FSDP shards over ``dp_shard * cp``, so that context parallelism always shards."""
    return equals(plan.cp, 1) | (plan.zero > 0)


def _tied_without_pipeline(facts: Facts, plan: Fields) -> Legal:
    return equals(plan.pp, 1) | np.bool_(not facts.tied_embeddings)


def _mtp_without_pipeline(facts: Facts, plan: Fields) -> Legal:
    return equals(plan.pp, 1) | np.bool_(facts.num_mtp_layers == 0)


def _mtp_without_cp(facts: Facts, plan: Fields) -> Legal:
    return equals(plan.cp, 1) | np.bool_(facts.num_mtp_layers == 0)


def _sequence_splits(facts: Facts, plan: Fields) -> Legal:
    """``seq_len`` divides by ``tp`` with sequence parallelism, times ``2 * cp``."""
    split = np.where(equals(plan.sp, 1), plan.tp, 1) * np.where(plan.cp > 1, 2 * plan.cp, 1)
    return divides(split, facts.seq_len)


def _mixers_exist(facts: Facts) -> bool:
    return not facts.has_state_space and not facts.has_other_recurrence


TORCHTITAN_RULES = (
    _rule(
        "mixer_exists",
        axis="framework",
        reads="",
        legal=holds_for(_mixers_exist),
        source="torchtitan/models: softmax attention and the gated delta net of qwen3_5",
    ),
    _rule.offers(
        "precision",
        "bf16",
        "fp8",
        "mxfp8",
        "nvfp4",
        source="torchtitan/config/configs.py:85, components/quantization",
    ),
    _rule.offers(
        "task",
        "pretrain",
        "full_finetune",
        "lora",
        source="torchtitan/components/lora.py: adapters on 16-bit weights",
    ),
    _rule.shared("tp_divides_heads", source=f"{_DECODER}:149"),
    _rule.shared("tp_divides_kv_heads", source=f"{_DECODER}:154"),
    _rule.shared(
        "tp_divides_ffn", source="uneven shards are not modelled (torchtitan does not check)"
    ),
    _rule(
        "tp_cp_divide_linear_heads",
        axis="tp",
        reads="tp",
        legal=lambda facts, plan: divides(plan.tp, facts.linear_heads),
        source="torchtitan/models/qwen3_5/sharding.py:102 (heads are split)",
        numbers="linear_heads",
    ),
    _rule.shared(
        "cp_splits_recurrence",
        source="torchtitan/distributed/context_parallel/api.py:104 (attention only)",
    ),
    _rule.shared(
        "stored_scores_without_cp",
        source="torchtitan/distributed/context_parallel/api.py:57, 104 and "
        "models/common/config_utils.py:97 (flex attention, which is compiled, alone)",
    ),
    _rule(
        "mtp_without_cp",
        axis="cp",
        reads="cp",
        legal=_mtp_without_cp,
        source=f"{_MTP}:207",
        numbers="num_mtp_layers",
    ),
    _rule.offers(
        "cp_comm",
        CpComm.ALL_GATHER,
        source="torchtitan/distributed/context_parallel/api.py:73 (flex_cp_allgather)",
    ),
    _rule(
        "tied_without_pipeline",
        axis="pp",
        reads="pp",
        legal=_tied_without_pipeline,
        source=f"{_DECODER}:139",
    ),
    _rule(
        "mtp_without_pipeline",
        axis="pp",
        reads="pp",
        legal=_mtp_without_pipeline,
        source=f"{_MTP}:202",
        numbers="num_mtp_layers",
    ),
    _rule(
        "pipeline_is_filled",
        axis="micro_batch",
        reads="pp schedule num_micro_batches",
        legal=_pipeline_is_filled,
        source=f"{_SCHEDULES}:1021, 3440",
    ),
    _rule(
        "rounds_are_equal",
        axis="micro_batch",
        reads="pp schedule num_micro_batches",
        legal=_rounds_are_equal,
        source=f"{_SCHEDULES}:2937, 3048",
    ),
    _rule.shared("sp_needs_tp", source="torchtitan/trainer.py:307 (no effect)"),
    _rule(
        "sp_splits_sequence",
        axis="tp",
        reads="tp cp sp",
        legal=_sequence_splits,
        source="torchtitan/trainer.py:307",
        numbers="seq_len",
    ),
    _rule.shared(
        "experts_divide_over_ep", source="uneven shards are not modelled (torchtitan pads)"
    ),
    _rule(
        "etp_follows_ep",
        axis="etp",
        reads="tp ep etp",
        legal=_etp_follows_ep,
        source="torchtitan/models/common/moe_sharding.py:201",
    ),
    _rule.shared(
        "etp_divides_expert_ffn",
        source="uneven shards are not modelled (torchtitan does not check)",
    ),
    _rule.offers(
        "zero", 0, 2, 3, source="torchtitan/distributed/fsdp.py:54 (reshard or not; no stage 1)"
    ),
    _rule(
        "cp_shards_states",
        axis="zero",
        reads="cp zero",
        legal=_cp_shards_states,
        source=f"{_MESH}:278 (fsdp is dp_shard * cp)",
    ),
    _rule(
        "ep_divides_mesh",
        axis="ep",
        reads="tp cp ep dp_shard zero",
        legal=_ep_divides_mesh,
        source=f"{_MESH}:188 at b5bcd76c; 0.3.0 fails in the mesh ({_MESH}:279)",
    ),
    _rule.offers(
        "recompute",
        Recompute.NONE,
        Recompute.SELECTIVE_OP,
        Recompute.FULL,
        source="torchtitan/distributed/activation_checkpoint.py:167, 188",
    ),
    _rule.shared(
        "recompute_covers_all_layers",
        source="torchtitan/distributed/activation_checkpoint.py:152 (every block)",
    ),
    _rule.offers(
        "offload",
        Offload.NONE,
        _OFFLOADED,
        source="torchtitan/config/configs.py:61 (parameters and optimizer together)",
    ),
    _rule.shared(
        "offload_needs_shards", source="torchtitan/distributed/fsdp.py:117 (a policy of FSDP2)"
    ),
    _rule.shared(
        "offload_layers_exist",
        source="torchtitan/distributed/activation_checkpoint.py: no mode moves activations",
    ),
    _rule.offers(
        "split",
        Split.EVEN,
        Split.BALANCED,
        source="torchtitan/distributed/pipeline_parallel.py: layers per stage, fewer at the ends",
    ),
)
