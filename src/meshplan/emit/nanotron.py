"""nanotron: the YAML config of ``run_train.py``.

References:
    1. ``src/nanotron/config`` at 2411b022; ``examples/config_tiny_llama.yaml``.
"""

from __future__ import annotations

from typing import Any

from meshplan.emit.bash import comment
from meshplan.emit.job import job_obstacles
from meshplan.emit.records import EmittedFile, Obstacle, Order, Program, Target, once
from meshplan.emit.yaml import block_yaml
from meshplan.inputs.model import Attention, Mlp, Model, Moe
from meshplan.space.plan import CpComm, Framework, Plan, Recompute, Schedule

__all__ = ["NANOTRON", "config"]

_FILE = "nanotron.yaml"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def _obstacles(order: Order) -> tuple[Obstacle, ...]:
    model, job = order.scenario.model, order.scenario.job
    found: list[Obstacle] = []
    given: dict[str, object]
    found += job_obstacles(job, optimizers=("adamw", "sgd"))
    for layer in model.layer_kinds:
        mixer, ffn = layer.mixer, layer.ffn
        plain = isinstance(mixer, Attention) and layer.num_norms == 2 and not layer.parallel
        if not plain or not isinstance(ffn, Mlp | Moe) or not ffn.gated or ffn.bias:
            found.append(Obstacle(code="not_llama", model=True))
            continue
        assert isinstance(mixer, Attention)
        if mixer.qk_norm != "none" or mixer.sinks or mixer.out_bias or not mixer.rotary:
            found.append(Obstacle(code="not_llama", model=True))
        if mixer.head_dim * mixer.num_heads != model.hidden:
            found.append(Obstacle(code="head_dim", model=True))
        if ffn.activation != "silu":
            given = {"activation": ffn.activation}
            found.append(Obstacle(code="activation", numbers=given, model=True))
        ring = order.plan.cp > 1 and order.plan.cp_comm is CpComm.P2P
        if mixer.window_size is not None and ring:
            found.append(Obstacle(code="window_in_ring"))
    if len(model.layer_kinds) > 1:
        found.append(Obstacle(code="mixed_layers", model=True))
    if model.norm != "rmsnorm" or model.embedding_dim != model.hidden:
        found.append(Obstacle(code="not_llama", model=True))
    return once(found)


def config(order: Order) -> dict[str, Any]:
    """The YAML config of a plan; data, tokenizer and learning rate are placeholders."""
    plan, job, model = order.plan, order.scenario.job, order.scenario.model
    return {
        "checkpoints": {
            "checkpoint_interval": 1000,
            "checkpoints_path": "checkpoints",
            "checkpoints_path_is_shared_file_system": False,
            "resume_checkpoint_path": None,
            "save_initial_state": False,
        },
        "data_stages": [
            {
                "name": "all",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "general": {"project": "meshplan", "run": "plan", "seed": 42},
        "logging": {"iteration_step_info_interval": 1, "log_level": "info"},
        "model": {
            "ddp_bucket_cap_mb": 25,
            "dtype": _DTYPES.get(job.precision, job.precision),
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": _model(model, plan, seq_len=job.seq_len),
        },
        "optimizer": {
            "accumulate_grad_in_fp32": True,
            "clip_grad": 1.0,
            "learning_rate_scheduler": {
                "learning_rate": 1.0e-4,
                "lr_decay_steps": 18,
                "lr_decay_style": "cosine",
                "lr_warmup_steps": 2,
                "lr_warmup_style": "linear",
                "min_decay_lr": 1.0e-5,
            },
            "optimizer_factory": _optimizer(job.optimizer),
            "weight_decay": 0.01,
            "zero_stage": plan.zero,
        },
        "parallelism": _parallelism(plan),
        "tokenizer": {"tokenizer_name_or_path": "REPLACE", "tokenizer_revision": None},
        "tokens": {
            "batch_accumulation_per_replica": plan.num_micro_batches,
            "limit_test_batches": 0,
            "limit_val_batches": 0,
            "micro_batch_size": plan.micro_batch,
            "sequence_length": job.seq_len,
            "train_steps": 20,
            "val_check_interval": -1,
        },
    }


def _optimizer(name: str) -> dict[str, Any]:
    if name == "sgd":
        return {"name": "sgd"}
    return {
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1.0e-8,
        "name": "adamW",
        "torch_adam_is_fused": True,
    }


def _parallelism(plan: Plan) -> dict[str, Any]:
    return {
        "dp": plan.dp,
        "pp": plan.pp,
        "tp": plan.tp,
        "context_parallel_size": plan.cp,
        "expert_parallel_size": plan.ep,
        "pp_engine": "afab" if plan.schedule is Schedule.GPIPE else "1f1b",
        "tp_mode": "REDUCE_SCATTER" if plan.sp else "ALL_REDUCE",
        "tp_linear_async_communication": plan.sp,
        "recompute_layer": bool(plan.recompute & Recompute.FULL),
    }


def _model(model: Model, plan: Plan, *, seq_len: int) -> dict[str, Any]:
    mixer, ffn = model.layers[0].mixer, model.layers[0].ffn
    assert isinstance(mixer, Attention) and isinstance(ffn, Mlp | Moe)
    moe = isinstance(ffn, Moe)
    # context parallelism, experts, biases and windows exist in the Qwen2 model alone
    qwen = plan.cp > 1 or moe or mixer.qkv_bias or mixer.window_size is not None
    values: dict[str, Any] = {
        "is_qwen2_config" if qwen else "is_llama_config": True,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": ffn.expert_ffn_hidden if isinstance(ffn, Moe) else ffn.ffn_hidden,
        "max_position_embeddings": seq_len,
        "num_attention_heads": mixer.num_heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": mixer.num_kv_heads,
        "tie_word_embeddings": model.tied_embeddings,
        "vocab_size": model.vocab,
    }
    if mixer.qkv_bias:
        values["attention_bias"] = True
    if mixer.window_size is not None:
        values["sliding_window_size"] = mixer.window_size
    if plan.cp > 1:
        ring = plan.cp_comm is CpComm.P2P
        values["_attn_implementation"] = "ring" if ring else "llama3_ring_attention"
        if not ring:
            values["ring_attn_heads_k_stride"] = 1
    elif qwen:
        values["_attn_implementation"] = "flash_attention_2"
    if isinstance(ffn, Moe):
        values["moe_config"] = {
            "num_experts": ffn.num_experts,
            "top_k": ffn.top_k,
            "moe_intermediate_size": ffn.expert_ffn_hidden,
            "shared_expert_intermediate_size": ffn.shared_ffn_hidden,
            "enable_shared_expert": ffn.shared_ffn_hidden > 0,
        }
    return values


def _program(order: Order) -> Program:
    text = comment(order.notes) + block_yaml(config(order))
    return Program(
        start="torchrun",
        words=(
            '"${NANOTRON:?set it to a checkout of nanotron}/run_train.py"',
            f'--config-file "$HERE/{_FILE}"',
        ),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        files=(EmittedFile(name=_FILE, text=text),),
    )


NANOTRON = Target(
    name="nanotron",
    framework=Framework.NANOTRON,
    version="nanotron 2411b022",
    verified=False,
    obstacles=_obstacles,
    program=_program,
)
