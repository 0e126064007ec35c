"""Which layers attend and which carry a state, by the keys of each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from meshplan.inputs.load.hf_keys import Keys

__all__ = ["Kind", "at_indices", "by_interval", "by_period", "kinds"]

Kind = Literal["attention", "state"]

_ATTENTION = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
_STATE = {
    "linear_attention",
    "mamba",
    "mamba2",
    "conv",
    "short_conv",
    "recurrent",
    "lightning_attention",
    "hybrid_mamba",
}


# Keys of the families' own rules, without a say where ``layer_types`` lists the layers.
_OTHER_WAYS = (
    "full_attention_interval",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_layer_offset",
    "attn_type_list",
    "full_attn_idxs",
    "block_types",
    "_block_types",
)


def kinds(
    keys: Keys,
    num_layers: int,
    rule: Callable[[Keys, int], list[Kind] | None],
) -> list[Kind]:
    """Kinds by ``layer_types`` where the file has them, else by the family's own keys."""
    types = keys.names_list("layer_types", num_layers)
    if types is None:
        found = rule(keys, num_layers)
        if found is None:
            keys.missing("layer_types")
            return ["attention"] * num_layers
        return found
    keys.read_all(*_OTHER_WAYS)
    result: list[Kind] = []
    for kind in types:
        if kind in _ATTENTION:
            result.append("attention")
        elif kind in _STATE:
            result.append("state")
        else:
            keys.problem(
                "model_layer_type_unknown",
                "layer_types",
                value=kind,
                allowed=tuple(sorted(_ATTENTION | _STATE)),
            )
            return ["attention"] * num_layers
    return result


def by_period(*, period: str, offset: str) -> Callable[[Keys, int], list[Kind] | None]:
    """Attention at ``offset`` and every ``period`` after it (Jamba)."""

    def read(keys: Keys, num_layers: int) -> list[Kind] | None:
        every, first = keys.size(period), keys.size(offset, zero=True)
        return ["attention" if i % every == first else "state" for i in range(num_layers)]

    return read


def by_interval(key: str, default: int | None = None) -> Callable[[Keys, int], list[Kind] | None]:
    """Attention in every so-manyth layer (Qwen3-Next)."""

    def read(keys: Keys, num_layers: int) -> list[Kind] | None:
        every = keys.size(key) if default is None else keys.size_default(key, default)
        return ["state" if (i + 1) % every else "attention" for i in range(num_layers)]

    return read


def at_indices(
    key: str, *, missing: Kind | None = None
) -> Callable[[Keys, int], list[Kind] | None]:
    """Attention in the layers that a list names; ``missing`` is what null or absence means."""

    def read(keys: Keys, num_layers: int) -> list[Kind] | None:
        named = keys.indices(key, num_layers)
        if named is None:
            if missing is None or key not in keys.data:
                keys.missing(key)
            return [missing or "attention"] * num_layers
        return ["attention" if i in set(named) else "state" for i in range(num_layers)]

    return read
