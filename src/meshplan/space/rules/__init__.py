"""Rules by framework: what a plan must obey to run, each with the place that enforces it."""

from __future__ import annotations

from functools import lru_cache

from meshplan.space.plan import Framework
from meshplan.space.rules.common import COMMON_RULES
from meshplan.space.rules.megatron import MEGATRON_RULES
from meshplan.space.rules.rule import Rule

__all__ = ["RULES", "Rule", "rules_of"]

RULES: tuple[Rule, ...] = COMMON_RULES + MEGATRON_RULES


@lru_cache(maxsize=len(Framework))
def rules_of(framework: Framework) -> tuple[Rule, ...]:
    """Rules that hold in a framework, in the order in which they are tried."""
    return tuple(rule for rule in RULES if framework in rule.frameworks)
