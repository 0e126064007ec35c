"""Rules by framework: what a plan must obey to run, each with the place that enforces it."""

from __future__ import annotations

from meshplan.space.rules.check import Violation, check_plan, idle_fields
from meshplan.space.rules.registry import RULES, rules_of
from meshplan.space.rules.rule import Rule

__all__ = ["RULES", "Rule", "Violation", "check_plan", "idle_fields", "rules_of"]
