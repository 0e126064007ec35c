"""DeepSpeed JSON, Accelerate YAML and the arguments of ``transformers`` beside them.

References:
    1. ``deepspeed/runtime/config.py`` of 0.19.8.
    2. ``accelerate/commands/config/config_args.py``, ``parallelism_config.py`` of 1.15.0.
    3. ``transformers/training_args.py`` of 5.24.
    4. ``trl/trainer/model_config.py`` of 1.16.0.
    5. ``src/llamafactory/hparams`` of LLaMA-Factory: ``finetuning_type``, ``lora_target``.
"""

from __future__ import annotations

from dataclasses import replace

from meshplan.check.documents import Values
from meshplan.check.foreign import foreign_keys
from meshplan.check.megatron import LAUNCHER
from meshplan.check.options import Option, whole
from meshplan.check.records import Reading, Setting
from meshplan.check.shell_words import UNKNOWN
from meshplan.emit.hugging_face import PROJECTIONS
from meshplan.errors import ProblemList
from meshplan.space.plan import CpComm, Framework, Offload, Recompute

__all__ = ["read_accelerate", "read_arguments", "read_deepspeed"]

_DEEPSPEED = {
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "num_micro_batches",
    "tensor_parallel.autotp_size": "tp",
    "sequence_parallel_size": "cp",
    "expert_parallel.autoep_size": "ep",
}
_ARGUMENTS = {
    **LAUNCHER,
    "num-processes": "num_gpus",
    "num-machines": "num_nodes",
    "per-device-train-batch-size": "micro_batch",
    "gradient-accumulation-steps": "num_micro_batches",
    "max-seq-length": "seq_len",
    "model-max-length": "seq_len",
    "max-length": "seq_len",
    "cutoff-len": "seq_len",
}
_TRUE = ("", "true", "1", "yes", "True")
# How the names of optimizers start, the longer ones first (reference 3).
_OPTIMIZERS = (
    ("adamw_bnb_8bit", "adamw8bit"),
    ("adamw_8bit", "adamw8bit"),
    ("paged_adamw_8bit", "adamw8bit"),
    ("adamw", "adamw"),
    ("adafactor", "adafactor"),
    ("sgd", "sgd"),
)


def read_deepspeed(values: Values) -> Reading:
    """Read a DeepSpeed config."""
    settings = values.counts(_DEEPSPEED)
    stage = values.raw("zero_optimization.stage")
    if stage is None:
        settings["zero"] = Setting(value=0, where=values.source.name, spelled="-")
    elif stage in (0, 1, 2, 3) and not isinstance(stage, bool):
        settings["zero"] = values.setting("zero_optimization.stage", stage)
    else:
        values.problems.add(
            "check_unknown_value",
            where=values.where("zero_optimization.stage"),
            value=str(stage)[:40],
            allowed=(0, 1, 2, 3),
            option="zero_optimization.stage",
        )
    both = [p for p in ("bf16", "fp16") if values.raw(f"{p}.enabled") is True]
    if len(both) == 2:
        values.problems.add(
            "check_both_on",
            where=values.where("fp16"),
            value="fp16.enabled",
            other="bf16.enabled",
        )
    elif both:
        settings["precision"] = values.setting(f"{both[0]}.enabled", both[0])
    offload = Offload.NONE
    for key, part in (("optimizer", Offload.OPTIMIZER), ("param", Offload.PARAMETERS)):
        if values.raw(f"zero_optimization.offload_{key}.device") in ("cpu", "nvme"):
            offload |= part
            settings["offload"] = values.setting(f"zero_optimization.offload_{key}", offload)
    ratio = values.raw("zero_optimization.offload_optimizer.ratio")
    if isinstance(ratio, float) and 0.0 <= ratio < 1.0 and "offload" in settings:
        key = "zero_optimization.offload_optimizer.ratio"
        settings["offload_fraction"] = values.setting(key, ratio)
    foreign = foreign_keys(values, "deepspeed")
    return Reading(framework=Framework.DEEPSPEED, settings=settings, foreign=foreign)


# The same data parallelism on accelerators of other makers (accelerate/utils/dataclasses.py).
_OTHER_DEVICES = ("multi_hpu", "multi_mlu", "multi_musa", "multi_npu", "multi_sdaa", "multi_xpu")


