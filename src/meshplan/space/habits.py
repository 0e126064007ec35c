"""What a search leaves out unless it is asked for: legal plans that nobody would run.

A mixture of experts multiplies every layout by its expert degrees, and whatever fits also fits with
its optimizer in host memory, where the host's speed decides. Three habits keep the product in hand;
pinning the axis (``axes: {etp: [1, 2, 4]}``) lifts each, and ``estimate`` knows none of them. The
search lifts the habit of offloading itself where nothing fits without it.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshplan.space.facts import Facts
from meshplan.space.plan import Framework, Offload
from meshplan.space.rules.predicates import divides, equals
from meshplan.space.rules.rule import Fields, Legal, Rule

__all__ = ["HABITS", "habits_of"]


def _expert_tensor_degree(facts: Facts, plan: Fields) -> Legal:
    """Experts are not split, or split like the rest of the block."""
    return equals(plan.etp, 1) | equals(plan.etp, plan.tp)


def _sequence_parallel(facts: Facts, plan: Fields) -> Legal:
    """Sequence parallelism is on wherever the sequence divides, and always with experts.

    Every tensor-parallel rank would dispatch the same tokens without it, and norms, dropout and
    residuals be whole on each. Of 17 published pairs of runs that differ in it alone (reference 1,
    layouts of Aleph Alpha; reference 2, table 4) 16 are faster with it, by 0 to 13 %.

    References:
        1. Hagemann et al., arXiv:2311.05610, appendix.
        2. Korthikanti et al., arXiv:2205.05198.
    """
    whole = equals(plan.tp, 1) | equals(plan.sp, 1)
    return whole if facts.is_moe else whole | ~divides(plan.cp * plan.tp, facts.seq_len)


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
        source="Hagemann et al., arXiv:2311.05610, appendix: faster with it; "
        "megatron/core/model_parallel_config.py: warns of tp with ep and without sp",
        reads=("tp", "cp", "sp"),
        axis="sp",
        legal=_sequence_parallel,
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
