"""torchtitan: a Python module whose ``train()`` returns the ``Trainer.Config`` of a plan.

A run of torchtitan 0.3.0 is a function that returns its config, named by ``--module`` and
``--config``; its command line is frozen (``torchtitan/config/README.md``), so that the plan is
written as such a function.

References:
    1. ``torchtitan/config/configs.py``, ``trainer.py`` and
       ``distributed/pipeline_parallel.py`` of 0.3.0.
"""

from __future__ import annotations

from meshplan.cost.schedule.actions import Kind
from meshplan.cost.schedule.orders import device_programs
from meshplan.emit.bash import comment
from meshplan.emit.job import WHOLE_MODEL, job_obstacles
from meshplan.emit.records import EmittedFile, Obstacle, Order, Program, Target, once
from meshplan.emit.stages import virtual_stages
from meshplan.emit.torchtitan_converters import PRECISIONS, adapter_obstacles
from meshplan.emit.torchtitan_model import model_obstacles, model_source
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.space.names import to_text
from meshplan.space.plan import Framework, Offload, Plan, Recompute, Schedule

__all__ = ["ASYNC_TP", "EAGER", "TORCHTITAN", "schedule_table", "settings", "source"]

_MODULE = "meshplan_torchtitan"
_SCHEDULES = {
    Schedule.GPIPE: "GPipe",
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.INTERLEAVED_ZB: "InterleavedZeroBubble",
    Schedule.ZBV: "ZBVZeroBubble",
    Schedule.DUALPIPE_V: "DualPipeV",
    # one stage on each rank; the order itself is read from a table
    Schedule.ZB_H1: "1F1B",
}
_TABLE = "meshplan_schedule.csv"
EAGER = "torchtitan-eager"
"""Variant without ``torch.compile``."""
ASYNC_TP = "torchtitan-async-tp"
"""Variant whose tensor-parallel collectives are cut into pieces beside the products."""
_LETTERS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
}


def _obstacles(order: Order) -> tuple[Obstacle, ...]:
    plan, job = order.plan, order.scenario.job
    found = list(model_obstacles(order.scenario))
    found += job_obstacles(
        job, optimizers=("adamw",), tasks=(*WHOLE_MODEL, "lora"), precisions=PRECISIONS
    )
    found += adapter_obstacles(job, order.scenario.model)
    if plan.schedule not in _SCHEDULES:
        numbers = {"schedule": to_text(plan.schedule)}
        found.append(Obstacle(code="staggered_step", numbers=numbers))
    return once(found)


def source(order: Order) -> str:
    """The Python module, without its head."""
    scenario, plan = order.scenario, order.plan
    imports, model = model_source(scenario, plan)
    policy, checkpoint = _checkpoint(plan)
    if policy:
        imports = [
            *imports,
            f"from torchtitan.distributed.activation_checkpoint import {policy}",
        ]
    if schedule_table(plan):
        imports = [*imports, "from pathlib import Path"]
    compile_ = "CompileConfig, " if _compiles(scenario) else ""
    imports = [
        *imports,
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
        "from torchtitan.components.optimizer import default_adamw",
        f"from torchtitan.config import {compile_}ParallelismConfig, TrainingConfig",
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
        "from torchtitan.trainer import Trainer",
    ]
    return (
        '"""A plan as torchtitan reads it: ``--module meshplan_torchtitan --config train``."""\n\n'
        + "\n".join(sorted(imports, key=lambda line: line.split()[1]))
        + "\n\n\n"
        + model
        + "\n\ndef train() -> Trainer.Config:\n"
        + _body(scenario, plan, checkpoint)
    )


def schedule_table(plan: Plan) -> str:
    """What each rank does in order, a line for each, as torch reads it: ``0F0,0F1,0I0,0W0,...``.

    Empty where torchtitan knows the schedule by name.

    References:
        1. ``_PipelineScheduleRuntime._load_csv`` of torch 2.13, in its format without traffic.
    """
    if plan.pp == 1 or plan.schedule is not Schedule.ZB_H1:
        return ""
    programs = device_programs(
        schedule=plan.schedule,
        pp=plan.pp,
        vpp=plan.vpp,
        num_micro_batches=plan.num_micro_batches,
    )
    rows = (
        ",".join(f"{stage}{_LETTERS[Kind(kind)]}{number}" for kind, stage, number in program)
        for program in programs
    )
    return "".join(f"{row}\n" for row in rows)


def _compiles(scenario: Scenario) -> bool:
    """Whether blocks are compiled, which the times of plans count on unless the variant is eager.

    Casts to 8 bits are fused by nothing else.
    """
    return split_variant(scenario.variant)[0] != EAGER or scenario.job.precision != "bf16"


def _compile(scenario: Scenario) -> str:
    asynchronous = split_variant(scenario.variant)[0] == ASYNC_TP
    more = ", enable_async_tensor_parallel=True" if asynchronous else ""
    return f'CompileConfig(enable=True, components=["model"]{more})'


