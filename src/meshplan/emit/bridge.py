"""Megatron-Bridge: Hydra overrides of a recipe.

References:
    1. ``scripts/training/run_recipe.py`` of Megatron-Bridge and its page "Using Recipes" (0.6.2).
    2. ``megatron/core/transformer/transformer_config.py`` of 0.19.2, whose fields ``model.*`` has.
    3. ``megatron/bridge/peft/lora.py``: names of what gets adapters.
    4. ``megatron/bridge/models/hybrid/hybrid_provider.py``: ``provide``.
"""

from __future__ import annotations

from meshplan.emit import megatron
from meshplan.emit.job import WHOLE_MODEL, job_obstacles
from meshplan.emit.megatron_behaviour import (
    behaviour,
    dispatcher,
    narrow_gradients,
    overlap_flags,
    overlaps_tensor,
    recipe_of_fp8,
)
from meshplan.emit.megatron_hybrid import pattern
from meshplan.emit.records import Flag, Obstacle, Order, Program, Target, once
from meshplan.inputs.job import Job
from meshplan.inputs.model import Attention, Model, StateSpace
from meshplan.space.plan import Framework, Offload, Plan, Recompute, Split

__all__ = ["BRIDGE", "TARGETS", "overrides"]

# Names of the recipes of mixed precision (``training/mixed_precision.py``).
_PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_RECIPES = {
    "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
}
_OF_PRECISION = ("bf16-gradients", "fp8-weights")
# What a recipe may have said about its stages, which the plan's own words replace.
_STAGES_OF_THE_RECIPE = (
    ("model.num_layers_in_first_pipeline_stage", "null"),
    ("model.num_layers_in_last_pipeline_stage", "null"),
    ("model.account_for_embedding_in_pipeline_split", "false"),
    ("model.account_for_loss_in_pipeline_split", "false"),
)


# Fused projections of a block that get adapters (reference 3).
TARGETS = {
    "attention": ("linear_qkv", "linear_proj"),
    "mlp": ("linear_fc1", "linear_fc2"),
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
}


def _obstacles(order: Order) -> tuple[Obstacle, ...]:
    found = [o for o in megatron.obstacles(order) if o.code not in _RECIPE_KNOWS]
    found += job_obstacles(
        order.scenario.job, optimizers=megatron.OPTIMIZERS, tasks=(*WHOLE_MODEL, "lora")
    )
    if _patterned(order.scenario.model) and order.plan.vpp > 1:
        # refused by its HybridModelProvider (reference 4)
        found.append(Obstacle(code="hybrid_interleaving", numbers={"vpp": order.plan.vpp}))
    found += _adapter_obstacles(order)
    for code, own in _switches(order).items():
        if own:
            found.append(Obstacle(code=code, numbers={"options": ", ".join(own)}, model=True))
    if order.scenario.job.optimizer == "adamw8bit":
        # its name fp8 is torch's, where Transformer Engine's optimizer wants bytes
        found.append(Obstacle(code="optimizer", numbers={"optimizer": "adamw8bit"}, model=True))
    return once(found)


def _switches(order: Order) -> dict[str, list[str]]:
    """Settings that its recipes of mixed precision decide together, and others.

    The others are of parts of a recipe that not every one has, such as ``comm_overlap``.
    """
    named = megatron.switches(order.scenario)
    return {
        "switches": [name for name in named if name in _OF_PRECISION],
        "settings": sorted(name for name in named if name not in (*_OF_PRECISION, "fused-loss")),
    }


def _patterned(model: Model) -> bool:
    """Whether its recipes describe the layers by letters: those with state-space mixers."""
    return any(isinstance(m, StateSpace) for layer in model.layer_kinds for m in layer.mixers)


def _adapter_obstacles(order: Order) -> list[Obstacle]:
    """Where adapters would not be those that the plan counts."""
    job, model = order.scenario.job, order.scenario.model
    if job.task != "lora":
        return []
    if any(not isinstance(mixer, Attention) for layer in model.layers for mixer in layer.mixers):
        return [Obstacle(code="adapters_on_attention", model=True)]
    if model.is_moe and job.lora_targets != "attention":
        # the experts of a rank share one adapter (reference 3)
        return [Obstacle(code="adapters_on_experts", model=True)]
    return []


