"""Rules of Megatron-LM (core 0.20.0 at d98e8a64; those that a parser hits were run on 0.19.2).

``zero`` 0 is plain data parallelism, 1 the distributed optimizer, 2 and 3 are Megatron-FSDP with
``optim_grads`` and ``optim_grads_params``. ``dp_replicate`` is
``--num-distributed-optimizer-instances``. What the arguments let pass and the construction of the
model refuses is marked "model build". TE is TransformerEngine at d0067d0d.
"""

from __future__ import annotations

import numpy as np

from meshplan.space.facts import Facts
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split
from meshplan.space.rules import predicates
from meshplan.space.rules.megatron_graphs import MEGATRON_GRAPH_RULES
from meshplan.space.rules.megatron_switches import MEGATRON_SWITCH_RULES
from meshplan.space.rules.predicates import divides, equals, holds_for
from meshplan.space.rules.rule import Fields, Legal
from meshplan.space.rules.shared import RuleMaker

__all__ = ["MEGATRON_RULES"]

_rule = RuleMaker(Framework.MEGATRON, "Megatron-LM core 0.20.0 (d98e8a64)")

_CORE = "megatron/core"
_ARGUMENTS = "megatron/training/arguments.py"
_CONFIG = f"{_CORE}/transformer/transformer_config.py"
_MAMBA = f"{_CORE}/ssm/mamba_mixer.py"
_TE_ATTENTION = "TE transformer_engine/pytorch/attention/dot_product_attention"
_TE_CP = f"{_TE_ATTENTION}/context_parallel.py"

# Smallest multiple that the widths of a matrix product must have (get_fp8_align_size,
# get_fp4_align_size).
_ALIGNMENT = {"fp8": 16, "mxfp8": 32, "nvfp4": 32}
_NARROW = ("adamw16bit", "adamw8bit")


def _interleaving_fills_rounds(facts: Facts, plan: Fields) -> Legal:
    """Micro-batches come in groups of ``pp``, the default of the group size per virtual stage."""
    return equals(plan.vpp, 1) | divides(plan.pp, plan.num_micro_batches)


def _interleaving_needs_pipeline(facts: Facts, plan: Fields) -> Legal:
    return equals(plan.vpp, 1) | (plan.pp > 1)


def _recompute_exists(facts: Facts, plan: Fields) -> Legal:
    """Full, or modules that the model has."""
    modules = Recompute.CORE_ATTENTION | Recompute.NORM | Recompute.MLP
    if facts.is_moe:
        modules |= Recompute.MOE | Recompute.MLP_ACTIVATION
    if facts.shared_ffn_hidden:
        modules |= Recompute.SHARED_EXPERTS
    if facts.has_up_projection:
        modules |= Recompute.MLA_UP_PROJECTION
    unknown = plan.recompute & ~int(modules | Recompute.FULL)
    return equals(unknown, 0)


def _delayed_scaling_keeps_norms(facts: Facts, plan: Fields) -> Legal:
    """Norms and activations of experts that are computed again hand on tensors of 8 bits."""
    again = plan.recompute & int(Recompute.NORM | Recompute.MLP_ACTIVATION)
    return np.bool_(not facts.delayed_scaling) | equals(again, 0)


def _expert_bias_is_whole(facts: Facts, plan: Fields) -> Legal:
    return equals(plan.etp, 1) | np.bool_(not facts.has_expert_bias)


def _tp_divides_state_heads(facts: Facts, plan: Fields) -> Legal:
    """Heads and groups of state-space mixers divide by ``tp``."""
    legal = divides(plan.tp, facts.state_heads)
    for groups in facts.state_groups:
        legal = legal & divides(plan.tp, groups)
    return legal


