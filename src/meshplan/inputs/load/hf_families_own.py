"""Families with keys or rules of their own."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_attention
from meshplan.inputs.load.hf_families_dense import GPT2, LLAMA, QWEN3, repository, transformers
from meshplan.inputs.load.hf_family import (
    AttentionFacts,
    Family,
    Flag,
    MlpFacts,
    MoeFacts,
    Positions,
)
from meshplan.inputs.load.hf_ffn import read_mlps, read_moes
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import after_dense, all_layers
from meshplan.inputs.load.hf_recurrent import read_mamba2
from meshplan.inputs.load.hf_windows import by_attention_types, periodic
from meshplan.inputs.model import Attention, Ffn, Layer, Mixer, Mlp, Model

__all__ = ["OWN"]

_BIAS = Flag("attention_bias", False)
_MLP_BIAS = Flag("mlp_bias", False)


def _falcon(keys: Keys, family: Family) -> Family:
    """Three generations: one key-value head, one per query head, or grouped.

    ``num_kv_heads`` counts only with ``new_decoder_architecture``; ``multi_query`` only without.
    """
    if keys.family.startswith("RefinedWeb"):
        new = keys.has("num_key_value_heads")
    else:
        new = keys.flag("new_decoder_architecture")
    bias = keys.flag("bias", False)
    parallel = new or keys.flag("parallel_attn", True)
    attention = replace(
        family.attention, qkv_bias=bias, out_bias=bias, rotary=not keys.flag("alibi", False)
    )
    norms = 2
    if parallel:
        norms = keys.size_or_none("num_ln_in_parallel_attn") or (2 if new else 1)
    if new:
        keys.read_all("multi_query", "parallel_attn")
    else:
        given = keys.raw("num_key_value_heads")
        if keys.flag("multi_query"):
            attention = replace(attention, kv_heads="single")
            heads = 1
        else:
            attention = replace(attention, kv_heads="same")
            heads = keys.size("num_attention_heads")
        if given is not None and given != heads:
            keys.note("model_ignored", f"num_kv_heads = {given} -> {heads}")
    return replace(
        family,
        attention=attention,
        num_norms=norms,
        parallel=parallel,
        mlp=replace(family.mlp, bias=bias),
    )


def _opt(keys: Keys, family: Family) -> Family:
    bias = keys.flag("enable_bias", True)
    before = keys.flag("do_layer_norm_before", True)
    affine = keys.flag("layer_norm_elementwise_affine", True)
    return replace(
        family,
        attention=replace(family.attention, qkv_bias=bias, out_bias=bias),
        mlp=replace(family.mlp, bias=bias),
        norm="layernorm" if affine else "layernorm_no_params",
        final_norm=before and keys.data.get("_remove_final_layer_norm") is not True,
    )


def _opt_embedding(keys: Keys, family: Family, model: Model) -> Model:
    width = keys.size_or("word_embed_proj_dim", model.hidden, "hidden_size")
    return replace(model, embedding_dim=width)


def _nemotron_h(keys: Keys, family: Family) -> list[Layer]:
    """One mixer or one network per block, by a pattern of letters or a list of names."""
    hidden = keys.size("hidden_size")
    pattern = _nemotron_pattern(keys)
    num = len(pattern)
    blocks: dict[str, Layer] = {}
    if "*" in pattern:
        mixer = read_attention(keys, family, 1, hidden)[0]
        blocks["*"] = Layer(mixer=mixer, ffn=None, num_norms=1)
    if "M" in pattern:
        state = read_mamba2(
            keys,
            hidden,
            heads="mamba_num_heads",
            head_dim="mamba_head_dim",
            groups="n_groups",
            state="ssm_state_size",
            conv="conv_kernel",
            chunk="chunk_size",
            conv_bias="use_conv_bias",
            proj_bias="use_bias",
        )
        blocks["M"] = Layer(mixer=state, ffn=None, num_norms=1)
    if "-" in pattern:
        mlp = read_mlps(keys, family.mlp, 1, hidden)[0]
        blocks["-"] = Layer(mixer=None, ffn=mlp, num_norms=1)
    if "E" in pattern:
        assert family.moe is not None
        moe = read_moes(keys, family.moe, 1)[0]
        shared = keys.size("num_shared_experts", zero=True) * moe.shared_ffn_hidden
        if "moe_latent_size" not in keys.data:
            keys.note("model_default", f"moe_latent_size = null ({keys.family})")
        latent = keys.size_or_none("moe_latent_size") or 0
        moe = replace(moe, shared_ffn_hidden=shared, latent_dim=latent)
        blocks["E"] = Layer(mixer=None, ffn=moe, num_norms=1)
    stated = keys.size_or_none("num_hidden_layers")
    if stated is not None and stated != num and not keys.problems:
        keys.problem("model_list_length", "hybrid_override_pattern", value=num, expected=stated)
    return [blocks[letter] for letter in pattern]


_NEMOTRON_NAMES = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


def _nemotron_pattern(keys: Keys) -> str:
    names = keys.raw("layer_types")
    if isinstance(names, list) and names:
        letters = [_NEMOTRON_NAMES.get(str(name), "?") for name in names]
        if "?" in letters:
            keys.problem(
                "model_layer_type_unknown",
                "layers_block_type",
                value=names[letters.index("?")],
                allowed=tuple(_NEMOTRON_NAMES),
            )
            return "M"
        return "".join(letters)
    pattern = keys.text("hybrid_override_pattern")
    unknown = sorted(set(pattern) - set("M*-E"))
    if unknown or not pattern:
        keys.problem(
            "model_pattern_unknown",
            "hybrid_override_pattern",
            value=unknown[0] if unknown else pattern,
            allowed=("M", "*", "-", "E"),
        )
        return "M"
    return pattern


def _chatglm(keys: Keys, family: Family) -> Family:
    """Two kinds of block: that of GLM-130B (``inner_hidden_size``), and one like Llama's."""
    if keys.has("inner_hidden_size"):
        return replace(
            family,
            tied=True,
            norm="layernorm",
            attention=AttentionFacts(qkv_bias=True, out_bias=True, kv_heads="same"),
            mlp=MlpFacts(gated=False, bias=True, width="inner_hidden_size"),
        )
    bias = keys.flag("add_bias_linear", False)
    qkv = bias or keys.flag("add_qkv_bias", False)
    grouped = keys.flag("multi_query_attention", False)
    attention = replace(
        family.attention, qkv_bias=qkv, out_bias=bias, kv_heads="required" if grouped else "same"
    )
    rms = keys.flag("rmsnorm", True)
    return replace(
        family,
        attention=attention,
        mlp=replace(family.mlp, bias=bias),
        norm="rmsnorm" if rms else "layernorm",
        final_norm=keys.flag("post_layer_norm", True),
    )