# The recipe brings the model, so that only the plan has to be expressed.
_RECIPE_KNOWS = (
    "task",  # asked again, with adapters among them
    "mixer",
    "mixed_attention",
    "mixed_layers",
    "activation",
    "qk_norm_full",
    "some_biases",
    "no_positions",
    "norms",
    "embedding",
    "fused_loss",  # refused by the arguments of Megatron-LM alone
    "settings",  # asked again, with all of them
)


def overrides(order: Order) -> list[str]:
    """The overrides, ``key=value`` each."""
    plan, job = order.plan, order.scenario.job
    overlapped = overlap_flags(order.scenario, plan)
    pairs: list[tuple[str, object]] = [
        ("model.tensor_model_parallel_size", plan.tp),
        ("model.sequence_parallel", _yes(plan.sp)),
        ("model.pipeline_model_parallel_size", plan.pp),
        ("model.context_parallel_size", plan.cp),
    ]
    if plan.cp > 1:
        pairs.append(("model.cp_comm_type", megatron.CP_COMM[plan.cp_comm]))
    if order.scenario.model.is_moe:
        pairs.append(("model.expert_model_parallel_size", plan.ep))
        pairs.append(("model.expert_tensor_parallel_size", plan.etp))
        pairs += _experts(order)
    pairs += _pipeline(order)
    pairs += _recompute(order)
    pairs += [
        ("model.seq_length", job.seq_len),
        ("dataset.seq_length", job.seq_len),
        ("train.micro_batch_size", plan.micro_batch),
        ("train.global_batch_size", job.global_batch),
        ("mixed_precision", _mixed_precision(order)),
        ("ddp.use_megatron_fsdp", _yes(plan.zero >= 2)),
        (
            "ddp.use_distributed_optimizer",
            _yes(plan.zero >= 1 or megatron.precision_aware(order.scenario, plan)),
        ),
        ("ddp.overlap_grad_reduce", _yes(("--overlap-grad-reduce",) in overlapped)),
        ("ddp.overlap_param_gather", _yes(("--overlap-param-gather",) in overlapped)),
        ("ddp.num_distributed_optimizer_instances", plan.dp_replicate),
    ]
    if plan.zero >= 2:
        strategy = "optim_grads" if plan.zero == 2 else "optim_grads_params"
        pairs.append(("ddp.data_parallel_sharding_strategy", strategy))
        pairs.append(("checkpoint.ckpt_format", "fsdp_dtensor"))
    if behaviour(order.scenario).fused_loss:
        pairs.append(("model.cross_entropy_loss_fusion", "true"))
        pairs.append(("model.cross_entropy_fusion_impl", "te"))
    pairs += _host_memory(plan)
    pairs += _optimizer(order)
    pairs += _adapters(job)
    return [f"{key}={value}" for key, value in pairs]


def _mixed_precision(order: Order) -> str:
    job = order.scenario.job
    if job.precision == "fp8":
        return _RECIPES[recipe_of_fp8(order.scenario)]
    return _PRECISION[job.precision]


def _experts(order: Order) -> list[tuple[str, object]]:
    """How tokens reach their experts; recipes differ, so that it is always said."""
    kind, backend = dispatcher(order.scenario, order.plan)
    pairs: list[tuple[str, object]] = [("model.moe_token_dispatcher_type", kind)]
    if backend:
        pairs.append(("model.moe_flex_dispatcher_backend", backend))
    return pairs


def _unwritten(order: Order) -> tuple[str, ...]:
    """What its mixed precision and its ``comm_overlap`` decide, of which recipes may have none."""
    found = []
    if narrow_gradients(order.scenario):
        found.append("narrow_gradients")
    if overlaps_tensor(order.scenario, order.plan):
        found.append("tensor_overlap")
    return tuple(found)


