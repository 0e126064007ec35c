"""MiniMax-M3: an indexer picks blocks of tokens in most layers."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_attention
from meshplan.inputs.load.hf_families_dense import transformers
from meshplan.inputs.load.hf_family import AttentionFacts, Family, MlpFacts, MoeFacts
from meshplan.inputs.load.hf_ffn import read_mlps, read_moes
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import all_layers, listed
from meshplan.inputs.model import Layer

__all__ = ["MINIMAX3"]


def _picking_layers(keys: Keys, num_layers: int) -> list[bool]:
    """Layers with an indexer: by ``layer_types``, or by the frequency list of the first files."""
    types = keys.names_list("layer_types", num_layers)
    if types is not None:
        unknown = sorted(set(types) - {"minimax_m3_sparse", "full_attention"})
        if unknown:
            keys.problem(
                "model_layer_type_unknown",
                "layer_types",
                value=unknown[0],
                allowed=("minimax_m3_sparse", "full_attention"),
            )
        return [kind == "minimax_m3_sparse" for kind in types]
    if not keys.has("sparse_attention_config"):
        keys.missing("layer_types")
        return [False] * num_layers
    marks = keys.section("sparse_attention_config").sizes(
        "sparse_attention_freq", num_layers, zero=True
    )
    return [mark > 0 for mark in marks]


def _indexer(keys: Keys, hidden: int) -> int:
    """Weights of one indexer: queries of a few heads, one key, and their norms."""
    if keys.has("sparse_attention_config"):
        inner = keys.section("sparse_attention_config")
        heads, width = inner.size("sparse_num_index_heads"), inner.size("sparse_index_dim")
    else:
        heads, width = keys.size("index_n_heads"), keys.size("index_head_dim")
    return hidden * heads * width + hidden * width + 2 * width


def _routed_layers(keys: Keys, num_layers: int) -> list[bool]:
    types = listed(keys, num_layers)
    if types is not None:
        return types
    marks = keys.sizes("moe_layer_freq", num_layers, zero=True)
    return [mark > 0 for mark in marks]


def _blocks(keys: Keys, family: Family) -> list[Layer]:
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    mixers = read_attention(keys, family, num_layers, hidden)
    routed, picking = _routed_layers(keys, num_layers), _picking_layers(keys, num_layers)
    assert family.moe is not None
    width = "moe_intermediate_size" if keys.has("moe_intermediate_size") else "intermediate_size"
    facts = replace(family.moe, width=width)
    moe = read_moes(keys, facts, 1)[0] if any(routed) else None
    mlp = None if all(routed) else read_mlps(keys, family.mlp, 1, hidden)[0]
    extra = _indexer(keys, hidden) if any(picking) else 0
    keys.read_all("dense_intermediate_size", "index_n_heads", "index_head_dim", "n_shared_experts")
    keys.read_all("intermediate_size", "first_k_dense_replace")
    if any(picking):
        keys.note("model_tokens_picked", str(sum(picking)))
    return [
        Layer(
            mixer=mixers[i],
            ffn=moe if routed[i] else mlp,
            num_norms=2,
            extra_parameters=extra if picking[i] else 0,
        )
        for i in range(num_layers)
    ]


_FAMILY = Family(
    source=transformers("minimax_m3_vl"),
    attention=AttentionFacts(qk_norm_if=True, head_dim="required"),
    mlp=MlpFacts(width="dense_intermediate_size"),
    moe=MoeFacts(layers=all_layers, width="intermediate_size", shared="width"),
    blocks=_blocks,
)

MINIMAX3: dict[str, Family] = {
    "minimax_m3_vl_text": _FAMILY,
    "minimax_m3": replace(_FAMILY, source="MiniMaxAI/MiniMax-M3 on the Hugging Face hub"),
}
