"""What targets that run ``transformers`` models share: TrainingArguments and what they cannot say.

Adapters come from TRL, whose ``ModelConfig`` stands beside the arguments in its scripts.

References:
    1. ``transformers/training_args.py`` of 5.24.
    2. ``trl/trainer/model_config.py`` and ``trl/trainer/utils.py`` of 1.16.0.
    3. ``transformers/models/*/modeling_*.py`` of 5.24 for the names of projections.
"""

from __future__ import annotations

from meshplan.emit.job import WHOLE_MODEL, job_obstacles
from meshplan.emit.records import Flag, Obstacle, Order
from meshplan.inputs.job import ADAPTERS
from meshplan.space.plan import Recompute

__all__ = [
    "ADAPTED_FAMILIES",
    "PROJECTIONS",
    "hugging_face_flags",
    "hugging_face_obstacles",
    "training_script",
]

_OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
# Projections by part of a block, and the families that call them so (reference 3).
PROJECTIONS = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
ADAPTED_FAMILIES = {
    "dense": frozenset(
        [
            "cohere",
            "exaone4",
            "gemma",
            "gemma2",
            "gemma3_text",
            "granite",
            "llama",
            "mistral",
            "olmo2",
            "qwen2",
            "qwen3",
            "seed_oss",
            "smollm3",
            "stablelm",
        ]
    ),
    "moe": frozenset(
        [
            "ernie4_5_moe",
            "glm4_moe",
            "gpt_oss",
            "granitemoe",
            "hunyuan_v1_moe",
            "minimax_m2",
            "mixtral",
            "olmoe",
            "phimoe",
            "qwen2_moe",
            "qwen3_moe",
        ]
    ),
}


def hugging_face_obstacles(order: Order) -> tuple[Obstacle, ...]:
    """What TrainingArguments, and TRL's arguments for adapters, have no word for."""
    job, plan = order.scenario.job, order.plan
    tasks = (*WHOLE_MODEL, *ADAPTERS)
    found = job_obstacles(job, optimizers=_OPTIMIZERS, tasks=tasks, names_attention=True)
    if job.task in ADAPTERS:
        model = order.scenario.model
        if model.is_moe and job.lora_targets != "attention":
            # the experts of a layer are one parameter, which is no linear layer
            found.append(Obstacle(code="adapters_on_experts", model=True))
        named = ADAPTED_FAMILIES["moe" if model.is_moe else "dense"]
        if job.lora_targets != "all" and model.family not in named:
            targets: dict[str, object] = {"targets": job.lora_targets, "family": model.family}
            found.append(Obstacle(code="adapter_targets", numbers=targets, model=True))
        if plan.tp > 1:
            found.append(Obstacle(code="adapters_are_whole", numbers={"tp": plan.tp}))
    return tuple(found)


def training_script(order: Order, *, also: str = "") -> str:
    """The reader's own program, as a word of a shell; ``also`` is a module that it has to use."""
    reads = "transformers.TrainingArguments"
    if order.scenario.job.task in ADAPTERS:
        reads = "the ModelConfig of TRL, such as trl/scripts/sft.py"
    if also:
        reads = f"{reads} and uses {also}"
    return f'"${{TRAIN_SCRIPT:?set it to a script that reads {reads}}}"'


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
    # said either way, since scripts differ in what they take for granted
    flags.append(("--gradient_checkpointing", _yes(bool(plan.recompute & Recompute.FULL))))
    return flags + _adapter_flags(order)


def _adapter_flags(order: Order) -> list[Flag]:
    """Adapters beside weights that are kept in 16 or, with their scales quantized too, 4 bits."""
    job = order.scenario.job
    if job.task not in ADAPTERS:
        return []
    flags: list[Flag] = [
        ("--use_peft", "true"),
        ("--lora_r", str(job.lora_rank)),
        ("--lora_target_modules", *PROJECTIONS.get(job.lora_targets, ("all-linear",))),
        ("--lora_dropout", "0.0"),
        ("--dtype", "float16" if job.precision == "fp16" else "bfloat16"),
    ]
    if job.task == "qlora":
        flags += [
            ("--load_in_4bit", "true"),
            ("--bnb_4bit_quant_type", "nf4"),
            ("--use_bnb_nested_quant", "true"),
        ]
    return flags


def _yes(flag: bool) -> str:
    return "true" if flag else "false"
