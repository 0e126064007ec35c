"""The names that one fact goes by in configurations, and the range that it can have."""

from __future__ import annotations

import re

__all__ = ["ALIASES", "LIMITS", "is_inert", "is_weighty"]

# The name most families use, then the others. Names that mean different things in different
# families (``hidden_dim`` in Mistral's own params.json) are resolved before these are consulted.
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "hidden_dim", "emb_size", "model_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "num_attention_heads": (
        "n_head",
        "n_heads",
        "num_heads",
        "attention_heads",
        "num_q_heads",
    ),
    "num_key_value_heads": (
        "num_kv_heads",
        "n_head_kv",
        "kv_n_heads",
        "n_kv_heads",
        "num_query_groups",
        "num_attention_groups",
        "multi_query_group_num",
    ),
    "head_dim": ("attention_head_dim", "kv_channels", "key_size"),
    "intermediate_size": ("n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "ffn_embed_dim", "dff"),
    "vocab_size": ("padded_vocab_size",),
    "num_experts": (
        "num_local_experts",
        "n_routed_experts",
        "num_routed_experts",
        "moe_num_experts",
    ),
    "num_experts_per_tok": (
        "num_experts_per_token",
        "experts_per_token",
        "moe_topk",
        "moe_top_k",
        "moe_k",
        "top_k_experts",
        "num_selected_experts",
    ),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "num_shared_experts": ("n_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_expert_intermediate_size": (
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "shared_experts_intermediate_size",
    ),
    "first_k_dense_replace": ("num_dense_layers",),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers", "mtp_num_layers"),
    "sliding_window": ("sliding_window_size", "attention_window_size"),
    "tie_word_embeddings": ("tie_embedding", "share_input_output_layers"),
    "num_zero_experts": ("zero_expert_num",),
    "layer_types": ("layers_block_type",),
    "max_position_embeddings": ("max_seq_len",),
}

# Larger values are slips of the keyboard: the widest published model has 20,480 channels, the
# deepest 1,000 layers, the largest vocabulary 262,400 rows.
LIMITS: dict[str, int] = {
    "width": 2**24,
    "hidden_size": 2**20,
    "num_hidden_layers": 10_000,
    "num_attention_heads": 2**16,
    "num_key_value_heads": 2**16,
    "vocab_size": 2**28,
    "num_experts": 2**20,
    "num_nextn_predict_layers": 1_000,
    "ratio": 10_000,
    "max_position_embeddings": 2**40,
}

# Keys without effect on which weights exist: numerics, initialisation, positions by formula,
# tokens, generation, bookkeeping.
_INERT = re.compile(
    r"""^_ | _token(_id|_index)?s?$ | _id$ | dropout | _pdrop$ | ^pdrop | dtype$ | eps(ilon)?$
    | ^rope | rotary | ^init | initializer | ^use_cache$ | ^cache | _coef$ | _alpha$ | factor
    | softcap | scal(e|ing) | ^output_ | ^return_ | label | ^problem_type | quantization
    | ^auto_map$ | _version$ | ^architectures$ | ^model_type$ | attn_implementation
    | flash | fused | fusion | ^pretraining_tp$ | temperature | _loss | theta | norm_topk
    | ^topk_ | ^n_group$ | scoring | ^seq_aux$ | ^ep_size$ | time_step | jitter | clip | _limit$
    | ^torchscript | ^pruned | ^prefix$ | ^task | ^decoder_start | length_penalty | ^num_beam
    | ^do_sample | ^top_[kp]$ | ^typical_p | ^early_stopping | ^repetition | ngram | ^bad_words
    | ^forced | ^suppress | ^begin_ | ^finetuning | ^tokenizer | ^num_return | penalty
    | ^min_length | ^max_length | multiplier | ^gradient | ^transformers | ^use_bfloat16
    | mamba_kernels | ^num_logits_to_keep | ^residual_in | ^rescale | ^hidden_act$ | _act$
    | ^activation_function$ | ^activation$
    | ^bf16$ | ^fp16$ | ^fp32$ | ^is_decoder$ | ^chunk_size_feed
    | ^cross_attention_hidden | query_pre_attn | ^max_window_layers$ | ^name$ | prefill
    | context_window | ^max_context
    | ^initial_context | ^original_max | model_max_length | ^seq_length$
    | ^max_seq | ^n_ctx$ | ^swiglu_limit$ | ^use_logn | dynamic_ntk | ^scale_ | upcast
    | ^tie_encoder | ^ignore_ | ^logit | ^verbose | ^summary_ | ^skip_bias_add | ^token_
    | softmax_in | ^max_position | ^router_ | ^moe_loss | ^aux_ | ^use_kernel
    | hidden_activation | ^layer_norm_eps | ^position_embedding_type$ | ^mup | dt_(min|max)
    | ^sequence_len(gth)?$ | ^n_positions$
    | ^is_encoder_decoder$ | ^add_cross_attention$ | ^remove_invalid
    """,
    re.VERBOSE,
)


# Keys that decide which weights exist wherever a family has them. A family that has no use for
# one that is set is not the family that it says it is.
_WEIGHTY = re.compile(
    r"""^num_(local_|routed_|shared_)?experts?$ | ^n_(routed|shared)_experts$
    | ^moe_num_(shared_)?experts$ | ^moe_intermediate_size$ | expert_intermediate_size$
    | ^shared_intermediate_size$ | expert_hidden_size$ | expert_ffn | expert_dim$ | latent
    | _lora_rank$ | ^linear_attn_config$ | ^linear_(num|key|value|head|conv)
    | ^mamba_(d_|n_|num_|head|expand|rms) | ^ssm_ | ^attn_res | ^cross_attention_layers$
    | ^altup_num | ^laurel_ | per_layer_input$ | ^num_kv_shared | ^hc_mult$ | ^o_groups$
    | ^share_q_dim$ | ^use_cla$ | ^block_configs$ | heads_per_layer$ | ^conv_L_cache$
    | ^lru_width$ | ^num_mem_blocks$ | ^adapter_rank$ | ^word_embed_proj_dim$
    | ^embedding_size$ | zero_expert | ^hybrid_override | output_gate$ | ^attn_type_list$
    | ^sandwich | ^use_(post|sub)_norm$ | ^index_n_heads$ | ^num_query_heads$
    | ^dense_intermediate_size$ | ^swa_""",
    re.VERBOSE,
)


def is_weighty(key: str) -> bool:
    """Whether a key decides which weights exist in every family that has it."""
    return _WEIGHTY.search(key) is not None


def is_inert(key: str) -> bool:
    """Whether a key says nothing about which weights a model has."""
    return _INERT.search(key) is not None
