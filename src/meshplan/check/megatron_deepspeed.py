"""Megatron-DeepSpeed: what its scripts mean by options that Megatron-LM does not have.

References:
    1. ``megatron/arguments.py`` and ``megatron/model/gpt_model.py`` of Megatron-DeepSpeed
       (``--pp-partition-method`` is that of BigScience's fork).
    2. ``deepspeed/runtime/pipe/module.py``: layers of a kind are dealt as evenly as they go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshplan.check.options import Option
from meshplan.check.records import Reading, Setting
from meshplan.space.plan import CpComm, Framework, Split

__all__ = ["in_deepspeed"]

# What the fork takes where an option is left out (reference 1).
_EXPERT_INTERVAL, _TOP_K = 2, 1


def in_deepspeed(reading: Reading, present: Mapping[str, Option]) -> Reading:
    """Say the options of a Megatron-DeepSpeed script in the words of DeepSpeed's plans."""
    settings, model, uncounted = dict(reading.settings), dict(reading.model), reading.uncounted
    there = next(iter(settings.values())).where.rsplit(":", 1)[0]
    unwritten = Setting(value=None, where=there, spelled="-")
    if settings.pop("sp", unwritten).value is True:
        uncounted = (*uncounted, "--sequence-parallel")
    if "cp" in settings:
        settings["cp_comm"] = replace(settings["cp"], value=CpComm.ALL_TO_ALL)
    stages, layers = settings.get("pp"), model.get("num_layers")
    if stages is not None and layers is not None:
        method = present.get("pp-partition-method")
        counted = method is not None and "embedding" in method.value
        if counted or int(str(layers.value)) % int(str(stages.value)):
            settings["split"] = replace(stages, value=Split.BALANCED)
    experts = model.get("num_experts")
    if experts is not None and experts.value != 1:
        model.setdefault("top_k", replace(unwritten, value=_TOP_K))
        interval = present.get("expert-interval")
        value = interval.value if interval is not None else str(_EXPERT_INTERVAL)
        model.setdefault("moe_layers", replace(unwritten, value=value))
    return replace(
        reading,
        framework=Framework.DEEPSPEED,
        settings=settings,
        model=model,
        uncounted=uncounted,
    )
