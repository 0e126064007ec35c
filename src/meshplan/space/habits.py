"""What a search leaves out unless it is asked for: legal plans that nobody would run.

A mixture of experts multiplies every layout by its expert degrees, and whatever fits also fits with
its optimizer in host memory, where the host's speed decides. Three habits keep the product in hand;
pinning the axis (``axes: {etp: [1, 2, 4]}``) lifts each, and ``estimate`` knows none of them. The
search lifts the habit of offloading itself where nothing fits without it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshplan.space.facts import Facts
from meshplan.space.plan import Framework, Offload
from meshplan.space.rules.predicates import equals
from meshplan.space.rules.rule import Fields, Legal, Rule

__all__ = ["HABITS", "habits_of"]


def _expert_tensor_degree(facts: Facts, plan: Fields) -> Legal:
    """Experts are not split, or split like the rest of the block."""
    return equals(plan.etp, 1) | equals(plan.etp, plan.tp)


def _sequence_parallel_experts(facts: Facts, plan: Fields) -> Legal:
    """Without sequence parallelism every tensor-parallel rank would dispatch the same tokens."""
    return equals(plan.tp, 1) | equals(plan.sp, 1) | np.bool_(not facts.is_moe)


def _nothing_offloaded(facts: Facts, plan: Fields) -> Legal:
    """What fits in device memory stays there."""
    return equals(plan.offload, int(Offload.NONE))


HABITS: tuple[Rule, ...] = (
    Rule(
        code="uncommon_expert_degree",
        frameworks=(Framework.MEGATRON,),
        version="0.20.0 dev",
        source="megatron/core/parallel_state.py: expert_tensor_parallel_size defaults to tp",
        reads=("tp", "etp"),
        axis="etp",
        legal=_expert_tensor_degree,
        duplicate=True,
    ),
    Rule(
        code="uncommon_without_sp",
        frameworks=(Framework.MEGATRON,),
        version="0.20.0 dev",
        source="megatron/core/model_parallel_config.py: warns of tp with ep and without sp",
        reads=("tp", "sp"),
        axis="sp",
        legal=_sequence_parallel_experts,
        duplicate=True,
    ),
    Rule(
        code="uncommon_offload",
        frameworks=tuple(Framework),
        version="all",
        source="S. Rajbhandari et al., ZeRO-Infinity, SC21: for what device memory cannot hold",
        reads=("offload",),
        axis="offload",
        legal=_nothing_offloaded,
        duplicate=True,
    ),
)
"""Tried after the rules; a habit counts as a rule in what was refused."""


def habits_of(framework: Framework, pinned: Mapping[str, tuple[object, ...]]) -> tuple[Rule, ...]:
    """Habits of a search in one framework, without those on axes that the user pins."""
    return tuple(
        habit for habit in HABITS if framework in habit.frameworks and habit.axis not in pinned
    )
