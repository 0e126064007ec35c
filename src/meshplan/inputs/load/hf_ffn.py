"""Read the feed-forward network of every layer."""

from __future__ import annotations

from meshplan.inputs.load.hf_activations import default_activation
from meshplan.inputs.load.hf_family import Family, MlpFacts, MoeFacts, flag
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.model import Ffn, Mlp, Moe

__all__ = ["activation", "has_experts", "read_ffns", "read_mlps", "read_moes"]

_ABOUT_EXPERTS = (
    "num_experts_per_tok",
    "moe_intermediate_size",
    "expert_layer_period",
    "num_shared_experts",
)
# Activations that imply two branches in every family that uses them.
_GATED = {"silu", "swish", "swiglu", "geglu", "reglu", "glu"}


def read_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """Read dense networks, and mixtures where the family has them."""
    moe = family.moe
    if moe is None or (moe.optional and not has_experts(keys)):
        return list(read_mlps(keys, family.mlp, num_layers, hidden))
    sparse = moe.layers(keys, num_layers)
    mixtures = read_moes(keys, moe, num_layers) if any(sparse) else None
    if mixtures is None:  # a model cut down to its dense layers keeps the keys of its experts
        keys.read_all(*(key for key in keys.data if "expert" in key or "moe" in key))
    dense = read_mlps(keys, family.mlp, num_layers, hidden) if not all(sparse) else None
    if dense is None:
        keys.read_all(*keys.names("intermediate_size"))
    layers: list[Ffn | None] = []
    for i, routed in enumerate(sparse):
        layers.append(mixtures[i] if mixtures and routed else dense[i] if dense else None)
    return layers


def has_experts(keys: Keys) -> bool:
    """Whether the file names more than one expert.

    A file that says how experts are used, but not how many there are, has lost a key.
    """
    value = keys.raw("num_experts")
    if value is None and any(keys.raw(key) for key in _ABOUT_EXPERTS):
        keys.missing("num_experts")
    return isinstance(value, list) or (value is not None and value not in (0, 1))


def read_mlps(keys: Keys, facts: MlpFacts, num_layers: int, hidden: int) -> list[Mlp]:
    """Read one dense network per layer."""
    act = activation(keys)
    gated = facts.gated
    if gated is None:
        gated = act in _GATED
        if not gated:
            keys.problem("model_gating_unknown", "hidden_act", value=act or None)
    bias = flag(keys, facts.bias)
    if facts.multiple and not keys.has(facts.width):
        width = facts.multiple * hidden
        keys.note("model_derived", f"{facts.width} = {width} ({facts.multiple} * hidden_size)")
        widths = [width] * num_layers
    else:
        widths = keys.sizes(facts.width, num_layers)
    made = {
        width: Mlp(ffn_hidden=width, gated=gated, bias=bias, activation=act)
        for width in dict.fromkeys(widths)
    }
    return [made[width] for width in widths]


def read_moes(keys: Keys, facts: MoeFacts, num_layers: int) -> list[Moe]:
    """Read one mixture of experts per layer (of those that have one)."""
    experts = keys.sizes("num_experts", num_layers)
    top_k = keys.sizes("num_experts_per_tok", num_layers)
    widths = keys.sizes(facts.width, num_layers)
    shared = _shared_widths(keys, facts, widths)
    router_bias = flag(keys, facts.router_bias)
    shared_bias = flag(keys, facts.shared_bias)
    act = activation(keys)
    for k, e in dict.fromkeys(zip(top_k, experts, strict=True)):
        if not keys.problems and k > e:
            keys.problem("model_top_k_too_large", "num_experts_per_tok", value=k, experts=e)
    groups, top_groups = _route_groups(keys)
    made: dict[tuple[int, int, int, int], Moe] = {}
    layers = []
    for key in zip(experts, top_k, widths, shared, strict=True):
        if key not in made:
            made[key] = Moe(
                num_experts=key[0],
                top_k=key[1],
                expert_ffn_hidden=key[2],
                gated=facts.gated,
                bias=facts.bias,
                activation=act,
                shared_ffn_hidden=key[3],
                shared_gate=facts.shared_gate and key[3] > 0,
                router_bias=router_bias,
                shared_bias=shared_bias and key[3] > 0,
                num_groups=groups,
                top_groups=top_groups,
                clamped=facts.clamped,
            )
        layers.append(made[key])
    return layers


def _route_groups(keys: Keys) -> tuple[int, int]:
    """Groups of experts, and how many of them a token chooses from; one where nothing is said."""
    names = ("n_group", "topk_group")
    missing = [name for name in names if keys.data.get(name) is None]
    if missing:
        if len(missing) < len(names):
            keys.note("model_unstated", missing[0])
        return 1, 1
    said = tuple(keys.data[name] for name in names)
    groups, chosen = (value if type(value) is int and value > 0 else 1 for value in said)
    return (groups, chosen) if chosen < groups else (1, 1)


def _shared_widths(keys: Keys, facts: MoeFacts, widths: list[int]) -> list[int]:
    if facts.shared == "none":
        return [0] * len(widths)
    if facts.shared == "width":
        return keys.sizes("shared_expert_intermediate_size", len(widths), zero=True)
    names = keys.names("num_shared_experts")
    if not keys.has("num_shared_experts") and any(name in keys.data for name in names):
        keys.read_all(*names)
        return [0] * len(widths)  # null stands for none
    counts = keys.sizes("num_shared_experts", len(widths), zero=True)
    return [count * width for count, width in zip(counts, widths, strict=True)]


def activation(keys: Keys) -> str:
    """Name of the non-linearity, from whichever key holds it, or else the family's default.

    Empty, with a note, where neither the file nor the family names one.
    """
    for key in (
        "hidden_activation",
        "hidden_act",
        "activation_function",
        "mlp_hidden_act",
        "activation",
    ):
        value = keys.data.get(key)
        if isinstance(value, str):
            return value.lower()
        if value is not None:
            keys.problem("model_key_not_name", key, value=value)
    default = default_activation(keys.family)
    if default is None:
        keys.note("model_unstated", "hidden_act")
        return ""
    keys.note("model_default", f"{default[0]} = {default[1]} ({keys.family})")
    return default[1]
