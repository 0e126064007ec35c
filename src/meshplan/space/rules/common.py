"""Arithmetic that no framework escapes, and the canonical form of a plan.

An axis without effect takes one value only: the ring of a context-parallel degree of 1, the
schedule of a pipeline of one stage. Such plans would run, but each is the same run as a simpler
plan that is kept, so that they are counted as duplicates.
"""

from __future__ import annotations

from meshplan.space.facts import Facts
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split
from meshplan.space.rules import predicates
from meshplan.space.rules.predicates import divides, equals, most_layers_per_chunk
from meshplan.space.rules.rule import ALL_FRAMEWORKS, Fields, Legal, Predicate, Rule

__all__ = ["COMMON_RULES"]


def _full_recompute_is_alone(facts: Facts, plan: Fields) -> Legal:
    """Full recompute covers every module, so that it is not joined with one."""
    full = equals(plan.recompute & int(Recompute.FULL), 0)
    return full | equals(plan.recompute, int(Recompute.FULL))


def _layers_come_with_full_recompute(facts: Facts, plan: Fields) -> Legal:
    """``recompute_layers`` counts layers of full recompute."""
    return equals(plan.recompute_layers, 0) | equals(plan.recompute, int(Recompute.FULL))


def _full_recompute_fits_chunk(facts: Facts, plan: Fields) -> Legal:
    """``recompute_layers`` names layers that a chunk has."""
    in_chunk = plan.recompute_layers <= most_layers_per_chunk(facts, plan)
    return (plan.recompute_layers >= 0) & in_chunk


def _pipeline_is_canonical(facts: Facts, plan: Fields) -> Legal:
    """Without a pipeline: 1F1B with one chunk."""
    plain = equals(plan.schedule, Schedule.ONE_F_ONE_B) & equals(plan.vpp, 1)
    return (plan.pp > 1) | plain


def _split_is_canonical(facts: Facts, plan: Fields) -> Legal:
    """``EVEN`` where ``BALANCED`` deals layers the same way, or where a layout is explicit.

    With two stages the embedding and the head weigh the same, so that an even number of layers
    is dealt evenly unless MTP blocks weigh on the last stage.
    """
    even = equals(plan.split, Split.EVEN)
    if plan.stage_layers:
        return even
    stages = plan.pp * plan.vpp
    symmetric = equals(stages, 1) if facts.num_mtp_layers else stages <= 2
    same = equals(plan.split, Split.BALANCED) & divides(stages, facts.num_layers) & symmetric
    return even | ~(same | (equals(plan.split, Split.BY_COST) & equals(stages, 1)))


def _cp_comm_is_canonical(facts: Facts, plan: Fields) -> Legal:
    return (plan.cp > 1) | equals(plan.cp_comm, CpComm.P2P)


def _zero_is_canonical(facts: Facts, plan: Fields) -> Legal:
    """Nothing to shard over one device."""
    return (plan.dp_shard * plan.cp > 1) | equals(plan.zero, 0)


def _zero_is_canonical_or_offloads(facts: Facts, plan: Fields) -> Legal:
    """Over one device only what moves states to the host, which the code that shards does."""
    return _zero_is_canonical(facts, plan) | (plan.offload > int(Offload.NONE))


def _replicas_are_canonical(facts: Facts, plan: Fields) -> Legal:
    """Replica groups mean nothing where nothing is sharded."""
    return (plan.zero > 0) | equals(plan.dp_replicate, 1)


def _recompute_layers_are_canonical(facts: Facts, plan: Fields) -> Legal:
    """All layers of every chunk is what 0 says."""
    fewer = plan.recompute_layers < most_layers_per_chunk(facts, plan)
    return equals(plan.recompute_layers, 0) | fewer


def _arithmetic(code: str, *, axis: str, reads: str, legal: Predicate, numbers: str = "") -> Rule:
    return Rule(
        code=code,
        frameworks=ALL_FRAMEWORKS,
        version="",
        source="arithmetic",
        reads=tuple(reads.split()),
        axis=axis,
        legal=legal,
        numbers=tuple(numbers.split()),
    )


def _duplicate(
    axis: str,
    reads: str,
    legal: Predicate,
    frameworks: tuple[Framework, ...] = ALL_FRAMEWORKS,
) -> Rule:
    return Rule(
        code="duplicate_of_simpler",
        frameworks=frameworks,
        version="",
        source="canonical form",
        reads=tuple(reads.split()),
        axis=axis,
        legal=legal,
        duplicate=True,
    )


_OFFLOADS_WITHOUT_SHARDS = (Framework.MEGATRON, Framework.NANOTRON)
"""Its own optimizer does it, or nothing does; the others offload in the code of ZeRO or FSDP."""

_CHUNK = "pp vpp split stage_layers"

COMMON_RULES = (
    _arithmetic(
        "degrees_multiply_to_gpus",
        axis="dp",
        reads="tp pp cp dp",
        legal=predicates.degrees_multiply_to_gpus,
        numbers="num_gpus",
    ),
    _arithmetic(
        "shards_multiply_to_dp",
        axis="dp_replicate",
        reads="dp dp_shard dp_replicate",
        legal=predicates.shards_multiply_to_dp,
    ),
    _arithmetic(
        "batch_divides",
        axis="micro_batch",
        reads="dp micro_batch num_micro_batches",
        legal=predicates.batch_divides,
        numbers="global_batch",
    ),
    _arithmetic(
        "vpp_matches_schedule",
        axis="vpp",
        reads="schedule vpp",
        legal=predicates.vpp_matches_schedule,
    ),
    _arithmetic(
        "layers_are_dealt",
        axis="pp",
        reads=_CHUNK,
        legal=predicates.layers_are_dealt,
        numbers="num_layers",
    ),
    _arithmetic(
        "expert_grid_divides",
        axis="ep",
        reads="tp cp dp ep etp",
        legal=predicates.expert_grid_divides,
    ),
    _arithmetic("ep_needs_experts", axis="ep", reads="ep", legal=predicates.ep_needs_experts),
    _arithmetic("etp_needs_experts", axis="etp", reads="etp", legal=predicates.etp_needs_experts),
    _arithmetic(
        "full_recompute_is_alone",
        axis="recompute",
        reads="recompute",
        legal=_full_recompute_is_alone,
    ),
    _arithmetic(
        "layers_come_with_full_recompute",
        axis="recompute_layers",
        reads="recompute recompute_layers",
        legal=_layers_come_with_full_recompute,
    ),
    _arithmetic(
        "full_recompute_fits_chunk",
        axis="recompute_layers",
        reads=f"{_CHUNK} recompute_layers",
        legal=_full_recompute_fits_chunk,
    ),
    _duplicate("schedule", "pp schedule vpp", _pipeline_is_canonical),
    _duplicate("split", _CHUNK, _split_is_canonical),
    _duplicate("cp_comm", "cp cp_comm", _cp_comm_is_canonical),
    _duplicate("zero", "dp_shard cp zero", _zero_is_canonical, _OFFLOADS_WITHOUT_SHARDS),
    _duplicate(
        "zero",
        "dp_shard cp zero offload",
        _zero_is_canonical_or_offloads,
        tuple(f for f in ALL_FRAMEWORKS if f not in _OFFLOADS_WITHOUT_SHARDS),
    ),
    _duplicate("dp_replicate", "zero dp_replicate", _replicas_are_canonical),
    _duplicate("recompute_layers", f"{_CHUNK} recompute_layers", _recompute_layers_are_canonical),
)
