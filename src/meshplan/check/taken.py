"""What a framework takes of a file without a word, and means something else or nothing by it."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.scenario import Scenario
from meshplan.space.facts import facts_of
from meshplan.space.plan import Framework, Plan, Recompute
from meshplan.space.rules import idle_fields

__all__ = ["as_taken"]

# Modules that a model may lack: a layer looks at them where it has them
# (megatron/core/transformer/transformer_layer.py, moe/moe_layer.py).
_OPTIONAL = {Recompute.MOE: "moe", Recompute.SHARED_EXPERTS: "shared_experts"}


def _idle_modules(scenario: Scenario, plan: Plan) -> Recompute:
    """Modules whose recompute Megatron-LM takes where no layer has them."""
    facts = facts_of(scenario)
    has = {Recompute.MOE: facts.is_moe, Recompute.SHARED_EXPERTS: facts.shared_ffn_hidden > 0}
    idle = Recompute.NONE
    if plan.framework is Framework.MEGATRON and not plan.recompute & Recompute.FULL:
        for module in _OPTIONAL:
            if plan.recompute & module and not has[module]:
                idle |= module
    return idle


def _shards_without_zero(scenario: Scenario, plan: Plan) -> bool:
    """Whether DeepSpeed's optimizer of bf16 shards its states though ZeRO is off.

    It does where gradients are accumulated in 32 bits, which a pipeline always does
    (deepspeed/runtime/engine.py: ``_do_optimizer_sanity_check``, bf16_optimizer.py).
    """
    mixed = plan.framework is Framework.DEEPSPEED and scenario.job.precision == "bf16"
    return mixed and plan.pp > 1 and plan.zero == 0 and plan.dp_shard * plan.cp > 1


def as_taken(scenario: Scenario, plan: Plan) -> tuple[Plan, tuple[str, ...]]:
    """Say a plan as its framework runs it.

    Recompute of more layers than a stage has is that of all of them
    (megatron/core/transformer/transformer_block.py), and of a module that no layer has is none.

    Returns:
        The plan, and the names of what is without effect.
    """
    if _shards_without_zero(scenario, plan):
        plan = replace(plan, zero=1)
    idle = _idle_modules(scenario, plan)
    plan = replace(plan, recompute=plan.recompute & ~idle)
    if "recompute_layers" in idle_fields(scenario, plan):
        plan = replace(plan, recompute_layers=0)
    return plan, tuple(name for module, name in _OPTIONAL.items() if module & idle)