def _optimizer(order: Order) -> list[tuple[str, object]]:
    """Some recipes have narrow moments and gradients, so that the formats are always said."""
    job = order.scenario.job
    aware = megatron.precision_aware(order.scenario, order.plan)
    moments = megatron.MOMENTS.get(job.optimizer, "fp32")
    return [
        ("optimizer.optimizer", megatron.OPTIMIZERS[job.optimizer]),
        ("optimizer.use_precision_aware_optimizer", _yes(aware)),
        ("optimizer.main_grads_dtype", "fp32"),
        ("optimizer.exp_avg_dtype", moments),
        ("optimizer.exp_avg_sq_dtype", moments),
    ]


def _adapters(job: Job) -> list[tuple[str, object]]:
    if job.task != "lora":
        return []
    return [
        ("peft.dim", job.lora_rank),
        ("peft.dropout", "0.0"),
        ("peft.target_modules", f"[{','.join(TARGETS[job.lora_targets])}]"),
    ]


def _host_memory(plan: Plan) -> list[tuple[str, object]]:
    optimizer, layers = bool(plan.offload & Offload.OPTIMIZER), plan.offload_layers
    pairs: list[tuple[str, object]] = [
        ("optimizer.optimizer_cpu_offload", _yes(optimizer)),
        ("model.cpu_offloading", _yes(layers > 0)),
    ]
    if optimizer:
        pairs.append(("optimizer.optimizer_offload_fraction", "1.0"))
    if layers:
        pairs.append(("model.cpu_offloading_weights", "false"))
        pairs.append(("model.cpu_offloading_num_layers", layers))
    return pairs


def _yes(flag: bool) -> str:
    return "true" if flag else "false"


def _pipeline(order: Order) -> list[tuple[str, object]]:
    plan = order.plan
    if _patterned(order.scenario.model):
        letters = pattern(order.scenario, plan)
        return [
            ("model.hybrid_layer_pattern", f"'{letters}'"),
            ("model.virtual_pipeline_model_parallel_size", "null"),
            ("model.pipeline_model_parallel_layout", "null"),
            *_STAGES_OF_THE_RECIPE,
        ]
    if plan.split is Split.BALANCED or plan.stage_layers:
        layout = megatron.layout_string(order.scenario, plan)
        return [
            ("model.virtual_pipeline_model_parallel_size", "null"),
            ("model.pipeline_model_parallel_layout", f"'{layout}'"),
            *_STAGES_OF_THE_RECIPE,
        ]
    vpp: object = plan.vpp if plan.vpp > 1 else "null"
    return [
        ("model.virtual_pipeline_model_parallel_size", vpp),
        ("model.pipeline_model_parallel_layout", "null"),
        *_STAGES_OF_THE_RECIPE,
    ]


def _recompute(order: Order) -> list[tuple[str, object]]:
    plan = order.plan
    if plan.recompute & Recompute.FULL:
        lettered = _patterned(order.scenario.model)
        num_layers = megatron.recomputed_layers(order.scenario, plan) if lettered else None
        return [
            ("model.recompute_granularity", "full"),
            ("model.recompute_method", "block" if plan.recompute_layers else "uniform"),
            ("model.recompute_num_layers", num_layers or plan.recompute_layers or 1),
        ]
    none = [("model.recompute_method", "null"), ("model.recompute_num_layers", "null")]
    if not plan.recompute:
        return [("model.recompute_granularity", "null"), *none]
    modules = ",".join(megatron.modules(plan.recompute))
    return [
        ("model.recompute_granularity", "selective"),
        ("model.recompute_modules", f"[{modules}]"),
        *none,
    ]


def _program(order: Order) -> Program:
    flags: list[Flag] = [(pair,) for pair in overrides(order)]
    return Program(
        start="torchrun",
        words=(
            '"${MEGATRON_BRIDGE:?set it to a checkout of Megatron-Bridge}'
            '/scripts/training/run_recipe.py"',
            '--recipe "${RECIPE:?set it to the recipe of your model}"',
            *(("--mode lora",) if order.scenario.job.task == "lora" else ()),
        ),
        groups={"OVERRIDES": flags},
        environment=megatron.environment(order),
    )


BRIDGE = Target(
    name="bridge",
    framework=Framework.MEGATRON,
    version="Megatron-Bridge 0.6.2",
    verified=True,
    obstacles=_obstacles,
    program=_program,
    unwritten=_unwritten,
    stacks=("megatron-bridge",),
)
