"""Which layers have experts, by the keys of each family."""

from __future__ import annotations

from collections.abc import Callable

from meshplan.inputs.load.hf_keys import Keys

__all__ = ["after_dense", "all_layers", "interval", "listed", "periodic_moe", "sparse_step"]

MoeLayers = Callable[[Keys, int], list[bool]]


def all_layers(keys: Keys, num_layers: int) -> list[bool]:
    """Every layer has experts."""
    return [True] * num_layers


def listed(keys: Keys, num_layers: int) -> list[bool] | None:
    """``mlp_layer_types``, a list of ``dense`` and ``sparse``; None where it is missing."""
    types = keys.names_list("mlp_layer_types", num_layers)
    if types is None:
        return None
    unknown = sorted(set(types) - {"dense", "sparse", "moe"})
    if unknown:
        keys.problem(
            "model_layer_type_unknown",
            "mlp_layer_types",
            value=unknown[0],
            allowed=("dense", "sparse"),
        )
    return [kind != "dense" for kind in types]


def after_dense(keys: Keys, num_layers: int) -> list[bool]:
    """The first ``first_k_dense_replace`` layers are dense; then every ``moe_layer_freq``-th."""
    # Some files keep keys of both generations; the list is what the class goes by.
    types = listed(keys, num_layers)
    if types is not None:
        keys.read_all("first_k_dense_replace", "moe_layer_freq")
        return types
    pattern = keys.raw("moe_layer_freq")
    if isinstance(pattern, list):  # one mark per layer
        marks = keys.per_layer("moe_layer_freq", pattern, num_layers, zero=True)
        keys.read_all("first_k_dense_replace")
        return [mark > 0 for mark in marks]
    first = keys.size("first_k_dense_replace", zero=True)
    every = 1 if pattern is None else keys.check_size("moe_layer_freq", pattern)
    return [i >= first and i % every == 0 for i in range(num_layers)]


def sparse_step(keys: Keys, num_layers: int) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer, without those in ``mlp_only_layers`` (Qwen)."""
    types = listed(keys, num_layers)
    if types is not None:
        keys.read_all("decoder_sparse_step", "mlp_only_layers")
        return types
    step = keys.size_default("decoder_sparse_step", 1)
    named = keys.indices("mlp_only_layers", num_layers)
    if named is None:
        keys.note("model_default", f"mlp_only_layers = [] ({keys.family})")
    dense = set(named or ())
    return [i not in dense and (i + 1) % step == 0 for i in range(num_layers)]


def interval(keys: Keys, num_layers: int) -> list[bool]:
    """From ``moe_layer_start_index`` to the end index, every ``moe_layer_interval`` (ERNIE)."""
    types = listed(keys, num_layers)
    if types is not None:
        keys.read_all("moe_layer_start_index", "moe_layer_interval", "moe_layer_end_index")
        return types
    start = keys.size("moe_layer_start_index", zero=True)
    every = keys.size("moe_layer_interval")
    end = keys.raw("moe_layer_end_index")
    last = num_layers - 1
    if end is not None and end != -1:
        last = keys.check_size("moe_layer_end_index", end, zero=True)
    return [start <= i <= last and (i + 1) % every == 0 for i in range(num_layers)]


def periodic_moe(*, period: str, offset: str) -> MoeLayers:
    """Layers at ``offset`` and every ``period`` after it (Jamba)."""

    def read(keys: Keys, num_layers: int) -> list[bool]:
        every = keys.size(period)
        first = keys.size(offset, zero=True)
        return [i % every == first for i in range(num_layers)]

    return read
