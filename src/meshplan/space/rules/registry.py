"""All rules, by framework, in the order in which they are tried."""

from __future__ import annotations

from functools import lru_cache

from meshplan.space.plan import Framework
from meshplan.space.rules.accelerate import ACCELERATE_RULES
from meshplan.space.rules.common import COMMON_RULES
from meshplan.space.rules.deepspeed import DEEPSPEED_RULES
from meshplan.space.rules.megatron import MEGATRON_RULES
from meshplan.space.rules.nanotron import NANOTRON_RULES
from meshplan.space.rules.rule import Rule
from meshplan.space.rules.torchtitan import TORCHTITAN_RULES

__all__ = ["RULES", "rules_of"]

RULES: tuple[Rule, ...] = (
    *COMMON_RULES,
    *MEGATRON_RULES,
    *TORCHTITAN_RULES,
    *DEEPSPEED_RULES,
    *ACCELERATE_RULES,
    *NANOTRON_RULES,
)


@lru_cache(maxsize=len(Framework))
def rules_of(framework: Framework) -> tuple[Rule, ...]:
    """Rules that hold in a framework, real ones before those that only remove duplicates."""
    own = [rule for rule in RULES if framework in rule.frameworks]
    return tuple(sorted(own, key=lambda rule: rule.duplicate))
