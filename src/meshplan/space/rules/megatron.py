"""Rules of Megatron-LM (core 0.20.0 at d98e8a64; 0.19.2 was run for those that a parser hits)."""

from __future__ import annotations

from meshplan.space.facts import Facts
from meshplan.space.plan import Framework, Recompute, Schedule
from meshplan.space.rules import predicates
from meshplan.space.rules.predicates import divides, equals, is_one_of
from meshplan.space.rules.rule import Fields, Legal, Predicate, Rule

__all__ = ["MEGATRON_RULES"]

_CORE = "megatron/core"
_ARGUMENTS = "megatron/training/arguments.py"
_CONFIG = f"{_CORE}/transformer/transformer_config.py"


def _rule(
    code: str, axis: str, reads: tuple[str, ...], legal: Predicate, source: str, *numbers: str
) -> Rule:
    return Rule(
        code=code,
        frameworks=(Framework.MEGATRON,),
        version="Megatron-LM core 0.20.0 (d98e8a64)",
        source=source,
        reads=reads,
        axis=axis,
        legal=legal,
        numbers=numbers,
    )


def _schedule_exists(facts: Facts, plan: Fields) -> Legal:
    return is_one_of(plan.schedule, (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED))


def _interleaving_fills_rounds(facts: Facts, plan: Fields) -> Legal:
    """Micro-batches come in groups of ``pp`` (``microbatch_group_size_per_vp_stage``)."""
    return equals(plan.vpp, 1) | divides(plan.pp, plan.num_micro_batches)


def _sp_needs_tp(facts: Facts, plan: Fields) -> Legal:
    return (plan.tp > 1) | equals(plan.sp, 0)


def _sp_splits_sequence(facts: Facts, plan: Fields) -> Legal:
    return equals(plan.sp, 0) | divides(plan.cp * plan.tp, facts.seq_len)


def _recompute_exists(facts: Facts, plan: Fields) -> Legal:
    """Modules that the model has; full recompute alone; ``SELECTIVE_OP`` is torchtitan's."""
    modules = Recompute.CORE_ATTENTION | Recompute.NORM | Recompute.MLP
    if facts.is_moe:
        modules |= Recompute.MOE | Recompute.MLP_ACTIVATION
    if facts.shared_ffn_hidden:
        modules |= Recompute.SHARED_EXPERTS
    if facts.has_latent_attention:
        modules |= Recompute.MLA_UP_PROJECTION
    full = equals(plan.recompute, int(Recompute.FULL))
    return full | equals(plan.recompute & ~int(modules), 0)


MEGATRON_RULES = (
    _rule(
        "tp_divides_heads",
        "tp",
        ("tp",),
        predicates.tp_divides_heads,
        f"{_CONFIG}:1446",
        "num_heads",
    ),
    _rule(
        "tp_shares_kv_heads",
        "tp",
        ("tp",),
        predicates.tp_shares_kv_heads,
        f"{_CONFIG}:1462",
        "num_kv_heads",
    ),
    _rule(
        "tp_divides_ffn",
        "tp",
        ("tp",),
        predicates.tp_divides_ffn,
        f"{_CORE}/tensor_parallel/layers.py:1038 (model build)",
        "ffn_hidden",
        "shared_ffn_hidden",
    ),
    _rule(
        "ring_splits_sequence",
        "cp",
        ("cp",),
        predicates.ring_splits_sequence,
        f"{_ARGUMENTS}:1335",
        "seq_len",
    ),
    _rule(
        "schedule_exists",
        "schedule",
        ("schedule",),
        _schedule_exists,
        f"{_CORE}/pipeline_parallel/schedules.py",
    ),
    _rule(
        "interleaving_fills_rounds",
        "vpp",
        ("pp", "vpp", "num_micro_batches"),
        _interleaving_fills_rounds,
        f"{_CORE}/pipeline_parallel/schedules.py:1160",
    ),
    _rule("sp_needs_tp", "sp", ("tp", "sp"), _sp_needs_tp, f"{_CORE}/model_parallel_config.py:504"),
    _rule(
        "sp_splits_sequence",
        "tp",
        ("tp", "cp", "sp"),
        _sp_splits_sequence,
        f"{_CORE}/tensor_parallel/mappings.py:72 (run time)",
        "seq_len",
    ),
    _rule("recompute_exists", "recompute", ("recompute",), _recompute_exists, f"{_CONFIG}:1943"),
)