def read_accelerate(values: Values) -> Reading:
    """Read an Accelerate config."""
    settings = values.counts({"num_processes": "num_gpus", "num_machines": "num_nodes"})
    kinds = {
        "fsdp": Framework.ACCELERATE,
        "multi_gpu": Framework.ACCELERATE,
        **dict.fromkeys(_OTHER_DEVICES, Framework.ACCELERATE),
        "no": Framework.ACCELERATE,
        "deepspeed": Framework.DEEPSPEED,
        "megatron_lm": Framework.MEGATRON,
    }
    framework = values.name("distributed_type", kinds) or Framework.ACCELERATE
    precision = values.name(
        "mixed_precision", {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "no": ""}
    )
    if precision:
        settings["precision"] = values.setting("mixed_precision", precision)
    prefix = "parallelism_config.parallelism_config_"
    sizes = {f"{prefix}{n}_size": n for n in ("tp", "cp", "dp_shard", "dp_replicate")}
    settings |= values.counts(sizes)
    comm = {"allgather": CpComm.ALL_GATHER, "alltoall": CpComm.P2P}
    if (named := values.name(f"{prefix}cp_comm_strategy", comm)) is not None:
        settings["cp_comm"] = values.setting(f"{prefix}cp_comm_strategy", named)
    ulysses = values.count(f"{prefix}sp_size")
    if ulysses and ulysses > 1:
        framework = Framework.ACCELERATE
        settings["cp"] = values.setting(f"{prefix}sp_size", ulysses)
        settings["cp_comm"] = values.setting(f"{prefix}sp_size", CpComm.ALL_TO_ALL)
    if str(values.raw("distributed_type")).upper() == "FSDP":
        settings |= _fsdp(values)
    elif framework is Framework.DEEPSPEED or ulysses:
        settings |= _deepspeed_plugin(values)
    else:
        settings["zero"] = Setting(value=0, where=values.source.name, spelled="-")
    _shared_by_machines(settings, values.problems)
    foreign = foreign_keys(values, "accelerate")
    return Reading(framework=framework, settings=settings, foreign=foreign)


def _shared_by_machines(settings: dict[str, Setting], problems: ProblemList) -> None:
    """Each machine starts as many processes (accelerate/utils/launch.py), so that none is left."""
    processes, machines = settings.get("num_gpus"), settings.get("num_nodes")
    if (
        processes is None
        or machines is None
        or not int(str(processes.value)) % int(str(machines.value))
    ):
        return
    problems.add(
        "check_contradiction",
        where=processes.where,
        value=processes.value,
        option=processes.spelled,
        other=machines.place,
        other_value=machines.value,
    )


def _fsdp(values: Values) -> dict[str, Setting]:
    """Both generations of keys: ``fsdp_sharding_strategy`` and ``fsdp_reshard_after_forward``."""
    found: dict[str, Setting] = {}
    strategies = {
        "full_shard": 3,
        "shard_grad_op": 2,
        "no_shard": 0,
        "hybrid_shard": 3,
        "hybrid_shard_zero2": 2,
        "1": 3,
        "2": 2,
        "3": 0,
        "4": 3,
        "5": 2,
    }
    reshard = values.raw("fsdp_config.fsdp_reshard_after_forward")
    if isinstance(reshard, bool):
        found["zero"] = values.setting("fsdp_config.fsdp_reshard_after_forward", 2 + reshard)
    else:
        key = (
            "fsdp_config.fsdp_reshard_after_forward"
            if reshard is not None
            else "fsdp_config.fsdp_sharding_strategy"
        )
        zero = values.name(key, strategies)
        found["zero"] = values.setting(key, 3 if zero is None else zero)
        if str(values.raw(key)).lower() in ("hybrid_shard", "hybrid_shard_zero2", "4", "5"):
            found |= _within_a_machine(values, key)
    version = values.raw("fsdp_config.fsdp_version")
    if version not in (None, 1, 2):
        values.problems.add(
            "check_unknown_value",
            where=values.where("fsdp_version"),
            value=str(version)[:20],
            allowed=(1, 2),
            option="fsdp_config.fsdp_version",
        )
    if values.raw("fsdp_config.fsdp_activation_checkpointing") is True:
        key = "fsdp_config.fsdp_activation_checkpointing"
        found["recompute"] = values.setting(key, Recompute.FULL)
    if values.raw("fsdp_config.fsdp_offload_params") is True:
        both = Offload.OPTIMIZER | Offload.PARAMETERS
        found["offload"] = values.setting("fsdp_config.fsdp_offload_params", both)
    return found