def _body(scenario: Scenario, plan: Plan, checkpoint: str) -> str:
    parallelism = "".join(f"            {line},\n" for line in _parallelism(scenario, plan))
    training = "".join(f"            {line},\n" for line in _training(scenario, plan))
    vocab = scenario.model.vocab
    compile_ = f"        compile={_compile(scenario)},\n" if _compiles(scenario) else ""
    return (
        "    return Trainer.Config(\n"
        "        model_spec=model_spec(),\n"
        "        loss=ChunkedLossWrapper.Config(\n"
        f"            loss_fn=CrossEntropyLoss.Config(global_vocab_size={vocab}),\n"
        "        ),\n"
        "        # yours: learning rate, data, tokenizer (--hf_assets_path), number of steps\n"
        "        optimizer=default_adamw(lr=3e-4),\n"
        '        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4_test"),\n'
        f"        training=TrainingConfig(\n{training}        ),\n"
        f"        parallelism=ParallelismConfig(\n{parallelism}        ),\n"
        f"        activation_checkpoint={checkpoint},\n"
        f"{compile_}"
        "    )\n"
    )


def settings(order: Order) -> dict[str, str]:
    """The settings of a plan by their places in the trainer's config, as they are written."""
    scenario, plan = order.scenario, order.plan
    lines = [f"training.{line}" for line in _training(scenario, plan)]
    lines += [f"parallelism.{line}" for line in _parallelism(scenario, plan)]
    lines.append(f"activation_checkpoint={_checkpoint(plan)[1]}")
    return dict(line.split("=", 1) for line in lines)


def _training(scenario: Scenario, plan: Plan) -> list[str]:
    # a pipeline takes all micro-batches of a step at once, otherwise they accumulate
    local = plan.micro_batch * (plan.num_micro_batches if plan.pp > 1 else 1)
    lines = [
        f"seq_len={scenario.job.seq_len}",
        f"local_batch_size={local}",
        f"global_batch_size={scenario.job.global_batch}",
        "steps=20",
    ]
    if plan.pp > 1 or plan.ep > 1:
        lines.append("disable_cuda_graphs=True")
    if scenario.job.task == "lora":
        # frozen weights in 16 bits, as they are counted
        lines.append('dtype="bfloat16"')
    if plan.offload & Offload.PARAMETERS:
        lines.append("enable_cpu_offload=True")
    return lines


def _parallelism(scenario: Scenario, plan: Plan) -> list[str]:
    replicate, shard = (plan.dp, 1) if not plan.zero else (plan.dp_replicate, plan.dp_shard)
    lines = [
        f"data_parallel_replicate_degree={replicate}",
        f"data_parallel_shard_degree={shard}",
        f"tensor_parallel_degree={plan.tp}",
        f"enable_sequence_parallel={plan.sp or plan.tp == 1}",
        f"pipeline_parallel_degree={plan.pp}",
        f"context_parallel_degree={plan.cp}",
        f"expert_parallel_degree={plan.ep}",
    ]
    if plan.zero:
        policy = "always" if plan.zero == 3 else "never"
        lines.append(f'fsdp_reshard_after_forward="{policy}"')
    if plan.cp > 1:
        # flex attention balances with its own mask; head-tail is for SDPA
        lines.append('context_parallel_load_balancer="ptrr"')
    if plan.pp > 1:
        lines += [
            f'pipeline_parallel_schedule="{_SCHEDULES[plan.schedule]}"',
            f"pipeline_parallel_microbatch_size={plan.micro_batch}",
            f"module_fqns_per_model_part=split({_stage_layers(scenario, plan)})",
        ]
        if schedule_table(plan):
            table = f'str(Path(__file__).with_name("{_TABLE}"))'
            lines.append(f"pipeline_parallel_schedule_csv={table}")
    return lines


def _stage_layers(scenario: Scenario, plan: Plan) -> list[int]:
    return [chunk.num_layers for chunk in virtual_stages(scenario, plan)]


def _checkpoint(plan: Plan) -> tuple[str, str]:
    if plan.recompute & Recompute.FULL:
        return "FullAC", "FullAC.Config()"
    if plan.recompute & Recompute.SELECTIVE_OP:
        return "SelectiveAC", "SelectiveAC.Config()"
    return "", "None"


def _program(order: Order) -> Program:
    text = comment(order.notes) + source(order)
    files = [EmittedFile(name=f"{_MODULE}.py", text=text)]
    if table := schedule_table(order.plan):
        files.append(EmittedFile(name=_TABLE, text=table))
    return Program(
        start="torchrun",
        words=(f"-m torchtitan.train --module {_MODULE} --config train",),
        environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        files=tuple(files),
    )


TORCHTITAN = Target(
    name="torchtitan",
    framework=Framework.TORCHTITAN,
    version="torchtitan 0.3.0",
    verified=True,
    obstacles=_obstacles,
    program=_program,
    stacks=(EAGER, ASYNC_TP),
)
