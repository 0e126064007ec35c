"""Options of Megatron-LM that stand for one value each, by what they are called here.

References:
    1. ``megatron/training/arguments.py`` of megatron-core 0.19.2: names and defaults.
"""

from __future__ import annotations

from meshplan.space.plan import Offload

__all__ = ["COUNTS", "FLAGS", "LAUNCHER", "MODEL", "MODEL_FLAGS"]

LAUNCHER = {
    "nproc-per-node": "gpus_per_node",
    "nnodes": "num_nodes",
    "num-gpus": "gpus_per_node",
    "num-nodes": "num_nodes",
}
COUNTS = {
    **LAUNCHER,
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    # of Megatron-DeepSpeed
    "moe-expert-parallel-size": "ep",
    "ds-sequence-parallel-size": "cp",
    "expert-tensor-parallel-size": "etp",
    "num-virtual-stages-per-pipeline-rank": "vpp",
    "num-layers-per-virtual-pipeline-stage": "layers_per_chunk",
    "micro-batch-size": "micro_batch",
    "global-batch-size": "global_batch",
    "seq-length": "seq_len",
    "num-distributed-optimizer-instances": "dp_replicate",
    "recompute-num-layers": "recompute_layers",
    "cpu-offloading-num-layers": "offload_layers",
    "decoder-first-pipeline-num-layers": "first_layers",
    "decoder-last-pipeline-num-layers": "last_layers",
    "microbatch-group-size-per-virtual-pipeline-stage": "micro_batch_group",
}
MODEL = {
    "num-layers": "num_layers",
    "hidden-size": "hidden",
    "num-attention-heads": "num_heads",
    "num-query-groups": "num_kv_heads",
    "ffn-hidden-size": "ffn_hidden",
    "kv-channels": "head_dim",
    "vocab-size": "vocab",
    "max-position-embeddings": "num_positions",
    "num-experts": "num_experts",
    "moe-router-topk": "top_k",
    "topk": "top_k",
    "moe-ffn-hidden-size": "expert_ffn_hidden",
    "moe-shared-expert-intermediate-size": "shared_ffn_hidden",
    "kv-lora-rank": "kv_lora_rank",
    "q-lora-rank": "q_lora_rank",
    "qk-head-dim": "qk_nope_head_dim",
    "qk-pos-emb-head-dim": "qk_rope_head_dim",
    "v-head-dim": "v_head_dim",
    "mtp-num-layers": "num_mtp_layers",
    "window-size": "window_size",
    "moe-latent-size": "latent_dim",
    "mamba-num-heads": "state_heads",
    "mamba-head-dim": "state_head_dim",
    "mamba-state-dim": "state_dim",
    "mamba-num-groups": "state_groups",
    "linear-num-key-heads": "linear_key_heads",
    "linear-key-head-dim": "linear_key_dim",
    "linear-num-value-heads": "linear_value_heads",
    "linear-value-head-dim": "linear_value_dim",
    "linear-conv-kernel-dim": "linear_kernel",
}
MODEL_FLAGS = {
    "swiglu": ("gated", True),
    "quick-geglu": ("gated", True),
    "squared-relu": ("activation", "relu2"),
    "disable-bias-linear": ("bias", False),
    "add-qkv-bias": ("qkv_bias", True),
    "qk-layernorm": ("qk_norm", True),
    "untie-embeddings-and-output-weights": ("untied", True),
    "multi-latent-attention": ("latent", True),
    "group-query-attention": ("grouped", True),
    "attention-output-gate": ("output_gate", True),
    "moe-shared-expert-gate": ("shared_gate", True),
}
FLAGS: dict[str, tuple[str, object]] = {
    "sequence-parallel": ("sp", True),
    "bf16": ("precision", "bf16"),
    "fp16": ("precision", "fp16"),
    "optimizer-cpu-offload": ("offload", Offload.OPTIMIZER),
}
