"""Gemma 3n and Gemma 4: per-layer embeddings, shared keys, layers of two kinds."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_attention
from meshplan.inputs.load.hf_families_dense import GEMMA3, transformers
from meshplan.inputs.load.hf_family import Family, MoeFacts
from meshplan.inputs.load.hf_ffn import read_mlps, read_moes
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import all_layers
from meshplan.inputs.load.hf_windows import periodic
from meshplan.inputs.model import Attention, Layer, Mixer, Model

__all__ = ["GEMMA"]


def _gemma3n(keys: Keys, family: Family) -> list[Layer]:
    """AltUp, LAuReL and per-layer embeddings stand beside attention and network."""
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    mixers = _shared_late(keys, read_attention(keys, family, num_layers, hidden))
    mlps = read_mlps(keys, family.mlp, num_layers, hidden)
    n, rank = keys.size("altup_num_inputs"), keys.size("laurel_rank")
    width = keys.size("hidden_size_per_layer_input")
    altup = 2 * hidden + n * n + n**3 + n * hidden
    laurel = 2 * rank * hidden + hidden
    per_layer = 2 * width * hidden + hidden
    return [
        Layer(
            mixer=mixers[i],
            ffn=mlps[i],
            num_norms=4,
            extra_parameters=altup + laurel + per_layer,
        )
        for i in range(num_layers)
    ]


def _gemma3n_extra(keys: Keys, family: Family, model: Model) -> Model:
    n = keys.size("altup_num_inputs")
    extra = _per_layer_embeddings(keys, model)
    extra["altup_projections"] = 2 * (n - 1) * model.hidden * model.hidden
    return replace(model, extra_parameters={**model.extra_parameters, **extra})


def _per_layer_embeddings(keys: Keys, model: Model) -> dict[str, int]:
    width = keys.size("hidden_size_per_layer_input", zero=True)
    if not width:
        keys.read_all("vocab_size_per_layer_input")
        return {}
    rows = keys.size("vocab_size_per_layer_input")
    total = width * model.num_layers
    return {
        "per_layer_embeddings": rows * total,
        "per_layer_projection": total * model.hidden + width,
    }


def _shared_late(keys: Keys, mixers: list[Mixer | None]) -> list[Mixer | None]:
    """The last ``num_kv_shared_layers`` use the keys and values of earlier layers."""
    shared = keys.size("num_kv_shared_layers", zero=True)
    first = len(mixers) - shared
    return [
        replace(m, kv_shared=i >= first) if isinstance(m, Attention) else m
        for i, m in enumerate(mixers)
    ]


def _gemma4(keys: Keys, family: Family) -> list[Layer]:
    """Global layers have wider heads and may use keys as values; experts run beside the MLP."""
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    mixers = _gemma4_mixers(keys, family, num_layers, hidden)
    mlp = read_mlps(keys, family.mlp, 1, hidden)[0]
    width = keys.size("hidden_size_per_layer_input", zero=True)
    extra = 2 * width * hidden + hidden if width else 0
    wide = keys.flag("use_double_wide_mlp", False)
    moe = None
    if keys.flag("enable_moe_block", False):
        moe = read_moes(keys, MoeFacts(layers=all_layers), 1)[0]
        moe = replace(moe, shared_ffn_hidden=mlp.ffn_hidden)
        extra += hidden + moe.num_experts  # scales of the router and of each expert
    layers = []
    for mixer in mixers:
        doubled = wide and isinstance(mixer, Attention) and mixer.kv_shared
        own = replace(mlp, ffn_hidden=2 * mlp.ffn_hidden) if doubled else mlp
        layers.append(
            Layer(
                mixer=mixer,
                ffn=moe or own,
                num_norms=7 if moe else 4,
                extra_parameters=extra,
            )
        )
    return layers


def _gemma4_mixers(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    mixers = _shared_late(keys, read_attention(keys, family, num_layers, hidden))
    equal = keys.flag("attention_k_eq_v", False)
    overrides = keys.raw("per_layer_config")
    result: list[Mixer | None] = []
    for i, mixer in enumerate(mixers):
        assert isinstance(mixer, Attention)
        if mixer.window_size is None:
            head_dim, kv_heads = _global_heads(keys, overrides, i, equal=equal)
            mixer = replace(
                mixer,
                head_dim=head_dim,
                v_head_dim=head_dim,
                num_kv_heads=kv_heads or mixer.num_kv_heads,
                values_are_keys=equal,
            )
        result.append(mixer)
    return result


def _global_heads(
    keys: Keys, overrides: object, layer: int, *, equal: bool
) -> tuple[int, int | None]:
    """Width of a head, and key-value heads where they differ, in a layer that sees all."""
    if isinstance(overrides, dict):
        named = overrides.get(str(layer), overrides.get(f"{layer:02d}"))
        if not isinstance(named, dict):  # no override: the layer is like the others
            keys.note("model_default", f"per_layer_config.{layer} = {{}} ({keys.family})")
            named = {}
        own = Keys(named, where=f"{keys.where}: per_layer_config: {layer}", family=keys.family)
        own.problems = keys.problems
        width = own.size_or_none("head_dim")
        if width is None:
            width = keys.size("head_dim")
            keys.note("model_derived", f"per_layer_config.{layer}.head_dim = {width} (head_dim)")
        return width, own.size_or_none("num_key_value_heads")
    kv_heads = keys.size_or_none("num_global_key_value_heads") if equal else None
    if equal and kv_heads is None:
        keys.note("model_default", f"num_global_key_value_heads = null ({keys.family})")
    return keys.size("global_head_dim"), kv_heads


def _gemma4_extra(keys: Keys, family: Family, model: Model) -> Model:
    extra = {**model.extra_parameters, **_per_layer_embeddings(keys, model)}
    return replace(model, extra_parameters=extra)


GEMMA: dict[str, Family] = {
    "gemma3n_text": replace(
        GEMMA3,
        source=transformers("gemma3n"),
        attention=replace(GEMMA3.attention, windows=periodic(default=5)),
        blocks=_gemma3n,
        finish=_gemma3n_extra,
    ),
    "gemma4_text": replace(
        GEMMA3, source=transformers("gemma4"), blocks=_gemma4, finish=_gemma4_extra
    ),
}
