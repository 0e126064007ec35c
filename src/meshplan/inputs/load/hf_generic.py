"""Read a configuration of a type that nobody here knows, if its keys leave nothing open."""

from __future__ import annotations

import re
from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_latent_attention
from meshplan.inputs.load.hf_family import AttentionFacts, Family, Flag, MlpFacts, MoeFacts
from meshplan.inputs.load.hf_ffn import has_experts
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import after_dense, interval, sparse_step
from meshplan.inputs.load.hf_mtp import deepseek_mtp
from meshplan.inputs.load.hf_names import is_weighty
from meshplan.inputs.load.hf_windows import by_layer_types
from meshplan.inputs.model import Model

__all__ = ["GENERIC"]

# Keys that tell of weights which the generic reading would not count.
_TELLING = re.compile(
    r"""mamba | ssm | conv | linear_ | recurr | state_size | lora_rank | expert | moe | index_
    | altup | laurel | per_layer | kv_shared | mem_block | ^hc_ | cross_attention | block_type
    | block_config | pattern | adapter | latent | multi_query | parallel | alibi | new_decoder
    | word_embed | embedding_size | glu | sub_norm | qk_ln | post_norm | sandwich | gate | gating
    | learned | n_streams | multiplier_list | per_head | share | swa_ | bias""",
    re.VERBOSE,
)
_PLAIN_LAYERS = {"full_attention", "sliding_attention", "attention", "chunked_attention"}


def _refine(keys: Keys, family: Family) -> Family:
    """Take latent attention, experts and norms from whichever keys are there."""
    keys.note("model_generic", keys.family)
    types = keys.raw("layer_types")
    if isinstance(types, list):
        unknown = sorted({str(t) for t in types} - _PLAIN_LAYERS)
        if unknown:
            keys.problem(
                "model_layer_type_unknown",
                "layer_types",
                value=unknown[0],
                allowed=tuple(sorted(_PLAIN_LAYERS)),
            )
    normed = any(
        keys.has(key) and keys.flag(key) for key in ("use_qk_norm", "qk_layernorm", "qk_norm")
    )
    family = replace(family, attention=replace(family.attention, qk_norm_if=normed))
    if keys.has("kv_lora_rank"):
        family = replace(family, mixers=read_latent_attention)
    if has_experts(keys):
        family = replace(family, moe=_moe(keys), finish=_finish_moe)
    return family


def _moe(keys: Keys) -> MoeFacts:
    """Experts, where the file states their width, which layers have them, and shared ones."""
    layers = after_dense  # asks for ``first_k_dense_replace`` where nothing else is given
    if keys.has("moe_layer_start_index"):
        layers = interval
    elif keys.has("decoder_sparse_step") or keys.has("mlp_only_layers"):
        layers = sparse_step
    given_width = keys.has("shared_expert_intermediate_size")
    return MoeFacts(layers=layers, shared="width" if given_width else "count")


def _finish(keys: Keys, family: Family, model: Model) -> Model:
    """Refuse where the file has more to say than was understood."""
    telling = [k for k in keys.unread() if _TELLING.search(k) and not is_weighty(k)]
    for key in telling:
        keys.problem("model_key_unknown", key, value=keys.data[key])
    return model


def _finish_moe(keys: Keys, family: Family, model: Model) -> Model:
    return deepseek_mtp(keys, family, _finish(keys, family, model))


GENERIC = Family(
    source="what most decoders have: RMSNorm, two norms a block, rotary positions",
    tied=None,
    attention=AttentionFacts(
        qkv_bias=Flag("attention_bias", False),
        out_bias=Flag("attention_bias", False),
        windows=by_layer_types,
    ),
    mlp=MlpFacts(gated=None, bias=Flag("mlp_bias", False)),
    refine=_refine,
    finish=_finish,
)
