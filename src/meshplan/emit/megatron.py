"""Megatron-LM: flags and environment of ``pretrain_gpt.py`` and ``pretrain_hybrid.py``.

References:
    1. ``megatron/training/arguments.py`` of megatron-core 0.19.2.
    2. ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` for layout strings.
"""

from __future__ import annotations

from meshplan.emit.job import job_obstacles
from meshplan.emit.megatron_behaviour import (
    dispatcher,
    narrow_gradients,
    overlap_flags,
    recipe_of_fp8,
    unwritten,
)
from meshplan.emit.megatron_hybrid import is_hybrid, layers_per_block, pattern
from meshplan.emit.megatron_model import model_flags, model_obstacles
from meshplan.emit.records import Flag, Obstacle, Order, Program, Target
from meshplan.emit.stages import virtual_stages
from meshplan.inputs.load.switches import switches_of
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.space.plan import CpComm, Framework, Offload, Plan, Recompute, Split

__all__ = [
    "CP_COMM",
    "MEGATRON",
    "MOMENTS",
    "OPTIMIZERS",
    "VERSION",
    "environment",
    "flag_groups",
    "layout_string",
    "modules",
    "obstacles",
    "precision_aware",
    "program",
    "recomputed_layers",
    "switch_flags",
    "switches",
]

VERSION = "megatron-core 0.19.2"

OPTIMIZERS = {
    "adamw": "adam",
    "adamw16bit": "adam",
    "adamw8bit": "adam",
    "sgd": "sgd",
    "muon": "muon",
}
MOMENTS = {"adamw16bit": "bf16", "adamw8bit": "fp8"}
"""Number format of narrow moments, which the precision-aware optimizer keeps."""
CP_COMM = {CpComm.P2P: "p2p", CpComm.ALL_GATHER: "all_gather", CpComm.ALL_TO_ALL: "a2a"}
_MODULES = {
    Recompute.CORE_ATTENTION: "core_attn",
    Recompute.NORM: "layernorm",
    Recompute.MLP_ACTIVATION: "moe_act",
    Recompute.MLP: "mlp",
    Recompute.MOE: "moe",
    Recompute.MLA_UP_PROJECTION: "mla_up_proj",
    Recompute.SHARED_EXPERTS: "shared_experts",
}
_PRECISION: dict[str, list[Flag]] = {
    "bf16": [("--bf16",)],
    "fp16": [("--fp16",)],
    "fp8": [("--bf16",), ("--fp8-format", "hybrid")],
    "mxfp8": [("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")],
    "nvfp4": [("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")],
}
# A setting that a stack may bring as well, whose flag is written where either does.
_BY_STACK = ("bf16-gradients",)
# Settings whose flags follow from what times count on, whether a setting or the stack says it.
_FOLLOWING = ("alltoall", "blockwise", "delayed", "flex", "tensorwise")
# Blackwell needs no single hardware queue to order communication before compute (reference 1).
_ONE_QUEUE_UNTIL = ("volta", "turing", "ampere", "ada", "hopper")


def obstacles(order: Order) -> tuple[Obstacle, ...]:
    """What Megatron-LM has no flag for."""
    job = order.scenario.job
    found = list(model_obstacles(order.scenario.model))
    numbers: dict[str, object]
    positions = order.scenario.model.num_positions
    if positions and job.seq_len > positions:
        numbers = {"num_positions": positions, "seq_len": job.seq_len}
        found.append(Obstacle(code="positions", numbers=numbers, model=True))
    found += job_obstacles(job, optimizers=OPTIMIZERS, names_attention=True)
    if "fused-loss" in split_variant(order.scenario.variant)[1]:
        # "disabled due to stability issues" (reference 1)
        found.append(Obstacle(code="fused_loss", model=True))
    if missing := _without_flags(order.scenario):
        # times count these, so that files without them are another run
        numbers = {"options": ", ".join(missing)}
        found.append(Obstacle(code="settings", numbers=numbers, model=True))
    if order.plan.recompute & Recompute.FULL and layers_per_block(order.scenario.model) is None:
        # of blocks of one and of two layers no number of layers is so many blocks
        found.append(Obstacle(code="uneven_blocks"))
    if order.plan.offload & Offload.PARAMETERS:
        found.append(Obstacle(code="parameter_offload"))
    return tuple(found)


def switches(scenario: Scenario) -> tuple[str, ...]:
    """Settings of the variant that are off unless the files say otherwise."""
    return tuple(name for name in split_variant(scenario.variant)[1] if name not in _FOLLOWING)


def _without_flags(scenario: Scenario) -> list[str]:
    """Settings of the variant that this model has no options for."""
    chosen, experts = switches(scenario), scenario.model.is_moe
    return [
        switch.name
        for switch in switches_of("megatron")
        if switch.name in chosen and switch.flags and not switch.has_flags_for(experts=experts)
    ]


