"""Short names for plans, as people write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["batch_text", "degrees_text", "percent", "plan_text", "sharding_text", "step_text"]

Plan = Mapping[str, Any]


def percent(fraction: float, *, digits: int = 1) -> str:
    """Print a fraction in percent."""
    return f"{fraction:.{digits}%}"


def degrees_text(plan: Plan) -> str:
    """Write the degrees that are more than 1, as ``TP4 PP8 VPP2 DP2``; DP always."""
    parts = [
        f"{axis.upper()}{plan[axis]}" for axis in ("tp", "pp", "vpp", "cp", "ep") if plan[axis] > 1
    ]
    if plan["etp"] > 1 and (plan["ep"] > 1 or plan["etp"] != plan["tp"]):
        parts.append(f"ETP{plan['etp']}")
    return " ".join([*parts, f"DP{plan['dp']}"])


# Frameworks that shard by torch's FSDP2, and those without Megatron's sequence parallelism.
_FSDP = ("torchtitan", "accelerate")
_WITHOUT_SP = ("deepspeed", "accelerate")


def sharding_text(plan: Plan) -> str:
    """Write what data parallelism shards in the framework's own word.

    ``ZeRO-1``, ``ZeRO-2``; with parameters ``ZeRO-3`` in DeepSpeed and ``FSDP`` elsewhere, where
    ``FSDP ZeRO-2`` keeps gathered parameters (``reshard_after_forward`` off); ``HSDP 8x4``.
    """
    zero = plan["zero"] if plan["dp_shard"] * plan["cp"] > 1 else 0
    if not zero:
        return "DDP" if plan["dp"] > 1 else ""
    name = f"ZeRO-{zero}"
    groups = f"{plan['dp_shard']}x{plan['dp_replicate']}" if plan["dp_replicate"] > 1 else ""
    if plan["framework"] in _FSDP or (zero == 3 and plan["framework"] != "deepspeed"):
        stage = "" if zero == 3 else name
        return " ".join(part for part in ("HSDP" if groups else "FSDP", groups, stage) if part)
    return f"{name} {groups}".rstrip()


def plan_text(plan: Plan) -> str:
    """Write degrees and sharding: ``TP4 PP8 DP2 ZeRO-1``, with what is unusual."""
    parts = [degrees_text(plan), sharding_text(plan)]
    if plan["tp"] > 1 and not plan["sp"] and plan["framework"] not in _WITHOUT_SP:
        parts.append("no SP")
    if plan["offload"] != "none":
        parts.append(f"offload {plan['offload']}")
    if plan["offload_layers"]:
        parts.append(f"offload {plan['offload_layers']} layers")
    return " ".join(part for part in parts if part)


def batch_text(plan: Plan) -> str:
    """Write the micro-batch and how many there are: ``1 x 64``."""
    return f"{plan['micro_batch']} x {plan['num_micro_batches']}"


def step_text(seconds: float) -> str:
    """Write a step time with four digits, in seconds, so that times compare at a glance."""
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"
