"""Hybrid models of Megatron-LM: a pattern of layers in place of a number of equal ones.

Megatron-LM counts a mixer and a feed-forward network as a layer each, so that a block that has both
is two letters; stages stand between bars.

References:
    1. ``megatron/core/models/hybrid/hybrid_layer_allocation.py`` of megatron-core 0.19.2: letters,
       bars, and what follows a slash.
    2. ``megatron/core/ssm/mamba_mixer.py``: what of a Mamba layer can be set.
"""

from __future__ import annotations

from itertools import islice

from meshplan.emit.records import Flag, Obstacle, once
from meshplan.emit.stages import virtual_stages
from meshplan.inputs.model import (
    Attention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    Mlp,
    Model,
    Moe,
    StateSpace,
)
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Plan

__all__ = [
    "hybrid_obstacles",
    "is_hybrid",
    "layers_per_block",
    "letters_of",
    "mixer_flags",
    "pattern",
    "unused_attention_flags",
]

_LETTERS: dict[type, str] = {
    StateSpace: "M",
    LinearAttention: "G",
    Attention: "*",
    LatentAttention: "+",
    Mlp: "-",
    Moe: "E",
}
_SPEC = ("--spec", "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
# Width of the convolution, which no flag reaches (reference 2).
_KERNEL = 4


def is_hybrid(model: Model) -> bool:
    """Whether the layers are not all attention followed by a feed-forward network."""
    return any(
        layer.ffn is None or not isinstance(layer.mixer, Attention | LatentAttention)
        for layer in model.layer_kinds
    )


def letters_of(layer: Layer) -> str:
    """Letters of a block: its mixer, its feed-forward network, or one after the other."""
    parts = (layer.mixer, layer.ffn)
    return "".join(_LETTERS.get(type(part), "?") for part in parts if part is not None)


def hybrid_obstacles(model: Model) -> tuple[Obstacle, ...]:
    """What of the mixers and blocks no letter and no flag stands for."""
    found: list[Obstacle] = []
    kinds = (*model.layer_kinds, *model.mtp_layers)
    mixers = {layer.mixer for layer in kinds if layer.mixer is not None}
    if not all(_known(mixer) for mixer in mixers):
        found.append(Obstacle(code="mixer", model=True))
    types = [type(mixer) for mixer in mixers]
    letters = {_LETTERS.get(kind, "?") for kind in types}
    if len(types) > len(set(types)) or {"*", "+"} <= letters:
        found.append(Obstacle(code="mixed_attention", model=True))
    for layer in kinds:
        if layer.second_mixer or layer.weight_set is not None or layer.extra_parameters:
            found.append(Obstacle(code="mixer", model=True))
        if layer.num_norms != len(letters_of(layer)):
            numbers: dict[str, object] = {"num_norms": layer.num_norms}
            found.append(Obstacle(code="norms", numbers=numbers, model=True))
    networks = [layer.ffn for layer in model.layer_kinds if layer.ffn is not None]
    for kind in (Mlp, Moe):
        if len({ffn for ffn in networks if isinstance(ffn, kind)}) > 1:
            found.append(Obstacle(code="mixed_layers", model=True))
    if len(set(model.mtp_layers)) > 1:
        found.append(Obstacle(code="mixed_layers", model=True))
    return once(found)


def _known(mixer: Mixer) -> bool:
    match mixer:
        case StateSpace():
            return (
                mixer.version == 2
                and (mixer.conv_kernel, mixer.conv_bias) == (_KERNEL, True)
                and not mixer.proj_bias
                and mixer.inner_norms == mixer.inner_dim
            )
        case LinearAttention():
            return mixer.rule == "gated_delta"
        case Attention() | LatentAttention():
            return True
        case _:
            return False


def pattern(scenario: Scenario, plan: Plan) -> str:
    """The layers of each virtual stage, such as ``M-M*|-M-E``, and what predicts further tokens."""
    layers = iter(scenario.model.layers)
    stages = (
        "".join(letters_of(layer) for layer in islice(layers, chunk.num_layers))
        for chunk in virtual_stages(scenario, plan)
    )
    further = (letters_of(layer) for layer in scenario.model.mtp_layers)
    return "/".join(["|".join(stages), *further])


def layers_per_block(model: Model) -> int | None:
    """How many of Megatron-LM's layers a block is; None where that differs."""
    counts = {len(letters_of(layer)) for layer in model.layers}
    return counts.pop() if len(counts) == 1 else None


def mixer_flags(model: Model) -> list[Flag]:
    """Flags of the mixers that are no attention, and of the specification that has them."""
    flags: list[Flag] = [_SPEC]
    mixers = {type(layer.mixer): layer.mixer for layer in model.layer_kinds}
    state, linear = mixers.get(StateSpace), mixers.get(LinearAttention)
    if isinstance(state, StateSpace):
        flags += [
            ("--mamba-num-heads", str(state.num_heads)),
            ("--mamba-head-dim", str(state.inner_dim // state.num_heads)),
            ("--mamba-state-dim", str(state.state_dim)),
            ("--mamba-num-groups", str(state.num_groups)),
        ]
    if isinstance(linear, LinearAttention):
        flags += [
            ("--linear-num-key-heads", str(linear.num_key_heads)),
            ("--linear-key-head-dim", str(linear.key_head_dim)),
            ("--linear-num-value-heads", str(linear.num_value_heads)),
            ("--linear-value-head-dim", str(linear.value_head_dim)),
            ("--linear-conv-kernel-dim", str(linear.conv_kernel)),
        ]
    return flags


def unused_attention_flags(model: Model) -> list[Flag]:
    """Heads that every tensor-parallel degree of the other mixers divides.

    Megatron-LM asks for a number of heads where no layer has attention, and holds the degree
    against it.
    """
    for layer in model.layers:
        match layer.mixer:
            case StateSpace() as mixer:
                heads, width = mixer.num_heads, mixer.inner_dim // mixer.num_heads
            case LinearAttention() as linear:
                heads, width = linear.num_key_heads, linear.key_head_dim
            case _:
                continue
        return [("--num-attention-heads", str(heads)), ("--kv-channels", str(width))]
    raise AssertionError("a model mixes tokens")