def switch_flags(scenario: Scenario) -> list[Flag]:
    """Options of the settings of the variant; what two of them name together stands once."""
    values: dict[str, dict[str, None]] = {}
    chosen = switches(scenario)
    for switch in switches_of("megatron"):
        if switch.name in chosen and switch.name not in _BY_STACK:
            for flag in switch.flags:
                name, *own = flag.split()
                values.setdefault(name, {}).update(dict.fromkeys(own))
    return [(name, *own) for name, own in values.items()]


def environment(order: Order) -> dict[str, str]:
    """Environment variables that Megatron-LM checks for."""
    plan = order.plan
    old = order.scenario.cluster.device.architecture in _ONE_QUEUE_UNTIL
    if old and plan.zero < 2 and (plan.tp > 1 or plan.cp > 1):
        # an exchange that overlaps goes before the traffic of TP and CP (reference 1)
        many = "overlapped-exchange" in switches(order.scenario)
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "32" if many else "1"}
    return {}


def flag_groups(order: Order) -> dict[str, list[Flag]]:
    """All flags by what they describe: model, parallelism, memory, batch, numbers."""
    scenario, plan = order.scenario, order.plan
    return {
        "MODEL": model_flags(scenario.model),
        "PARALLEL": _parallel_flags(scenario, plan) + _data_parallel_flags(scenario, plan),
        "MEMORY": _memory_flags(scenario, plan),
        "BATCH": _batch_flags(scenario, plan),
        "NUMBERS": _number_flags(scenario, plan),
    }


def _parallel_flags(scenario: Scenario, plan: Plan) -> list[Flag]:
    flags: list[Flag] = [
        ("--tensor-model-parallel-size", str(plan.tp)),
        ("--pipeline-model-parallel-size", str(plan.pp)),
        ("--context-parallel-size", str(plan.cp)),
    ]
    if plan.sp:
        flags.append(("--sequence-parallel",))
    if plan.cp > 1:
        flags.append(("--cp-comm-type", CP_COMM[plan.cp_comm]))
    if scenario.model.is_moe or plan.ep > 1:
        flags.append(("--expert-model-parallel-size", str(plan.ep)))
        flags.append(("--expert-tensor-parallel-size", str(plan.etp)))
        kind, backend = dispatcher(scenario, plan)
        flags.append(("--moe-token-dispatcher-type", kind))
        if backend:
            flags.append(("--moe-flex-dispatcher-backend", backend))
    if is_hybrid(scenario.model):
        flags.append(("--hybrid-layer-pattern", pattern(scenario, plan)))
    elif plan.split is Split.BALANCED or plan.stage_layers:
        flags.append(("--pipeline-model-parallel-layout", layout_string(scenario, plan)))
    elif plan.vpp > 1:
        flags.append(("--num-virtual-stages-per-pipeline-rank", str(plan.vpp)))
    return flags


def layout_string(scenario: Scenario, plan: Plan) -> str:
    """The layers of each virtual stage in Megatron-LM's notation, such as ``Et*4|t*5|t*5|t*4L``."""
    stages = []
    for chunk in virtual_stages(scenario, plan):
        layers = f"t*{chunk.num_layers}" if chunk.num_layers > 1 else "t" * chunk.num_layers
        mtp = "m" * len(scenario.model.mtp_layers) if chunk.has_head else ""
        text = layers + mtp + ("L" if chunk.has_head else "")
        stages.append(("E" if chunk.has_embedding else "") + text)
    return "|".join(stages)


def precision_aware(scenario: Scenario, plan: Plan) -> bool:
    """Whether the optimizer is the precision-aware one, which has to be a distributed one."""
    return scenario.job.optimizer in MOMENTS or bool(plan.offload & Offload.OPTIMIZER)


def _data_parallel_flags(scenario: Scenario, plan: Plan) -> list[Flag]:
    flags: list[Flag] = []
    if plan.zero >= 1 or precision_aware(scenario, plan):
        flags.append(("--use-distributed-optimizer",))
    if plan.zero >= 2:
        strategy = "optim_grads" if plan.zero == 2 else "optim_grads_params"
        flags.append(("--use-megatron-fsdp",))
        flags.append(("--data-parallel-sharding-strategy", strategy))
        flags.append(("--ckpt-format", "fsdp_dtensor"))
    flags += overlap_flags(scenario, plan)
    if plan.dp_replicate > 1:
        flags.append(("--num-distributed-optimizer-instances", str(plan.dp_replicate)))
    return flags


def modules(mode: Recompute) -> list[str]:
    """Names of the parts of a block that are recomputed."""
    return [name for part, name in _MODULES.items() if mode & part]


