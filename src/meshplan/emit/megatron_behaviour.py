"""What times count on beyond the plan, as flags of Megatron-LM.

These are number formats, dispatchers of tokens and overlap.

A variant and its settings change what a profile says of the framework
(``inputs/presets/profiles.yaml``). Whatever it says is written here, refused, or named as not
written, so that the files run what was predicted.

References:
    1. ``megatron/training/arguments.py`` and ``megatron/core/transformer/transformer_config.py`` of
       megatron-core 0.19.2.
"""

from __future__ import annotations

from meshplan.emit.records import Flag
from meshplan.inputs.load.profile import framework_profile
from meshplan.inputs.profile import FrameworkProfile
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.space.plan import Plan

__all__ = [
    "behaviour",
    "dispatcher",
    "narrow_gradients",
    "overlap_flags",
    "overlaps_tensor",
    "recipe_of_fp8",
    "unwritten",
]

_NODE = 8
"""GPUs that DeepEP joins by NVLink; larger domains are HybridEP's."""


def behaviour(scenario: Scenario) -> FrameworkProfile:
    """What times count on."""
    return framework_profile("megatron", scenario.variant)


def narrow_gradients(scenario: Scenario) -> bool:
    """Whether gradients are accumulated and reduced in 16 bits."""
    return behaviour(scenario).gradient_bytes == 2


def recipe_of_fp8(scenario: Scenario) -> str:
    """How scales of 8-bit tensors are found."""
    profile = behaviour(scenario)
    if profile.block_scaling:
        return "blockwise"
    return "tensorwise" if profile.current_scaling else "delayed"


def dispatcher(scenario: Scenario, plan: Plan) -> tuple[str, str]:
    """How tokens reach their experts, and the library that does it where that is asked for."""
    if plan.ep == 1 or not behaviour(scenario).deduplicated_dispatch:
        return "alltoall", ""
    wide = scenario.cluster.tiers[0].num_gpus > _NODE
    return "flex", "hybridep" if wide else "deepep"


def overlaps_tensor(scenario: Scenario, plan: Plan) -> bool:
    """Whether tensor-parallel traffic runs beside products: there is some, in shared memory."""
    inside = 1 < plan.tp <= scenario.cluster.joined_gpus
    return inside and behaviour(scenario).overlap_tensor > 0


def overlap_flags(scenario: Scenario, plan: Plan) -> list[Flag]:
    """Traffic that runs beside work."""
    profile = behaviour(scenario)
    flags: list[Flag] = []
    if plan.dp * plan.cp > 1 and profile.overlap_gradients > 0:
        flags.append(("--overlap-grad-reduce",))
        if plan.zero >= 1 and profile.overlap_parameters > 0:
            flags.append(("--overlap-param-gather",))
    named = "tp-overlap" in split_variant(scenario.variant)[1]
    if overlaps_tensor(scenario, plan) and plan.sp and not named:
        # of a stack that has it on; a setting of that name is written whatever the plan
        flags.append(("--tp-comm-overlap",))
    return flags


def unwritten(scenario: Scenario, plan: Plan) -> tuple[str, ...]:
    """What is counted on, no setting asks for by name, and no flag of these can say."""
    profile = behaviour(scenario)
    found = []
    if profile.fused_loss:
        # "disabled due to stability issues" (arguments.py:1642)
        found.append("fused_loss")
    if overlaps_tensor(scenario, plan) and not plan.sp:
        found.append("tensor_overlap")
    return tuple(found)
