"""Read the attention of every layer."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_family import AttentionFacts, Family, flag
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.model import Attention, LatentAttention, Mixer

__all__ = ["read_attention", "read_latent_attention", "read_rotary"]


def read_attention(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[Mixer | None]:
    """Read softmax attention with full, grouped or single key-value heads."""
    facts = family.attention
    heads = keys.sizes("num_attention_heads", num_layers)
    kv_heads = _kv_heads(keys, facts, heads)
    widths = _head_dims(keys, facts, heads, hidden)
    v_dims = keys.sizes("v_head_dim", num_layers) if facts.own_v_head_dim else widths
    windows = facts.windows(keys, num_layers)
    rotary = read_rotary(keys, facts, num_layers)
    qkv_bias, out_bias = flag(keys, facts.qkv_bias), flag(keys, facts.out_bias)
    normed, gated = flag(keys, facts.qk_norm_if), flag(keys, facts.output_gate)
    for layer, (q, kv) in enumerate(zip(heads, kv_heads, strict=True)):
        if not keys.problems and q % kv:
            keys.problem(
                "model_kv_heads_not_divisor", "num_key_value_heads", value=kv, heads=q, layer=layer
            )
    return [
        Attention(
            num_heads=heads[i],
            num_kv_heads=kv_heads[i],
            head_dim=widths[i],
            v_head_dim=v_dims[i],
            window_size=windows[i],
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            qk_norm=facts.qk_norm if normed else "none",
            qk_norm_bias=facts.qk_norm_bias and normed,
            sinks=facts.sinks,
            rotary=rotary[i],
            output_gate=gated,
        )
        for i in range(num_layers)
    ]


def _kv_heads(keys: Keys, facts: AttentionFacts, heads: list[int]) -> list[int]:
    if facts.kv_heads == "same":
        return heads
    if facts.kv_heads == "single":
        return [1] * len(heads)
    left_out = facts.kv_heads == "derived" and not keys.has("num_key_value_heads")
    if left_out or keys.is_null("num_key_value_heads"):
        keys.note("model_derived", "num_key_value_heads = num_attention_heads")
        return heads
    return keys.sizes("num_key_value_heads", len(heads))


def _head_dims(keys: Keys, facts: AttentionFacts, heads: list[int], hidden: int) -> list[int]:
    stated = keys.has("head_dim")
    if stated or (facts.head_dim == "required" and not keys.is_null("head_dim")):
        return keys.sizes("head_dim", len(heads))
    for num in dict.fromkeys(heads):
        if not keys.problems and hidden % num:
            keys.problem("model_hidden_not_divisible", "hidden_size", value=hidden, heads=num)
    if heads:
        keys.note("model_derived", f"head_dim = {hidden // heads[0]} (hidden_size / heads)")
    return [hidden // num for num in heads]


def read_rotary(keys: Keys, facts: AttentionFacts, num_layers: int) -> list[bool]:
    """Which layers rotate queries and keys: all but those that ``no_rope_layers`` leaves out."""
    if not facts.rotary:
        return [False] * num_layers
    marks = keys.raw("no_rope_layers")
    if marks:  # 1 stands for a layer with rotation
        return [m > 0 for m in keys.per_layer("no_rope_layers", marks, num_layers, zero=True)]
    if not facts.unrotated_every:
        return [True] * num_layers
    every = keys.size_default("no_rope_layer_interval", facts.unrotated_every)
    keys.note("model_derived", f"no_rope_layers = every {every}")
    return [(i + 1) % every != 0 for i in range(num_layers)]


def read_latent_attention(
    keys: Keys, family: Family, num_layers: int, hidden: int
) -> list[Mixer | None]:
    """Read multi-head latent attention (DeepSeek-V2 and kin)."""
    if "q_lora_rank" not in keys.data:
        keys.missing("q_lora_rank")
    keys.read_all("num_key_value_heads", "qk_head_dim", "head_dim")
    if family.attention.indexed:
        index_heads = keys.size("index_n_heads")
    else:
        index_heads = keys.size_or_none("index_n_heads") or 0
    mixer = LatentAttention(
        num_heads=keys.size("num_attention_heads"),
        q_lora_rank=keys.size_or_none("q_lora_rank"),
        kv_lora_rank=keys.size("kv_lora_rank"),
        qk_nope_head_dim=keys.size("qk_nope_head_dim"),
        qk_rope_head_dim=keys.size("qk_rope_head_dim", zero=True),
        v_head_dim=keys.size("v_head_dim"),
        bias=flag(keys, family.attention.qkv_bias),
        index_num_heads=index_heads,
        index_head_dim=keys.size("index_head_dim") if index_heads else 0,
        index_top_k=keys.size("index_topk") if index_heads else 0,
    )
    if not index_heads:
        return [mixer] * num_layers
    borrowing = replace(mixer, index_num_heads=0, index_head_dim=0)
    return [borrowing if shared else mixer for shared in _shared_indexers(keys, num_layers)]


def _shared_indexers(keys: Keys, num_layers: int) -> list[bool]:
    """Which layers see the tokens that an earlier layer's indexer picked, and have none (GLM-5.2).

    ``indexer_types`` names them, else ``index_topk_pattern``, else every layer but one in
    ``index_topk_freq`` (``GlmMoeDsaConfig`` of transformers).
    """
    keys.read_all("index_topk_freq", "index_skip_topk_offset", "index_share_for_mtp_iteration")
    types = keys.names_list("indexer_types", num_layers)
    pattern = keys.raw("index_topk_pattern")
    if types is None and isinstance(pattern, str):
        types = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    elif types is None and pattern is not None:
        types = keys.names_list("index_topk_pattern", num_layers)
    if types is None:
        if keys.family == "glm_moe_dsa" and not keys.has("index_topk_freq"):
            keys.note("model_default", f"indexer_types = full ({keys.family})")
        every = keys.size_or_none("index_topk_freq", zero=True) or 1
        skipped = keys.size_or_none("index_skip_topk_offset", zero=True)
        first = (2 if skipped is None else skipped) - 1
        return [max(i - first, 0) % every != 0 for i in range(num_layers)]
    where = "index_topk_pattern" if keys.raw("indexer_types") is None else "indexer_types"
    if len(types) != num_layers:
        keys.problem("model_list_length", where, value=len(types), expected=num_layers)
        return [False] * num_layers
    unknown = next((t for t in types if t not in ("full", "shared")), None)
    if unknown is not None:
        keys.problem("model_layer_type_unknown", where, value=unknown, allowed=("full", "shared"))
    return [t == "shared" for t in types]