def recomputed_layers(scenario: Scenario, plan: Plan) -> int:
    """Layers that are recomputed whole, where each letter of a hybrid is one."""
    each = (layers_per_block(scenario.model) or 1) if is_hybrid(scenario.model) else 1
    return each * (plan.recompute_layers or 1)


def _memory_flags(scenario: Scenario, plan: Plan) -> list[Flag]:
    flags: list[Flag] = []
    if plan.recompute & Recompute.FULL:
        # "block" recomputes the first layers of each stage, "uniform" all of them one by one
        method = "block" if plan.recompute_layers else "uniform"
        flags.append(("--recompute-granularity", "full"))
        flags.append(("--recompute-method", method))
        flags.append(("--recompute-num-layers", str(recomputed_layers(scenario, plan))))
    elif plan.recompute:
        flags.append(("--recompute-granularity", "selective"))
        flags.append(("--recompute-modules", *modules(plan.recompute)))
    if plan.offload & Offload.OPTIMIZER:
        flags.append(("--optimizer-cpu-offload",))
        flags.append(("--optimizer-offload-fraction", "1.0"))
    if precision_aware(scenario, plan):
        flags.append(("--use-precision-aware-optimizer",))
    if moments := MOMENTS.get(scenario.job.optimizer):
        flags.append(("--exp-avg-dtype", moments))
        flags.append(("--exp-avg-sq-dtype", moments))
    if plan.offload_layers:
        flags.append(("--cpu-offloading-num-layers", str(plan.offload_layers)))
    return flags


def _batch_flags(scenario: Scenario, plan: Plan) -> list[Flag]:
    job = scenario.job
    flags: list[Flag] = [
        ("--seq-length", str(job.seq_len)),
        ("--micro-batch-size", str(plan.micro_batch)),
        ("--global-batch-size", str(job.global_batch)),
    ]
    if not scenario.model.num_positions:
        flags.append(("--max-position-embeddings", str(job.seq_len)))
    return flags


def _attention_backend(scenario: Scenario) -> str:
    if scenario.job.attention != "flash":
        return "unfused"
    mixers = (mixer for layer in scenario.model.layer_kinds for mixer in layer.mixers)
    # sinks: "both TE FusedAttention and local unfused attention" (transformer_config.py:163)
    return "fused" if any(getattr(mixer, "sinks", False) for mixer in mixers) else "flash"


def _number_flags(scenario: Scenario, plan: Plan) -> list[Flag]:
    job = scenario.job
    dropout = "0.1" if job.dropout else "0.0"
    scaling: list[Flag] = [("--fp8-recipe", recipe_of_fp8(scenario))]
    flags: list[Flag] = [
        *_PRECISION[job.precision],
        *(scaling if job.precision == "fp8" else ()),
        ("--optimizer", OPTIMIZERS[job.optimizer]),
        ("--attention-backend", _attention_backend(scenario)),
        ("--attention-dropout", dropout),
        ("--hidden-dropout", dropout),
    ]
    if job.precision != "fp16" and narrow_gradients(scenario):
        flags.append(("--grad-reduce-in-bf16",))
    named = switches(scenario)
    flags += switch_flags(scenario)
    if "fp8-weights" in named and job.precision == "mxfp8" and plan.zero == 1:
        # weights of mxfp8 have no place in the buffer that is gathered (reference 1)
        flags.append(("--reuse-grad-buf-for-mxfp8-param-ag",))
    if job.precision == "fp16" and not narrow_gradients(scenario):
        # 32-bit gradients, as they are counted, are usual for bf16 alone (arguments.py:1172-1194)
        flags.append(("--accumulate-allreduce-grads-in-fp32",))
    return flags


def program(order: Order) -> Program:
    """Arrays of flags around ``pretrain_gpt.py``, or ``pretrain_hybrid.py``."""
    script = "pretrain_hybrid.py" if is_hybrid(order.scenario.model) else "pretrain_gpt.py"
    trial: list[Flag] = [
        ("--mock-data",),
        ("--tokenizer-type", "NullTokenizer"),
        ("--vocab-size", str(order.scenario.model.vocab)),
        ("--train-iters", "20"),
        ("--lr", "1e-4"),
        ("--min-lr", "1e-5"),
        ("--log-interval", "1"),
        ("--log-memory-interval", "10"),
        ("--log-throughput",),
    ]
    return Program(
        start="torchrun",
        words=(f'"${{MEGATRON_LM:?set it to a checkout of Megatron-LM}}/{script}"',),
        groups=flag_groups(order),
        environment=environment(order),
        trial=tuple(trial),
    )


MEGATRON = Target(
    name="megatron",
    framework=Framework.MEGATRON,
    version=VERSION,
    verified=True,
    obstacles=obstacles,
    program=program,
    unwritten=lambda order: unwritten(order.scenario, order.plan),
)
