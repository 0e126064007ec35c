"""Families whose blocks are not one mixer and one network, or that share weights."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_attention, read_latent_attention
from meshplan.inputs.load.hf_families_dense import LLAMA, repository, transformers
from meshplan.inputs.load.hf_family import AttentionFacts, Family, Flag, MlpFacts, MoeFacts
from meshplan.inputs.load.hf_ffn import activation, read_mlps, read_moes
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import all_layers
from meshplan.inputs.load.hf_recurrent import read_mamba1, read_mamba2
from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    Layer,
    Mixer,
    Mlp,
    Model,
)

__all__ = ["BLOCKS"]

_BIAS = Flag("attention_bias", False)


def _longcat(keys: Keys, family: Family) -> list[Layer]:
    """Two rounds of attention and network a layer, with experts on a path around the second."""
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    mixer = read_latent_attention(keys, family, 1, hidden)[0]
    mlp = read_mlps(keys, family.mlp, 1, hidden)[0]
    assert family.moe is not None
    moe = read_moes(keys, family.moe, 1)[0]
    moe = replace(moe, num_zero_experts=keys.size("num_zero_experts", zero=True))
    if keys.has("zero_expert_type"):
        kind = keys.text("zero_expert_type")
        if kind != "identity":
            keys.problem(
                "model_value_unsupported", "zero_expert_type", value=kind, allowed=("identity",)
            )
    keys.note("model_blocks_split", f"{num_layers} -> {3 * num_layers}")
    dense = Layer(mixer=mixer, ffn=mlp, num_norms=2)
    experts = Layer(mixer=None, ffn=moe, num_norms=0)
    return [dense, experts, dense] * num_layers


def _zamba_attention(keys: Keys, hidden: int) -> Attention:
    """Attention over the state and the embedding side by side."""
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size_or("num_key_value_heads", heads, "num_attention_heads")
    width = keys.size_or("attention_hidden_size", 2 * hidden, "2 * hidden_size")
    head_dim = keys.size_or("attention_head_dim", width // heads, "attention_hidden_size / heads")
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        window_size=None,
        qkv_bias=False,
        out_bias=False,
        qk_norm="none",
        sinks=False,
        rotary=False,
        input_dim=width,
    )


def _zamba_kinds(keys: Keys, num_layers: int) -> list[bool]:
    """Which layers put the shared block before their state-space mixer."""
    names = keys.names_list("layer_types", num_layers)
    if names is not None:
        unknown = sorted(set(names) - {"hybrid", "mamba", "mamba2", "linear_attention"})
        if unknown:
            keys.problem(
                "model_layer_type_unknown",
                "layers_block_type",
                value=unknown[0],
                allowed=("hybrid", "mamba"),
            )
        return [name == "hybrid" for name in names]
    named = keys.indices("hybrid_layer_ids", num_layers)
    if named is not None:
        return [i in set(named) for i in range(num_layers)]
    every = keys.size("attn_layer_period")
    first = keys.size("attn_layer_offset", zero=True)
    # Zamba 7B starts with two plain layers and one shared block, then counts anew.
    return [i == 2 or (i > 2 and (i - 3) % every == first) for i in range(num_layers)]


def _zamba(keys: Keys, family: Family) -> list[Layer]:
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    state = read_mamba1(keys, hidden)
    mlp = read_mlps(keys, family.mlp, 1, hidden)[0]
    shared = Layer(mixer=_zamba_attention(keys, hidden), ffn=mlp, num_norms=3, weight_set=0)
    return _zamba_blocks(keys, num_layers, hidden, state, [shared], side=0)


def _zamba2(keys: Keys, family: Family) -> list[Layer]:
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    bias = keys.flag("add_bias_linear", False)
    state = read_mamba2(
        keys,
        hidden,
        heads="n_mamba_heads",
        head_dim="mamba_headdim",
        expand="mamba_expand",
        groups="mamba_ngroups",
        chunk="chunk_size",
        conv_bias="use_conv_bias",
        proj_bias="add_bias_linear",
    )
    facts = replace(family.mlp, bias=bias)
    mlp = read_mlps(keys, facts, 1, hidden)[0]
    attention = _zamba_attention(keys, hidden)
    shared = [
        Layer(mixer=attention, ffn=mlp, num_norms=3, weight_set=i)
        for i in range(keys.size("num_mem_blocks"))
    ]
    side = 0
    rank = keys.size("adapter_rank")
    side += rank * (hidden + 2 * mlp.ffn_hidden)
    if keys.flag("use_shared_attention_adapter", False):
        width = attention.num_heads * attention.head_dim
        side += 3 * rank * ((attention.input_dim or hidden) + width)
    return _zamba_blocks(keys, num_layers, hidden, state, shared, side=side)


def _zamba_blocks(
    keys: Keys, num_layers: int, hidden: int, state: Mixer, shared: list[Layer], *, side: int
) -> list[Layer]:
    """Shared blocks take turns; each layer that uses one has a projection of its own."""
    plain = Layer(mixer=state, ffn=None, num_norms=1)
    after = replace(plain, extra_parameters=hidden * hidden + side)
    blocks: list[Layer] = []
    used = 0
    for hybrid in _zamba_kinds(keys, num_layers):
        if hybrid:
            blocks += [shared[used % len(shared)], after]
            used += 1
        else:
            blocks.append(plain)
    keys.note("model_blocks_split", f"{num_layers} -> {len(blocks)}")
    keys.note("model_weights_shared", f"{used} -> {len(shared)}")
    return blocks


def _mllama(keys: Keys, family: Family) -> list[Layer]:
    """Some layers attend to the states of the images instead of the text."""
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    mixers = read_attention(keys, family, num_layers, hidden)
    mlps = read_mlps(keys, family.mlp, num_layers, hidden)
    named = keys.indices("cross_attention_layers", num_layers)
    if named is None:
        keys.missing("cross_attention_layers")
        named = []
    layers = []
    for i in range(num_layers):
        mixer = mixers[i]
        assert isinstance(mixer, Attention)
        if i in named:
            cross = CrossAttention(
                num_heads=mixer.num_heads,
                num_kv_heads=mixer.num_kv_heads,
                head_dim=mixer.head_dim,
                context_dim=hidden,
                qk_norm="head",
                gated=True,
            )
            layers.append(Layer(mixer=cross, ffn=mlps[i], num_norms=2))
        else:
            layers.append(Layer(mixer=mixer, ffn=mlps[i], num_norms=2))
    return layers


def _mllama_rows(keys: Keys, family: Family, model: Model) -> Model:
    """Eight rows of the embedding beyond the vocabulary, for the tokens that stand for images."""
    extra = {**model.extra_parameters, "image_tokens": 8 * model.hidden}
    return replace(model, extra_parameters=extra)


def _openelm(keys: Keys, family: Family) -> list[Layer]:
    """Heads and widths grow from layer to layer."""
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    heads = keys.sizes("num_query_heads", num_layers)
    kv_heads = keys.sizes("num_key_value_heads", num_layers)
    head_dim = keys.size("head_dim")
    divisor = keys.size("ffn_dim_divisor")
    normed = keys.flag("normalize_qk_projections", False)
    gated = keys.flag("ffn_with_glu", True)
    factors = keys.raw("ffn_multipliers")
    factors = factors if isinstance(factors, list) else [factors] * num_layers
    if len(factors) != num_layers or not all(
        isinstance(f, int | float) and not isinstance(f, bool) and 0 < f < 1000 for f in factors
    ):
        keys.problem(
            "model_list_length", "ffn_multipliers", value=len(factors), expected=num_layers
        )
        factors = [1.0] * num_layers
    layers = []
    for i in range(num_layers):
        width = _divisible(factors[i] * hidden, divisor)
        mixer = Attention(
            num_heads=heads[i],
            num_kv_heads=kv_heads[i],
            head_dim=head_dim,
            v_head_dim=head_dim,
            window_size=None,
            qkv_bias=False,
            out_bias=False,
            qk_norm="head" if normed else "none",
            sinks=False,
            rotary=True,
        )
        mlp = Mlp(ffn_hidden=width, gated=gated, bias=False, activation="silu")
        layers.append(Layer(mixer=mixer, ffn=mlp, num_norms=2))
    return layers


def _divisible(width: float, divisor: int) -> int:
    """Round to a multiple, never losing more than a tenth."""
    rounded = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * width else rounded


def _deci(keys: Keys, family: Family) -> list[Layer]:
    """``block_configs`` gives each layer its own attention and network, or none (Nemotron-NAS)."""
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    if not keys.has("block_configs"):
        return _deci_7b(keys, family, num_layers, hidden)
    configs = keys.raw("block_configs")
    if not isinstance(configs, list) or len(configs) != num_layers:
        length = len(configs) if isinstance(configs, list) else 0
        keys.problem("model_list_length", "block_configs", value=length, expected=num_layers)
        return []
    layers = []
    for i, config in enumerate(configs):
        block = Keys(
            {"block": config}, where=f"{keys.where}: block_configs[{i}]", family=keys.family
        )
        block.problems, block.notes = keys.problems, keys.notes
        layers.append(_deci_block(keys, family, block.section("block"), hidden))
    keys.read_all("num_key_value_heads", "intermediate_size")
    return layers


def _deci_block(keys: Keys, family: Family, block: Keys, hidden: int) -> Layer:
    attention, ffn = block.section("attention"), block.section("ffn")
    mixer: Attention | None = None
    mlp: Mlp | None = None
    extra = norms = 0
    heads = keys.size("num_attention_heads")
    if attention.raw("replace_with_linear"):
        extra, norms = extra + hidden * hidden, norms + 1
    elif not attention.raw("no_op"):
        group = attention.size("n_heads_in_group")
        same = replace(family, attention=replace(family.attention, kv_heads="same"))
        whole = read_attention(keys, same, 1, hidden)[0]
        assert isinstance(whole, Attention)
        mixer, norms = replace(whole, num_kv_heads=max(1, heads // group)), norms + 1
    if ffn.raw("replace_with_linear"):
        extra, norms = extra + hidden * hidden, norms + 1
    elif not ffn.raw("no_op"):
        if ffn.has("intermediate_size"):
            width = ffn.size("intermediate_size")
        else:
            width = -(-int(2 * ffn.ratio("ffn_mult") * hidden / 3) // 256) * 256
        mlp = Mlp(ffn_hidden=width, gated=True, bias=False, activation=activation(keys))
        norms += 1
    return Layer(mixer=mixer, ffn=mlp, num_norms=norms, extra_parameters=extra)


def _deci_7b(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Layer]:
    """``num_key_value_heads_per_layer`` (DeciLM 7B)."""
    kv_heads = keys.sizes("num_key_value_heads_per_layer", num_layers)
    same = replace(family, attention=replace(family.attention, kv_heads="same"))
    mixers = read_attention(keys, same, num_layers, hidden)
    mlp = read_mlps(keys, family.mlp, 1, hidden)[0]
    return [
        Layer(
            mixer=replace(m, num_kv_heads=kv_heads[i]) if isinstance(m, Attention) else m,
            ffn=mlp,
            num_norms=2,
        )
        for i, m in enumerate(mixers)
    ]


BLOCKS: dict[str, Family] = {
    "longcat_flash": Family(
        source=transformers("longcat_flash"),
        attention=AttentionFacts(qkv_bias=_BIAS),
        mlp=MlpFacts(width="ffn_hidden_size"),
        moe=MoeFacts(layers=all_layers, router_bias=Flag("router_bias", False)),
        blocks=_longcat,
    ),
    "zamba": Family(source=transformers("zamba"), tied=True, blocks=_zamba),
    "zamba2": Family(
        source=transformers("zamba2"), tied=True, mlp=MlpFacts(multiple=4), blocks=_zamba2
    ),
    "mllama_text_model": Family(source=transformers("mllama"), blocks=_mllama, finish=_mllama_rows),
    "openelm": Family(source=repository("apple/OpenELM-3B"), tied=True, blocks=_openelm),
    "nemotron-nas": replace(
        LLAMA, source=repository("nvidia/Llama-3_3-Nemotron-Super-49B-v1"), blocks=_deci
    ),
    "deci": replace(LLAMA, source=repository("Deci/DeciLM-7B"), blocks=_deci),
}
