"""Megatron-Bridge: Hydra overrides of a recipe.

References:
    1. ``scripts/training/run_recipe.py`` of Megatron-Bridge and its page "Using Recipes" (0.6.0).
    2. ``megatron/core/transformer/transformer_config.py`` of 0.19.2, whose fields ``model.*`` has.
"""

from __future__ import annotations

from meshplan.emit import megatron
from meshplan.emit.records import Flag, Obstacle, Order, Program, Target
from meshplan.space.plan import CpComm, Framework, Plan, Recompute, Split

__all__ = ["BRIDGE", "overrides"]

_CP_COMM = {CpComm.P2P: "p2p", CpComm.ALL_GATHER: "all_gather", CpComm.ALL_TO_ALL: "a2a"}
_MODULES = {
    Recompute.CORE_ATTENTION: "core_attn",
    Recompute.NORM: "layernorm",
    Recompute.MLP_ACTIVATION: "moe_act",
    Recompute.MLP: "mlp",
    Recompute.MOE: "moe",
    Recompute.MLA_UP_PROJECTION: "mla_up_proj",
    Recompute.SHARED_EXPERTS: "shared_experts",
}


def _obstacles(order: Order) -> tuple[Obstacle, ...]:
    found = [o for o in megatron.obstacles(order) if o.code not in _RECIPE_KNOWS]
    if order.scenario.job.precision != "bf16":
        numbers = {"precision": order.scenario.job.precision}
        found.append(Obstacle(code="precision", numbers=numbers, model=True))
    return tuple(found)


# The recipe brings the model, so that only the plan has to be expressed.
_RECIPE_KNOWS = (
    "mixer",
    "mixed_attention",
    "bare_block",
    "activation",
    "qk_norm_full",
    "norms",
    "embedding",
)


def overrides(order: Order) -> list[str]:
    """The overrides, ``key=value`` each."""
    plan, job = order.plan, order.scenario.job
    pairs: list[tuple[str, object]] = [
        ("model.tensor_model_parallel_size", plan.tp),
        ("model.sequence_parallel", _yes(plan.sp)),
        ("model.pipeline_model_parallel_size", plan.pp),
        ("model.context_parallel_size", plan.cp),
    ]
    if plan.cp > 1:
        pairs.append(("model.cp_comm_type", _CP_COMM[plan.cp_comm]))
    if order.scenario.model.is_moe:
        pairs.append(("model.expert_model_parallel_size", plan.ep))
        pairs.append(("model.expert_tensor_parallel_size", plan.etp))
    pairs += _pipeline(order)
    pairs += _recompute(plan)
    pairs += [
        ("model.seq_length", job.seq_len),
        ("dataset.seq_length", job.seq_len),
        ("train.micro_batch_size", plan.micro_batch),
        ("train.global_batch_size", job.global_batch),
        ("ddp.use_distributed_optimizer", _yes(plan.zero >= 1)),
        ("ddp.overlap_grad_reduce", _yes(plan.dp * plan.cp > 1)),
        ("ddp.overlap_param_gather", _yes(plan.zero >= 1 and plan.dp * plan.cp > 1)),
        ("ddp.num_distributed_optimizer_instances", plan.dp_replicate),
    ]
    if plan.zero >= 2:
        strategy = "optim_grads" if plan.zero == 2 else "optim_grads_params"
        pairs.append(("ddp.use_megatron_fsdp", "true"))
        pairs.append(("ddp.data_parallel_sharding_strategy", strategy))
    if plan.offload_layers:
        pairs.append(("model.cpu_offloading", "true"))
        pairs.append(("model.cpu_offloading_weights", "false"))
        pairs.append(("model.cpu_offloading_num_layers", plan.offload_layers))
    return [f"{key}={value}" for key, value in pairs]


def _yes(flag: bool) -> str:
    return "true" if flag else "false"


def _pipeline(order: Order) -> list[tuple[str, object]]:
    plan = order.plan
    if plan.split is Split.BALANCED or plan.stage_layers:
        layout = megatron.layout_string(order.scenario, plan)
        return [("model.pipeline_model_parallel_layout", f"'{layout}'")]
    vpp: object = plan.vpp if plan.vpp > 1 else "null"
    return [("model.virtual_pipeline_model_parallel_size", vpp)]


def _recompute(plan: Plan) -> list[tuple[str, object]]:
    if plan.recompute & Recompute.FULL:
        return [
            ("model.recompute_granularity", "full"),
            ("model.recompute_method", "block" if plan.recompute_layers else "uniform"),
            ("model.recompute_num_layers", plan.recompute_layers or 1),
        ]
    if not plan.recompute:
        return [("model.recompute_granularity", "null")]
    modules = ",".join(name for flag, name in _MODULES.items() if plan.recompute & flag)
    return [
        ("model.recompute_granularity", "selective"),
        ("model.recompute_modules", f"[{modules}]"),
    ]


def _program(order: Order) -> Program:
    flags: list[Flag] = [(pair,) for pair in overrides(order)]
    return Program(
        start="torchrun",
        words=(
            '"${MEGATRON_BRIDGE:?set it to a checkout of Megatron-Bridge}'
            '/scripts/training/run_recipe.py"',
            '--recipe "${RECIPE:?set it to the recipe of your model}"',
        ),
        groups={"OVERRIDES": flags},
        environment=megatron.environment(order),
    )


BRIDGE = Target(
    name="bridge",
    framework=Framework.MEGATRON,
    version="Megatron-Bridge 0.6.0",
    verified=False,
    obstacles=_obstacles,
    program=_program,
)