def _qwen1(keys: Keys, family: Family) -> Family:
    """``intermediate_size`` counts both branches; the key about biases spares the queries."""
    bias = not keys.flag("no_bias", True)
    return replace(
        family,
        attention=replace(family.attention, out_bias=bias),
        mlp=replace(family.mlp, bias=bias),
    )


def _qwen1_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    width = keys.size("intermediate_size")
    if width % 2:
        keys.problem("model_width_not_whole", "intermediate_size", value=width, width=width / 2)
    keys.note("model_derived", f"ffn_hidden = {width // 2} (intermediate_size / 2)")
    bias = bool(family.mlp.bias)
    mlp = Mlp(ffn_hidden=max(1, width // 2), gated=True, bias=bias, activation="silu")
    return [mlp] * num_layers


def _grok(keys: Keys, family: Family) -> Family:
    """Grok-2, in the names of its Hugging Face class, has a head of its own."""
    if keys.has("widening_factor"):
        return family
    return replace(family, tied=not keys.has("residual_moe"), attention=AttentionFacts())


def _grok_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """Experts, in Grok-2 beside a dense network."""
    if keys.has("widening_factor"):
        return _grok1_ffns(keys, num_layers, hidden)
    own = keys.has("moe_intermediate_size")
    width = "moe_intermediate_size" if own else "intermediate_size"
    moes = read_moes(keys, MoeFacts(layers=all_layers, width=width), num_layers)
    dense = keys.size("intermediate_size") if keys.flag("residual_moe", False) else 0
    return [replace(moe, shared_ffn_hidden=dense) for moe in moes]


def _grok1_ffns(keys: Keys, num_layers: int, hidden: int) -> list[Ffn | None]:
    """The inner width is 2/3 of ``widening_factor`` times the hidden width, rounded up to 8."""
    width = int(keys.ratio("widening_factor") * hidden) * 2 // 3
    width += -width % 8
    keys.note("model_derived", f"ffn_hidden = {width} (widening_factor * emb_size * 2/3)")
    inner = Keys({**keys.data, "intermediate_size": width}, where=keys.where, family=keys.family)
    inner.problems, inner.notes = keys.problems, keys.notes
    keys.read_all("num_experts", *keys.names("num_experts_per_tok"))
    return list(
        read_moes(inner, MoeFacts(layers=all_layers, width="intermediate_size"), num_layers)
    )


def _llama4(keys: Keys, num_layers: int) -> list[bool]:
    named = keys.indices("moe_layers", num_layers)
    if named is not None:
        keys.read_all("interleave_moe_layer_step")
        return [i in set(named) for i in range(num_layers)]
    step = keys.size("interleave_moe_layer_step", zero=True)
    return [step > 0 and (i + 1) % step == 0 for i in range(num_layers)]


def _llama4_ffns(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Ffn | None]:
    """Experts and the shared expert are ``intermediate_size`` wide, dense layers have their own."""
    sparse = _llama4(keys, num_layers)
    facts = MoeFacts(layers=_llama4, width="intermediate_size")
    layers: list[Ffn | None] = []
    moe = read_moes(keys, facts, 1)[0] if any(sparse) else None
    dense = (
        read_mlps(keys, MlpFacts(width="intermediate_size_mlp"), 1, hidden)[0]
        if not all(sparse)
        else None
    )
    keys.read_all("intermediate_size_mlp")
    if moe is not None:
        moe = replace(moe, shared_ffn_hidden=moe.expert_ffn_hidden)
    for has_experts in sparse:
        layers.append(moe if has_experts else dense)
    return layers


def _llama4_mixers(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    """Layers with rotation see their chunk, those without see all."""
    chunk: int | None = None
    if "attention_chunk_size" not in keys.data or keys.has("attention_chunk_size"):
        chunk = keys.size_default("attention_chunk_size", 8192)
    else:
        keys.read_all("attention_chunk_size")  # null stands for no chunks
    mixers = read_attention(keys, family, num_layers, hidden)
    return [
        replace(m, window_size=chunk if m.rotary else None) if isinstance(m, Attention) else m
        for m in mixers
    ]


FALCON = Family(
    source=transformers("falcon"),
    tied=True,
    norm="layernorm",
    mlp=MlpFacts(gated=False, multiple=4),
    refine=_falcon,
)

OWN: dict[str, Family] = {
    "falcon": FALCON,
    # Falcon's first files: 40B names its key-value heads, 7B has one.
    "RefinedWeb": replace(FALCON, source=repository("tiiuae/falcon-40b")),
    "RefinedWebModel": replace(FALCON, source=repository("tiiuae/falcon-7b")),
    "opt": Family(
        source=transformers("opt"),
        tied=True,
        attention=AttentionFacts(kv_heads="same", rotary=False),
        mlp=MlpFacts(gated=False),
        positions=Positions(offset=2),
        refine=_opt,
        finish=_opt_embedding,
    ),
    "bloom": Family(
        source=transformers("bloom"),
        tied=True,
        norm="layernorm",
        embedding_norm=True,
        attention=AttentionFacts(qkv_bias=True, out_bias=True, kv_heads="same", rotary=False),
        mlp=MlpFacts(gated=False, bias=True, multiple=4),
    ),
    "gpt_neo": replace(
        GPT2,
        source=transformers("gpt_neo"),
        attention=replace(GPT2.attention, qkv_bias=False, windows=by_attention_types),
        positions=Positions(),
    ),
    "xglm": replace(
        GPT2,
        source=transformers("xglm"),
        mlp=MlpFacts(gated=False, bias=True),
        positions=None,
    ),
    "biogpt": replace(
        GPT2,
        source=transformers("biogpt"),
        mlp=MlpFacts(gated=False, bias=True),
        positions=Positions(offset=2),
    ),
    "nemotron_h": Family(
        source=transformers("nemotron_h"),
        attention=AttentionFacts(head_dim="required", rotary=False),
        mlp=MlpFacts(gated=False, bias=_MLP_BIAS),
        moe=MoeFacts(layers=all_layers, gated=False, shared="width", shared_bias=_MLP_BIAS),
        blocks=_nemotron_h,
    ),
    "chatglm": Family(
        source=repository("THUDM/chatglm3-6b"),
        attention=AttentionFacts(head_dim="required"),
        refine=_chatglm,
    ),
    "qwen": Family(
        source=repository("Qwen/Qwen-7B"),
        attention=AttentionFacts(qkv_bias=True, kv_heads="same", head_dim="required"),
        refine=_qwen1,
        ffns=_qwen1_ffns,
    ),
    "grok-1": Family(
        source="xai-org/grok-1, run.py and model.py on GitHub; Grok1ForCausalLM of SGLang",
        tied=True,
        num_norms=4,
        attention=AttentionFacts(head_dim="required"),
        refine=_grok,
        ffns=_grok_ffns,
    ),
    "llama4_text": replace(
        LLAMA,
        source=transformers("llama4"),
        attention=AttentionFacts(
            qkv_bias=_BIAS, out_bias=_BIAS, head_dim="required", unrotated_every=4
        ),
        mixers=_llama4_mixers,
        ffns=_llama4_ffns,
    ),
    "palm": Family(
        source="Chowdhery et al. 2022 (arXiv 2204.02311), section 2",
        tied=True,
        norm="layernorm_no_bias",
        num_norms=1,
        parallel=True,
        attention=AttentionFacts(head_dim="required"),
    ),
    "exaone_moe": replace(
        QWEN3,
        source=transformers("exaone_moe"),
        attention=AttentionFacts(qk_norm_if=True, windows=periodic()),
        moe=MoeFacts(layers=after_dense, shared="count"),
    ),
}