def _cp_divides_state_heads(facts: Facts, plan: Fields) -> Legal:
    """Heads left by ``tp`` divide by ``cp``; groups do, or are repeated over ``cp``."""
    legal = divides(plan.tp * plan.cp, facts.state_heads)
    for groups in facts.state_groups:
        local = np.maximum(groups // plan.tp, 1)
        legal = legal & (divides(plan.cp, local) | divides(local, plan.cp))
    return legal


def _tp_cp_divide_linear_heads(facts: Facts, plan: Fields) -> Legal:
    return divides(plan.tp * plan.cp, facts.linear_heads)


def _window_needs_other_traffic(facts: Facts, plan: Fields) -> Legal:
    ring = (plan.cp > 1) & equals(plan.cp_comm, CpComm.P2P)
    return ~ring | np.bool_(not facts.has_window)


def _sinks_need_all_to_all(facts: Facts, plan: Fields) -> Legal:
    other = (plan.cp > 1) & ~equals(plan.cp_comm, CpComm.ALL_TO_ALL)
    return ~other | np.bool_(not facts.has_sinks)


def _sparse_index_needs_all_gather(facts: Facts, plan: Fields) -> Legal:
    other = (plan.cp > 1) & ~equals(plan.cp_comm, CpComm.ALL_GATHER)
    return ~other | np.bool_(not facts.has_sparse_index)


def _stored_scores_without_cp(facts: Facts, plan: Fields) -> Legal:
    """No backend does both; attention to tokens that an index picks gathers keys by itself."""
    own = np.bool_(not facts.scores_all_tokens)
    return own | predicates.stored_scores_without_cp(facts, plan)


def _replicas_divide_experts(facts: Facts, plan: Fields) -> Legal:
    """``edp % dp_replicate == 0``."""
    block = plan.etp * plan.ep * plan.dp_replicate
    return equals(plan.dp_replicate, 1) | divides(block, plan.tp * plan.cp * plan.dp)


def _widths_are_aligned(facts: Facts, plan: Fields) -> Legal:
    """Widths of the split matrix products are multiples of the format's alignment."""
    align = _ALIGNMENT.get(facts.precision)
    if align is None:
        return plan.tp >= 1
    dense = divides(align, facts.hidden) & divides(plan.tp * align, facts.ffn_hidden)
    return dense & divides(plan.tp * align, facts.shared_ffn_hidden)


def _expert_widths_are_aligned(facts: Facts, plan: Fields) -> Legal:
    align = _ALIGNMENT.get(facts.precision)
    return plan.etp >= 1 if align is None else divides(plan.etp * align, facts.expert_ffn_hidden)


def _fsdp_needs_plain_optimizer(facts: Facts, plan: Fields) -> Legal:
    return (plan.zero < 2) | np.bool_(facts.optimizer in ("adamw", *_NARROW, "sgd"))


def _offload_needs_adam(facts: Facts, plan: Fields) -> Legal:
    """Offload reuses the precision-aware optimizer, which is Adam with moments in 32 bits."""
    kept = equals(plan.offload, int(Offload.NONE))
    return kept | np.bool_(facts.optimizer == "adamw")


def _precision_aware_is_distributed(facts: Facts, plan: Fields) -> Legal:
    """A single replica has nothing to share, and runs it all the same."""
    plain = equals(plan.offload, int(Offload.NONE)) & np.bool_(facts.optimizer not in _NARROW)
    return plain | (plan.zero > 0) | equals(plan.dp_shard * plan.cp, 1)


def _mixers_exist(facts: Facts) -> bool:
    return not facts.has_other_recurrence and 1 not in facts.state_versions


MEGATRON_RULES = (
    _rule(
        "mixer_exists",
        axis="framework",
        reads="",
        legal=holds_for(_mixers_exist),
        source=f"{_MAMBA}:143 (Mamba 2), {_CORE}/ssm/gated_delta_net/gdn.py: no other mixer",
    ),
    _rule.offers(
        "task",
        "pretrain",
        "full_finetune",
        "lora",
        source="Megatron-Bridge src/megatron/bridge/peft: LoRA, no quantised base weights",
    ),
    _rule.offers(
        "optimizer",
        "adamw",
        "adamw16bit",
        "adamw8bit",
        "sgd",
        "muon",
        source=f"{_ARGUMENTS}:2913; 16 and 8 bit by --exp-avg-dtype ({_ARGUMENTS}:3675)",
    ),
    *MEGATRON_SWITCH_RULES,
    *MEGATRON_GRAPH_RULES,
    _rule.shared("tp_divides_heads", source=f"{_CONFIG}:1446"),
    _rule(
        "tp_shares_kv_heads",
        axis="tp",
        reads="tp",
        legal=predicates.tp_shares_kv_heads,
        source=f"{_CONFIG}:1462",
        numbers="num_kv_heads",
    ),
    _rule.shared("tp_divides_ffn", source=f"{_CORE}/tensor_parallel/layers.py:1038 (model build)"),
    _rule(
        "tp_divides_state_heads",
        axis="tp",
        reads="tp",
        legal=_tp_divides_state_heads,
        source=f"{_MAMBA}:262, 270",
        numbers="state_heads",
    ),
    _rule.shared("ring_splits_sequence", source=f"{_ARGUMENTS}:1336"),
    _rule(
        "cp_divides_state_heads",
        axis="cp",
        reads="tp cp",
        legal=_cp_divides_state_heads,
        source=f"{_CORE}/ssm/mamba_context_parallel.py:106",
        numbers="state_heads",
    ),
    _rule(
        "tp_cp_divide_linear_heads",
        axis="tp",
        reads="tp cp",
        legal=_tp_cp_divide_linear_heads,
        source=f"{_CONFIG}:1501",
        numbers="linear_heads",
    ),
    _rule(
        "stored_scores_without_cp",
        axis="cp",
        reads="cp",
        legal=_stored_scores_without_cp,
        source=f"{_TE_ATTENTION}/utils.py:1169 (run time); {_CORE}/transformer/"
        "dot_product_attention.py:57 (model build with --transformer-impl local)",
    ),
    _rule(
        "all_to_all_splits_heads",
        axis="cp",
        reads="tp cp cp_comm",
        legal=predicates.all_to_all_splits_heads,
        source=f"{_TE_CP}:4246",
        numbers="num_heads num_kv_heads",
    ),
    _rule(
        "window_needs_other_traffic",
        axis="cp_comm",
        reads="cp cp_comm",
        legal=_window_needs_other_traffic,
        source=f"{_TE_CP}:5057",
    ),
    _rule(
        "sinks_need_all_to_all",
        axis="cp_comm",
        reads="cp cp_comm",
        legal=_sinks_need_all_to_all,
        source=f"{_TE_CP}:5066",
    ),
    _rule(
        "sparse_index_needs_all_gather",
        axis="cp_comm",
        reads="cp cp_comm",
        legal=_sparse_index_needs_all_gather,
        source=f"{_CONFIG}:3164",
    ),
    _rule.offers(
        "schedule",
        Schedule.ONE_F_ONE_B,
        Schedule.INTERLEAVED,
        source=f"{_CORE}/pipeline_parallel/schedules.py: get_forward_backward_func",
    ),
    _rule(
        "interleaving_needs_pipeline",
        axis="vpp",
        reads="pp vpp",
        legal=_interleaving_needs_pipeline,
        source=f"{_ARGUMENTS}:1002",
    ),
    _rule(
        "interleaving_fills_rounds",
        axis="micro_batch",
        reads="pp vpp num_micro_batches",
        legal=_interleaving_fills_rounds,
        source=f"{_CORE}/pipeline_parallel/schedules.py:1160",
    ),
    _rule.shared("sp_needs_tp", source=f"{_CORE}/model_parallel_config.py:503"),
    _rule.shared("sp_splits_sequence", source=f"{_CORE}/tensor_parallel/mappings.py:72 (run time)"),
    _rule.shared("experts_divide_over_ep", source=f"{_ARGUMENTS}:1657"),
    _rule.shared(
        "etp_divides_expert_ffn", source=f"{_CORE}/tensor_parallel/layers.py:1038 (model build)"
    ),
    _rule(
        "expert_bias_is_whole",
        axis="etp",
        reads="etp",
        legal=_expert_bias_is_whole,
        source=f"{_CONFIG}:2614",
    ),
    _rule(
        "widths_are_aligned",
        axis="tp",
        reads="tp",
        legal=_widths_are_aligned,
        source=f"{_CORE}/fp8_utils.py:356, fp4_utils.py:176; TE pytorch/utils.py:614",
        numbers="precision hidden ffn_hidden",
    ),
    _rule(
        "expert_widths_are_aligned",
        axis="etp",
        reads="etp",
        legal=_expert_widths_are_aligned,
        source=f"{_CORE}/fp8_utils.py:356, fp4_utils.py:176; TE pytorch/utils.py:614",
        numbers="precision expert_ffn_hidden",
    ),
    _rule.shared(
        "sharded_gradients_without_pipeline",
        source=f"{_CORE}/pipeline_parallel/combined_1f1b.py:210; no recipe or test of "
        "Megatron-FSDP has a pipeline",
    ),
    _rule(
        "fsdp_needs_plain_optimizer",
        axis="zero",
        reads="zero",
        legal=_fsdp_needs_plain_optimizer,
        source=f"{_ARGUMENTS}:1150, 1740",
        numbers="optimizer",
    ),
    _rule(
        "replicas_divide_experts",
        axis="dp_replicate",
        reads="tp cp dp ep etp dp_replicate",
        legal=_replicas_divide_experts,
        source=f"{_CORE}/parallel_state.py:1447",
    ),
    _rule(
        "recompute_exists",
        axis="recompute",
        reads="recompute",
        legal=_recompute_exists,
        source=f"{_CONFIG}:1943",
    ),
    _rule(
        "delayed_scaling_keeps_norms",
        axis="recompute",
        reads="recompute",
        legal=_delayed_scaling_keeps_norms,
        source=f"{_CONFIG}:2003",
    ),
    _rule.offers("offload", Offload.NONE, Offload.OPTIMIZER, source=f"{_ARGUMENTS}:2918"),
    _rule(
        "offload_needs_adam",
        axis="offload",
        reads="offload",
        legal=_offload_needs_adam,
        source=f"{_ARGUMENTS}:1884, {_CORE}/optimizer/optimizer_config.py:433",
        numbers="optimizer",
    ),
    _rule(
        "precision_aware_is_distributed",
        axis="zero",
        reads="cp dp_shard zero offload",
        legal=_precision_aware_is_distributed,
        source=f"{_CORE}/optimizer/__init__.py:1057",
        numbers="optimizer",
    ),
    _rule(
        "offload_leaves_a_layer",
        axis="offload_layers",
        reads="offload_layers",
        legal=predicates.offload_leaves_a_layer,
        source=f"{_CONFIG}:1884",
        numbers="num_layers",
    ),
    _rule(
        "offload_layers_without_pipeline",
        axis="pp",
        reads="pp offload_layers",
        legal=predicates.offload_without_pipeline,
        source=f"{_CONFIG}:1891",
    ),
    _rule(
        "offload_layers_without_recompute",
        axis="recompute",
        reads="recompute offload_layers",
        legal=predicates.offload_without_recompute,
        source=f"{_CONFIG}:1896",
    ),
    _rule.offers(
        "split",
        Split.EVEN,
        Split.BALANCED,
        source="megatron/core/transformer/pipeline_parallel_layer_layout.py: ends are layers",
    ),
)