def _within_a_machine(values: Values, key: str) -> dict[str, Setting]:
    """Hybrid sharding: shards over the processes of one machine, replicas over machines."""
    processes, machines = values.count("num_processes"), values.count("num_machines") or 1
    if processes is None or processes % machines:
        return {}
    return {
        "dp_shard": values.setting(key, processes // machines),
        "dp_replicate": values.setting(key, machines),
    }


def _deepspeed_plugin(values: Values) -> dict[str, Setting]:
    found = values.counts({"deepspeed_config.gradient_accumulation_steps": "num_micro_batches"})
    stage = values.name("deepspeed_config.zero_stage", {str(n): n for n in range(4)})
    if stage is not None:
        found["zero"] = values.setting("deepspeed_config.zero_stage", stage)
    offload = Offload.NONE
    for key, part in (("optimizer", Offload.OPTIMIZER), ("param", Offload.PARAMETERS)):
        name = f"deepspeed_config.offload_{key}_device"
        if values.raw(name) in ("cpu", "nvme"):
            offload |= part
            found["offload"] = values.setting(name, offload)
    return found


def read_arguments(options: list[Option], *, file: str, problems: ProblemList) -> Reading:
    """Read arguments of ``transformers`` and of the launcher before them."""
    settings: dict[str, Setting] = {}
    model: dict[str, Setting] = {}
    unknown: list[Setting] = []
    framework = Framework.ACCELERATE
    for option in options:
        if whole(
            option,
            file=file,
            table=_ARGUMENTS,
            settings=settings,
            unknown=unknown,
            problems=problems,
        ):
            continue
        at = Setting(value=None, where=f"{file}:{option.line}", spelled=option.spelled)
        if option.name in ("deepspeed", "deepspeed-config"):
            framework = Framework.DEEPSPEED
        elif option.name in ("bf16", "fp16") and option.value in _TRUE:
            settings["precision"] = replace(at, value=option.name)
        elif option.name == "gradient-checkpointing" and option.value in _TRUE:
            settings["recompute"] = replace(at, value=Recompute.FULL)
        elif option.name == "model-name-or-path" and UNKNOWN not in option.value:
            model["name"] = replace(at, value=option.value)
        elif option.name == "optim":
            _optimizer(option, at, settings, unknown)
        else:
            _adapters(option, at, settings)
    return Reading(
        framework=framework,
        settings=settings,
        model=model,
        unknown=tuple(unknown),
    )


def _optimizer(
    option: Option, at: Setting, settings: dict[str, Setting], unknown: list[Setting]
) -> None:
    """The optimizer by its name in transformers (reference 3)."""
    name = next((ours for start, ours in _OPTIMIZERS if option.value.startswith(start)), None)
    if name is None or UNKNOWN in option.value:
        unknown.append(replace(at, value=f"--optim {option.value}".replace(UNKNOWN, "?")))
    else:
        settings["optimizer"] = replace(at, value=name)


def _adapters(option: Option, at: Setting, settings: dict[str, Setting]) -> None:
    """Adapters, in the words of TRL and of LLaMA-Factory (references 4 and 5)."""
    name, value = option.name, option.value
    narrow = settings.get("task")
    if (name == "use-peft" and value in _TRUE) or (name, value) == ("finetuning-type", "lora"):
        settings.setdefault("task", replace(at, value="lora"))
    elif (name == "load-in-4bit" and value in _TRUE) or (name, value) == ("quantization-bit", "4"):
        settings["task"] = replace(at, value="qlora")
    elif (name, value) == ("finetuning-type", "full") and narrow is None:
        settings["task"] = replace(at, value="full_finetune")
    elif name in ("lora-r", "lora-rank") and value.isdecimal() and 0 < int(value) < 10**6:
        settings["lora_rank"] = replace(at, value=int(value))
    elif name in ("lora-target-modules", "lora-target"):
        names = {part.strip() for word in option.values for part in word.split(",")}
        if (part := _adapted(names)) is not None:
            settings["lora_targets"] = replace(at, value=part)


def _adapted(names: set[str]) -> str | None:
    """The smallest part of a block that has all the layers named."""
    attention, network = set(PROJECTIONS["attention"]), set(PROJECTIONS["mlp"])
    parts = {"attention": attention, "mlp": network, "all": attention | network}
    if names & {"all-linear", "all"}:
        return "all"
    return next((part for part, known in parts.items() if names <= known), None)
