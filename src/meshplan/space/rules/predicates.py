"""The conditions themselves, shared by the frameworks that enforce them.

Each function takes the :class:`~meshplan.space.facts.Facts` of a scenario and plan fields, and is
true where the condition holds. Nothing here loops over plans.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshplan.space.facts import Facts
from meshplan.space.plan import CpComm, Offload, Recompute, Schedule, Split
from meshplan.space.rules.rule import Fields, IntArray, Legal, Predicate

__all__ = [
    "all_to_all_shares_kv_heads",
    "all_to_all_splits_heads",
    "batch_divides",
    "cp_comm_is",
    "cp_splits_recurrence",
    "degrees_multiply_to_gpus",
    "divides",
    "ep_needs_experts",
    "equals",
    "etp_divides_expert_ffn",
    "etp_is_tp",
    "etp_needs_experts",
    "expert_grid_divides",
    "experts_divide_over_ep",
    "holds_for",
    "is_one_of",
    "layers_are_dealt",
    "most_layers_per_chunk",
    "no_pipeline",
    "no_sequence_parallelism",
    "offload_leaves_a_layer",
    "offload_needs_shards",
    "offload_without_pipeline",
    "offload_without_recompute",
    "only",
    "only_facts",
    "policy_needs_shards",
    "quantized_weights_are_whole",
    "ring_splits_sequence",
    "sharded_gradients_without_pipeline",
    "shards_multiply_to_dp",
    "sp_needs_tp",
    "sp_splits_sequence",
    "stored_scores_without_cp",
    "tp_divides_ffn",
    "tp_divides_heads",
    "tp_divides_kv_heads",
    "tp_shares_kv_heads",
    "tp_splits_recurrence",
    "vpp_matches_schedule",
]

_SINGLE_STAGE = (
    Schedule.GPIPE,
    Schedule.ONE_F_ONE_B,
    Schedule.ZB_H1,
    Schedule.ZB_1P,
    Schedule.ZB_2P,
)
_LOOPED = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB)
_V_SHAPED = (Schedule.ZBV, Schedule.DUALPIPE_V)


def equals(value: IntArray, other: IntArray | int) -> Legal:
    """Whether two values are equal."""
    return np.asarray(value == other)


def divides(divisor: IntArray | int, number: IntArray | int) -> Legal:
    """Whether ``number`` is a multiple of ``divisor``; 0 is a multiple of every degree."""
    return np.asarray(np.remainder(number, divisor) == 0)


def is_one_of(value: IntArray, allowed: tuple[int, ...]) -> Legal:
    """Whether a field has one of a few values."""
    return np.isin(value, [int(a) for a in allowed])


def degrees_multiply_to_gpus(facts: Facts, plan: Fields) -> Legal:
    """``tp * pp * cp * dp == num_gpus`` with every degree at least 1."""
    positive = (plan.tp >= 1) & (plan.pp >= 1) & (plan.cp >= 1) & (plan.dp >= 1)
    return positive & equals(plan.tp * plan.pp * plan.cp * plan.dp, facts.num_gpus)


def shards_multiply_to_dp(facts: Facts, plan: Fields) -> Legal:
    """``dp_shard * dp_replicate == dp``."""
    positive = (plan.dp_shard >= 1) & (plan.dp_replicate >= 1)
    return positive & equals(plan.dp_shard * plan.dp_replicate, plan.dp)


def batch_divides(facts: Facts, plan: Fields) -> Legal:
    """``dp * micro_batch * num_micro_batches == global_batch`` with each at least 1."""
    positive = (plan.micro_batch >= 1) & (plan.num_micro_batches >= 1)
    sequences = plan.dp * plan.micro_batch * plan.num_micro_batches
    return positive & equals(sequences, facts.global_batch)


def vpp_matches_schedule(facts: Facts, plan: Fields) -> Legal:
    """One chunk without interleaving, two or more with it, exactly two in V schedules."""
    single = is_one_of(plan.schedule, _SINGLE_STAGE) & equals(plan.vpp, 1)
    looped = is_one_of(plan.schedule, _LOOPED) & (plan.vpp >= 2)
    return single | looped | (is_one_of(plan.schedule, _V_SHAPED) & equals(plan.vpp, 2))


def layers_are_dealt(facts: Facts, plan: Fields) -> Legal:
    """The split gives every virtual stage something to do (see ``deal_layers``)."""
    stages = plan.pp * plan.vpp
    if plan.stage_layers:
        layout = plan.stage_layers
        complete = sum(layout) == facts.num_layers and min(layout) >= 0
        return equals(stages, len(layout)) & np.bool_(complete)
    even = equals(plan.split, Split.EVEN) & divides(stages, facts.num_layers)
    head = 1 + facts.num_mtp_layers
    fits = equals(stages, 1) | ((facts.num_layers + 1 + head) // stages >= head)
    balanced = equals(plan.split, Split.BALANCED) & fits
    return even | balanced | (equals(plan.split, Split.BY_COST) & (stages <= facts.num_layers))


def most_layers_per_chunk(facts: Facts, plan: Fields) -> IntArray:
    """Layers of the largest virtual stage, shape of the fields (see ``deal_layers``)."""
    stages = plan.pp * plan.vpp
    if plan.stage_layers:
        return np.full_like(stages, max(plan.stage_layers))
    even = facts.num_layers // stages
    units = facts.num_layers + 2 + facts.num_mtp_layers
    most = units // stages + (np.remainder(units, stages) > 0)
    balanced = np.where(stages == 1, facts.num_layers, most - (stages == 2))
    by_cost = _first_stage_by_cost(facts, np.asarray(stages))
    other = np.where(equals(plan.split, Split.BY_COST), by_cost, balanced)
    return np.where(equals(plan.split, Split.EVEN), even, other)


def _first_stage_by_cost(facts: Facts, stages: IntArray) -> IntArray:
    """Layers of the first stage under ``BY_COST``, which has the most."""
    block, head = facts.dealing_costs
    in_blocks = (facts.num_layers * block + head) // block
    return np.minimum(in_blocks // stages + 1, facts.num_layers)


def tp_divides_heads(facts: Facts, plan: Fields) -> Legal:
    """``num_heads % tp == 0``."""
    return divides(plan.tp, facts.num_heads)


def tp_divides_kv_heads(facts: Facts, plan: Fields) -> Legal:
    """``num_kv_heads % tp == 0``: no replication of key-value heads."""
    return divides(plan.tp, facts.num_kv_heads)


def tp_shares_kv_heads(facts: Facts, plan: Fields) -> Legal:
    """``num_kv_heads % tp == 0``, or ``tp % num_kv_heads == 0``, which replicates heads."""
    legal = plan.tp >= 1
    for kv_heads in facts.kv_heads:
        legal = legal & (divides(plan.tp, kv_heads) | divides(kv_heads, plan.tp))
    return legal


def tp_divides_ffn(facts: Facts, plan: Fields) -> Legal:
    """``ffn_hidden % tp == 0`` for dense networks and shared experts."""
    return divides(plan.tp, facts.ffn_hidden) & divides(plan.tp, facts.shared_ffn_hidden)


def etp_divides_expert_ffn(facts: Facts, plan: Fields) -> Legal:
    """``expert_ffn_hidden % etp == 0``."""
    return divides(plan.etp, facts.expert_ffn_hidden)


def experts_divide_over_ep(facts: Facts, plan: Fields) -> Legal:
    """``num_experts % ep == 0``."""
    return divides(plan.ep, facts.num_experts)


def expert_grid_divides(facts: Facts, plan: Fields) -> Legal:
    """``etp * ep`` divides the ranks of one pipeline stage, ``tp * cp * dp``."""
    positive = (plan.ep >= 1) & (plan.etp >= 1)
    return positive & divides(plan.etp * plan.ep, plan.tp * plan.cp * plan.dp)


def ep_needs_experts(facts: Facts, plan: Fields) -> Legal:
    """``ep == 1`` for a dense model."""
    return equals(plan.ep, 1) | np.bool_(facts.is_moe)


def etp_needs_experts(facts: Facts, plan: Fields) -> Legal:
    """``etp == 1`` for a dense model."""
    return equals(plan.etp, 1) | np.bool_(facts.is_moe)


def etp_is_tp(facts: Facts, plan: Fields) -> Legal:
    """Experts are split as the rest of the model is: ``etp == tp``."""
    return equals(plan.etp, plan.tp) if facts.is_moe else plan.etp >= 1


def no_pipeline(facts: Facts, plan: Fields) -> Legal:
    """``pp == 1``."""
    return equals(plan.pp, 1)


def sp_needs_tp(facts: Facts, plan: Fields) -> Legal:
    """Sequence parallelism lives on the tensor-parallel axis."""
    return (plan.tp > 1) | equals(plan.sp, 0)


def no_sequence_parallelism(facts: Facts, plan: Fields) -> Legal:
    """``sp`` is off."""
    return equals(plan.sp, 0)


def sp_splits_sequence(facts: Facts, plan: Fields) -> Legal:
    """``(seq_len / cp) % tp == 0`` with sequence parallelism."""
    return equals(plan.sp, 0) | divides(plan.cp * plan.tp, facts.seq_len)


def ring_splits_sequence(facts: Facts, plan: Fields) -> Legal:
    """``seq_len % (2 * cp) == 0``: each rank takes one early and one late piece."""
    return equals(plan.cp, 1) | divides(2 * plan.cp, facts.seq_len)


def all_to_all_splits_heads(facts: Facts, plan: Fields) -> Legal:
    """Heads left by ``tp`` divide by ``cp``, keys too: ``num_kv_heads % (tp * cp) == 0``."""
    heads = divides(plan.tp * plan.cp, facts.num_heads)
    keys = divides(plan.tp * plan.cp, facts.num_kv_heads)
    return ~equals(plan.cp_comm, CpComm.ALL_TO_ALL) | equals(plan.cp, 1) | (heads & keys)


def all_to_all_shares_kv_heads(facts: Facts, plan: Fields) -> Legal:
    """``num_heads % cp == 0``, and ``num_kv_heads % cp == 0`` or ``cp % num_kv_heads == 0``."""
    legal = divides(plan.cp, facts.num_heads)
    for kv_heads in facts.kv_heads:
        legal = legal & (divides(plan.cp, kv_heads) | divides(kv_heads, plan.cp))
    return ~equals(plan.cp_comm, CpComm.ALL_TO_ALL) | legal


def cp_splits_recurrence(facts: Facts, plan: Fields) -> Legal:
    """Blocks that carry a state along the sequence cannot be cut along it."""
    return equals(plan.cp, 1) | np.bool_(not facts.is_recurrent)


def stored_scores_without_cp(facts: Facts, plan: Fields) -> Legal:
    """Rings and gathers run in kernels that keep no scores: ``cp == 1`` where they are stored."""
    stored = facts.attention == "unfused" and facts.num_heads > 0
    return equals(plan.cp, 1) | np.bool_(not stored)


def tp_splits_recurrence(facts: Facts, plan: Fields) -> Legal:
    """Blocks that carry a state along the sequence are not split over ``tp``."""
    return equals(plan.tp, 1) | np.bool_(not facts.is_recurrent)


def sharded_gradients_without_pipeline(facts: Facts, plan: Fields) -> Legal:
    """ZeRO-2 and 3 reduce gradients per micro-batch, a pipeline keeps them: ``pp == 1``."""
    return equals(plan.pp, 1) | (plan.zero < 2)


def offload_leaves_a_layer(facts: Facts, plan: Fields) -> Legal:
    """``0 <= offload_layers < num_layers``."""
    return (plan.offload_layers >= 0) & (plan.offload_layers < facts.num_layers)


def offload_without_pipeline(facts: Facts, plan: Fields) -> Legal:
    """Activations move to the host only where there is one stage."""
    return equals(plan.offload_layers, 0) | equals(plan.pp, 1)


def offload_without_recompute(facts: Facts, plan: Fields) -> Legal:
    """Activations that move to the host are not recomputed."""
    return equals(plan.offload_layers, 0) | equals(plan.recompute, int(Recompute.NONE))


def offload_needs_shards(facts: Facts, plan: Fields) -> Legal:
    """States are offloaded by the code that shards them: ``zero >= 1``; parameters by ZeRO-3."""
    parameters = equals(plan.offload & int(Offload.PARAMETERS), 0) | equals(plan.zero, 3)
    return equals(plan.offload, int(Offload.NONE)) | ((plan.zero >= 1) & parameters)


def policy_needs_shards(facts: Facts, plan: Fields) -> Legal:
    """Torch's offload is a policy of FSDP2: ``zero > 0``."""
    return equals(plan.offload, int(Offload.NONE)) | (plan.zero > 0)


