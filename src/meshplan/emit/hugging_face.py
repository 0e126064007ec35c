"""What targets that run ``transformers`` models share: TrainingArguments and what they cannot say.

References:
    1. ``transformers/training_args.py`` of 5.24.
"""

from __future__ import annotations

from meshplan.emit.job import job_obstacles
from meshplan.emit.records import Flag, Obstacle, Order
from meshplan.space.plan import Recompute

__all__ = ["hugging_face_flags", "hugging_face_obstacles"]

_OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}


def hugging_face_obstacles(order: Order) -> tuple[Obstacle, ...]:
    """What TrainingArguments have no word for."""
    return tuple(job_obstacles(order.scenario.job, optimizers=_OPTIMIZERS))


def hugging_face_flags(order: Order) -> list[Flag]:
    """Options of TrainingArguments that follow from the plan."""
    plan, job = order.plan, order.scenario.job
    flags: list[Flag] = [
        ("--per_device_train_batch_size", str(plan.micro_batch)),
        ("--gradient_accumulation_steps", str(plan.num_micro_batches)),
        ("--optim", _OPTIMIZERS[job.optimizer]),
    ]
    if job.precision in ("bf16", "fp16"):
        flags.append((f"--{job.precision}", "true"))
    if plan.recompute & Recompute.FULL:
        flags.append(("--gradient_checkpointing", "true"))
    return flags
