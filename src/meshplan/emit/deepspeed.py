"""DeepSpeed: the JSON config, and the arguments of ``transformers`` that must agree with it.

References:
    1. ``deepspeed/runtime/config.py`` and ``deepspeed/runtime/zero/config.py`` of 0.19.8.
    2. ``deepspeed/module_inject/auto_ep_presets`` for the models whose experts it can spread.
"""

from __future__ import annotations

import json
from typing import Any

from meshplan.emit.bash import visible
from meshplan.emit.hugging_face import (
    hugging_face_flags,
    hugging_face_obstacles,
    training_script,
)
from meshplan.emit.records import EmittedFile, Obstacle, Order, Program, Target, once
from meshplan.space.plan import Framework, Offload, Plan

__all__ = ["DEEPSPEED", "config", "written"]

_FILE = "deepspeed.json"
# model_type -> preset of AutoEP (reference 2)
_EXPERT_PRESETS = {
    "mixtral": "mixtral",
    "qwen3_moe": "qwen3_moe",
    "qwen3_5_moe": "qwen3_5_moe",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "minimax_m3": "minimax_m3",
}


def _obstacles(order: Order) -> tuple[Obstacle, ...]:
    plan, model = order.plan, order.scenario.model
    found = list(hugging_face_obstacles(order))
    if plan.pp > 1:
        found.append(Obstacle(code="pipeline_is_code", numbers={"pp": plan.pp}))
    if plan.ep > 1 and model.family not in _EXPERT_PRESETS:
        numbers = {"family": model.family, "presets": ", ".join(sorted(_EXPERT_PRESETS))}
        found.append(Obstacle(code="no_expert_preset", numbers=numbers))
    return once(found)


def config(order: Order) -> dict[str, Any]:
    """The JSON config of a plan, without its head."""
    plan, job = order.plan, order.scenario.job
    values: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_micro_batches,
        job.precision: {"enabled": True},
        "zero_optimization": _zero(plan),
        "gradient_clipping": 1.0,
    }
    if plan.offload & Offload.OPTIMIZER:
        # DeepSpeed makes its own CPU Adam; transformers fills in what is "auto"
        names = ("lr", "betas", "eps", "weight_decay")
        values["optimizer"] = {"type": "AdamW", "params": dict.fromkeys(names, "auto")}
    if plan.tp > 1:
        values["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.cp > 1:
        values["sequence_parallel_size"] = plan.cp
    if plan.ep > 1:
        values["expert_parallel"] = {
            "enabled": True,
            "autoep_size": plan.ep,
            "preset_model": _EXPERT_PRESETS[order.scenario.model.family],
        }
        if plan.etp > 1:
            values["expert_parallel"]["expert_tensor_parallel_size"] = plan.etp
    return values


def _zero(plan: Plan) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": plan.zero}
    if plan.zero:
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    host = {"device": "cpu", "pin_memory": True}
    if plan.offload & Offload.OPTIMIZER:
        zero["offload_optimizer"] = dict(host)
    if plan.offload & Offload.PARAMETERS:
        zero["offload_param"] = dict(host)
    return zero


def written(order: Order) -> dict[str, Any]:
    """The config as it is written.

    The arguments of transformers hold the batch against the micro-batches of all GPUs, whether they
    share sequences or not (``integrations/deepspeed.py``), so that it is left to follow where
    they do.
    """
    values = config(order)
    if order.plan.tp * order.plan.cp > 1:
        del values["train_batch_size"]
    return values


def _program(order: Order) -> Program:
    # JSON has no comments; DeepSpeed ignores keys that it does not know at the top level
    text = json.dumps(
        {"_about": [visible(note) for note in order.notes], **written(order)},
        indent=2,
        ensure_ascii=False,
    )
    also = "deepspeed.runtime.sequence_parallel.ulysses_sp" if order.plan.cp > 1 else ""
    return Program(
        start="torchrun",
        words=(
            training_script(order, also=also),
            f'--deepspeed "$HERE/{_FILE}"',
        ),
        groups={"TRAINING": hugging_face_flags(order)},
        files=(EmittedFile(name=_FILE, text=text + "\n"),),
    )


DEEPSPEED = Target(
    name="deepspeed",
    framework=Framework.DEEPSPEED,
    version="deepspeed 0.19.8",
    verified=True,
    obstacles=_obstacles,
    program=_program,
)
