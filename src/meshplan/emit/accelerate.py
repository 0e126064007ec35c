"""Accelerate: the YAML config of FSDP2 with ``parallelism_config``, DDP or DeepSpeed's Ulysses.

References:
    1. ``accelerate/commands/config/config_args.py``, ``commands/launch.py`` and
       ``parallelism_config.py`` of 1.15.0; ``utils/ao.py`` for fp8.
"""

from __future__ import annotations

from typing import Any

from meshplan.emit.bash import comment
from meshplan.emit.hugging_face import (
    hugging_face_flags,
    hugging_face_obstacles,
    training_script,
)
from meshplan.emit.records import EmittedFile, Obstacle, Order, Program, Target
from meshplan.emit.yaml import block_yaml
from meshplan.space.plan import CpComm, Framework, Offload, Plan, Recompute

__all__ = ["ACCELERATE", "config"]

_FILE = "accelerate.yaml"


def _ulysses(plan: Plan) -> bool:
    return plan.cp > 1 and plan.cp_comm is CpComm.ALL_TO_ALL


def _obstacles(order: Order) -> tuple[Obstacle, ...]:
    plan = order.plan
    found = list(hugging_face_obstacles(order))
    if not plan.zero and (plan.tp > 1 or plan.cp > 1):
        # the launcher takes a parallelism_config with FSDP2 alone (commands/launch.py:1205)
        found.append(Obstacle(code="needs_fsdp", numbers={"tp": plan.tp, "cp": plan.cp}))
    if order.scenario.job.precision == "fp8" and (plan.tp > 1 or _ulysses(plan)):
        # torchao turns whole linear layers into fp8 ones; behind DeepSpeed it is never called
        found.append(Obstacle(code="fp8_whole", numbers={"tp": plan.tp, "cp": plan.cp}))
    return tuple(found)


def config(order: Order) -> dict[str, Any]:
    """The YAML config of a plan."""
    plan, cluster = order.plan, order.scenario.cluster
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(order),
        "mixed_precision": order.scenario.job.precision,
        "num_machines": cluster.num_nodes,
        "num_processes": cluster.num_gpus,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
    }
    if order.scenario.job.precision == "fp8":
        # parameters are gathered in 16 bits, as the plan counts them
        values["fp8_config"] = {
            "backend": "AO",
            "enable_fsdp_float8_all_gather": False,
            "pad_inner_dim": True,
        }
    if _ulysses(plan):
        values["deepspeed_config"] = _deepspeed(order)
        values["parallelism_config"] = _sizes(plan, sp_size=plan.cp, sp_backend="deepspeed")
    elif plan.zero:
        values["fsdp_config"] = _fsdp(plan)
        if max(cluster.num_gpus, plan.tp, plan.cp, plan.dp_shard) > 1:
            values["parallelism_config"] = _sizes(plan, cp_size=plan.cp)
        if plan.cp > 1:
            ring = plan.cp_comm is CpComm.P2P
            key = "parallelism_config_cp_comm_strategy"
            values["parallelism_config"][key] = "alltoall" if ring else "allgather"
    return values


def _distributed_type(order: Order) -> str:
    if _ulysses(order.plan):
        return "DEEPSPEED"
    if order.plan.zero:
        return "FSDP"
    return "MULTI_GPU" if order.scenario.cluster.num_gpus > 1 else "NO"


def _sizes(plan: Plan, **others: object) -> dict[str, Any]:
    sizes = {
        "dp_replicate_size": plan.dp_replicate,
        "dp_shard_size": plan.dp_shard,
        "tp_size": plan.tp,
        **others,
    }
    return {f"parallelism_config_{name}": value for name, value in sizes.items()}


def _fsdp(plan: Plan) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": plan.zero == 3,
        "fsdp_activation_checkpointing": bool(plan.recompute & Recompute.FULL),
        "fsdp_offload_params": bool(plan.offload & Offload.PARAMETERS),
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
    }


def _deepspeed(order: Order) -> dict[str, Any]:
    plan = order.plan
    host = {True: "cpu", False: "none"}
    return {
        "zero_stage": plan.zero,
        "gradient_accumulation_steps": plan.num_micro_batches,
        "offload_optimizer_device": host[bool(plan.offload & Offload.OPTIMIZER)],
        "offload_param_device": host[bool(plan.offload & Offload.PARAMETERS)],
        "zero3_init_flag": plan.zero == 3,
    }


def _program(order: Order) -> Program:
    text = comment(order.notes) + block_yaml(config(order))
    flags = hugging_face_flags(order)
    if not _ulysses(order.plan) and order.plan.zero:
        # FSDP2 recomputes by the config file; both at once would do it twice
        again = "--gradient_checkpointing"
        flags = [(again, "false") if flag[0] == again else flag for flag in flags]
    return Program(
        start="accelerate",
        words=(training_script(order),),
        groups={"TRAINING": flags},
        files=(EmittedFile(name=_FILE, text=text),),
        config=_FILE,
    )


ACCELERATE = Target(
    name="accelerate",
    framework=Framework.ACCELERATE,
    version="accelerate 1.15.0",
    verified=True,
    obstacles=_obstacles,
    program=_program,
)
