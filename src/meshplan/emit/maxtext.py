"""MaxText: a YAML config on top of ``base.yml``.

MaxText has no rules of its own here; plans of torchtitan are closest to it, since both shard
everything with FSDP and split stages evenly.

References:
    1. ``maxtext/configs/types.py`` of 0.2.5: names, and what must divide what.
"""

from __future__ import annotations

from typing import Any

from meshplan.emit.bash import comment
from meshplan.emit.job import job_obstacles
from meshplan.emit.records import EmittedFile, Obstacle, Order, Program, Target
from meshplan.emit.yaml import block_yaml
from meshplan.space.plan import Framework, Plan, Recompute, Schedule, Split

__all__ = ["MAXTEXT", "config"]

_FILE = "maxtext.yml"
# Our preset -> MaxText's model_name; other models are described in its own config files.
_MODELS = {
    "llama-2-7b": "llama2-7b",
    "llama-2-13b": "llama2-13b",
    "llama-2-70b": "llama2-70b",
    "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-405b": "llama3.1-405b",
    "mistral-7b": "mistral-7b",
    "mixtral-8x7b": "mixtral-8x7b",
    "mixtral-8x22b": "mixtral-8x22b",
    "deepseek-v3": "deepseek3-671b",
    "gemma-2-9b": "gemma2-9b",
    "gemma-2-27b": "gemma2-27b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
}


def _obstacles(order: Order) -> tuple[Obstacle, ...]:
    plan, job, model = order.plan, order.scenario.job, order.scenario.model
    found: list[Obstacle] = []
    given: dict[str, object]
    if model.name not in _MODELS:
        found.append(Obstacle(code="model_name", numbers={"model": model.name}, model=True))
    found += job_obstacles(job, tasks=("pretrain",), optimizers=("adamw",), precisions=("bf16",))
    if plan.pp > 1 and plan.schedule is Schedule.ONE_F_ONE_B:
        # a scan over the forward pass, whose derivative follows it (maxtext/layers/pipeline.py:945)
        found.append(Obstacle(code="forward_first"))
    looped = plan.schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED)
    if plan.pp > 1 and (not looped or plan.split is not Split.EVEN or plan.stage_layers):
        found.append(Obstacle(code="even_loop"))
    if plan.pp > 1 and plan.num_micro_batches % plan.pp:
        given = {"pp": plan.pp, "num_micro_batches": plan.num_micro_batches}
        found.append(Obstacle(code="micro_batches_of_pp", numbers=given))
    shard = plan.dp_shard if plan.zero else 1
    if shard % plan.ep:
        # experts have an axis of their own in the mesh, which comes out of the sharded replicas
        found.append(Obstacle(code="expert_axis", numbers={"ep": plan.ep, "dp_shard": shard}))
    if plan.zero not in (0, 3):
        # weights are residuals as they are sharded, and gathered again (reference 1)
        found.append(Obstacle(code="gathers_again", numbers={"zero": plan.zero}))
    if plan.offload:
        found.append(Obstacle(code="parameter_offload"))
    return tuple(found)


def config(order: Order) -> dict[str, Any]:
    """The YAML config of a plan."""
    plan, scenario = order.plan, order.scenario
    accumulated = 1 if plan.pp > 1 else plan.num_micro_batches
    # a step is this batch on each device, times devices, times what is accumulated (reference 1)
    per_device = scenario.job.global_batch / (scenario.cluster.num_gpus * accumulated)
    values: dict[str, Any] = {
        "base_config": "base.yml",
        "run_name": "meshplan",
        "model_name": _MODELS[scenario.model.name],
        "hardware": "gpu",
        "dataset_type": "synthetic",
        "steps": 20,
        "dtype": "bfloat16",
        "weight_dtype": "float32",
        "max_target_length": scenario.job.seq_len,
        "per_device_batch_size": int(per_device) if per_device.is_integer() else per_device,
        "gradient_accumulation_steps": accumulated,
        "remat_policy": _remat_policy(plan),
        **_axes(order),
    }
    if plan.pp > 1:
        values |= {
            "num_layers_per_pipeline_stage": scenario.model.num_layers // (plan.pp * plan.vpp),
            "num_pipeline_repeats": plan.vpp,
            "num_pipeline_microbatches": plan.num_micro_batches,
        }
    return values


def _remat_policy(plan: Plan) -> str:
    """What is kept: nothing, outputs of matrix products, or those of attention as well."""
    if plan.recompute & Recompute.FULL:
        return "full"
    return "minimal" if plan.recompute & Recompute.SELECTIVE_OP else "minimal_with_context"


def _axes(order: Order) -> dict[str, int]:
    """Each axis inside a node (``ici``) and across nodes (``dcn``), innermost axis first."""
    plan = order.plan
    left = order.scenario.cluster.gpus_per_node
    axes: dict[str, int] = {}
    for name, degree in _degrees(plan).items():
        inside = _common(degree, left)
        left //= inside
        axes[f"ici_{name}_parallelism"] = inside
        axes[f"dcn_{name}_parallelism"] = degree // inside
    return axes


def _degrees(plan: Plan) -> dict[str, int]:
    tensor = "tensor_sequence" if plan.sp else "tensor"
    shard = plan.dp_shard if plan.zero else 1
    return {
        tensor: plan.tp,
        "context": plan.cp,
        "expert": plan.ep,
        "fsdp": shard // plan.ep,
        "data": plan.dp_replicate if plan.zero else plan.dp,
        "pipeline": plan.pp,
    }


def _common(degree: int, room: int) -> int:
    """The largest part of a degree that fits into what is left of a node."""
    return max(n for n in range(1, min(degree, room) + 1) if degree % n == 0 and room % n == 0)


def _program(order: Order) -> Program:
    text = comment(order.notes) + block_yaml(config(order))
    return Program(
        start="node",
        words=(f'-m maxtext.trainers.pre_train.train "$HERE/{_FILE}"',),
        files=(EmittedFile(name=_FILE, text=text),),
    )


MAXTEXT = Target(
    name="maxtext",
    framework=Framework.TORCHTITAN,
    version="MaxText 0.2.5",
    verified=True,
    obstacles=_obstacles,
    program=_program,
)