def quantized_weights_are_whole(facts: Facts, plan: Fields) -> Legal:
    """4-bit base weights are not split over ``tp`` or ``pp``."""
    whole = equals(plan.tp, 1) & equals(plan.pp, 1)
    return whole | np.bool_(facts.task != "qlora")


def cp_comm_is(*allowed: int) -> Predicate:
    """Make the predicate that context parallelism moves keys and values in one of these ways."""

    def legal(facts: Facts, plan: Fields) -> Legal:
        return equals(plan.cp, 1) | np.isin(plan.cp_comm, allowed)

    return legal


def only(field: str, *allowed: int) -> Predicate:
    """Make the predicate that a plan field has one of a few values."""
    codes = [int(a) for a in allowed]

    def legal(facts: Facts, plan: Fields) -> Legal:
        return np.isin(getattr(plan, field), codes)

    return legal


def only_facts(name: str, *allowed: str) -> Predicate:
    """Make the predicate that a fact of the scenario has one of a few values."""

    def legal(facts: Facts, plan: Fields) -> Legal:
        return np.asarray(getattr(facts, name) in allowed)

    return legal


def holds_for(condition: Callable[[Facts], bool]) -> Predicate:
    """Make the predicate of a condition on the scenario alone."""

    def legal(facts: Facts, plan: Fields) -> Legal:
        return np.asarray(condition(facts))

    return legal
