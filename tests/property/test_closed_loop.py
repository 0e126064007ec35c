"""What `emit` writes for any target and launcher, `check` reads as the same plan and job."""

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import islice

import pytest

from meshplan.app import service
from meshplan.check.build import assemble, broken_rules, placed
from meshplan.check.read import read_files
from meshplan.cost.parameters import count_parameters
from meshplan.emit.launch import LAUNCHERS, launch
from meshplan.emit.records import Order
from meshplan.emit.stages import virtual_stages
from meshplan.emit.targets import TARGETS, obstacles_of
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.space.complete import complete_plan
from meshplan.space.plan import CpComm, Framework, Offload, Plan, Recompute, Schedule, Split
from meshplan.space.rules import check_plan

MODELS = {
    "megatron": (
        "llama-3.1-8b",
        "mixtral-8x7b",
        "deepseek-v3",
        "qwen3-next-80b-a3b",
        "gpt-oss-20b",
        "nemotron-h-8b",
        "gpt2-xl",
        "gpt3-175b",
    ),
    "bridge": ("llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v2-lite", "qwen3-next-80b-a3b"),
    "torchtitan": (
        "llama-3.1-8b",
        "llama-3.1-405b",
        "qwen3-32b",
        "qwen3-30b-a3b",
        "deepseek-v2-lite",
        "gpt-oss-20b",
        "llama-2-7b",
        "yi-34b",
    ),
    "deepspeed": ("llama-3.1-8b", "mixtral-8x7b", "qwen2.5-7b"),
    "accelerate": ("llama-3.1-8b", "qwen3-8b", "mistral-7b"),
    "nanotron": ("llama-3.1-8b", "qwen2.5-7b", "mixtral-8x7b", "llama-3.2-1b"),
    "maxtext": ("llama-3.1-8b", "llama-2-70b", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b"),
}
# The models of these are in the files, those of the others beside them.
DESCRIBE_MODELS = ("megatron", "torchtitan", "nanotron")
SIZES = (1, 8, 12, 16, 64, 256, 4096)
MEGATRON_RECOMPUTE = (
    Recompute.NONE,
    Recompute.CORE_ATTENTION,
    Recompute.FULL,
    Recompute.NORM | Recompute.MLP,
    Recompute.MLP_ACTIVATION | Recompute.MLA_UP_PROJECTION,
)
JOBS = {
    "megatron": [{"precision": p} for p in ("bf16", "fp16", "fp8", "mxfp8")]
    + [{"optimizer": "adamw16bit"}, {"optimizer": "muon"}, {"dropout": True}],
    "bridge": [
        {},
        {"precision": "fp8"},
        {"optimizer": "adamw16bit"},
        {"task": "lora", "lora_rank": 8, "lora_targets": "attention"},
    ],
    "torchtitan": [{}, {"precision": "fp8"}, {"precision": "mxfp8"}]
    + [{"task": "lora", "lora_rank": 8, "lora_targets": t} for t in ("all", "mlp", "attention")],
    "deepspeed": [{}, {"precision": "fp16"}, {"optimizer": "adafactor"}]
    + [{"task": task, "lora_rank": 64, "lora_targets": "all"} for task in ("lora", "qlora")],
    "accelerate": [
        {},
        {"precision": "fp8"},
        {"optimizer": "adamw8bit"},
        {"task": "qlora", "lora_rank": 8, "lora_targets": "attention"},
    ],
    "nanotron": [{}, {"precision": "fp16"}, {"optimizer": "sgd"}],
    "maxtext": [{}],
}
VARIANTS = {
    "megatron": [
        "",
        "megatron+bf16-gradients",
        "megatron+flex",
        "megatron+flex+overlapped-exchange",
        "megatron+graph-attention",
        "megatron+tensorwise",
        "megatron+blockwise",
    ],
    "bridge": ["", "megatron+flex", "megatron+tensorwise", "megatron+blockwise"],
    "torchtitan": ["", "torchtitan-eager", "torchtitan-async-tp"],
}
OPTIONAL = ("sp", "cp_comm", "offload", "recompute_layers", "dp_replicate", "etp", "offload_layers")


def degrees(there: Scenario, target: str, dice: random.Random) -> dict[str, object]:
    """Fields of a plan, many of them illegal together."""
    framework = TARGETS[target].framework
    given: dict[str, object] = {
        "tp": dice.choice((1, 1, 2, 4, 8)),
        "pp": dice.choice((1, 1, 2, 4)),
        "cp": dice.choice((1, 1, 1, 2)),
        "micro_batch": dice.choice((1, 2, 4)),
        "zero": dice.choice((0, 1, 2, 3)),
        "recompute": dice.choice((Recompute.NONE, Recompute.FULL)),
    }
    if there.model.is_moe:
        given["ep"] = dice.choice((1, 2, 4, 8))
    if framework is Framework.MEGATRON:
        given["recompute"] = dice.choice(MEGATRON_RECOMPUTE)
        given["split"] = dice.choice((Split.EVEN, Split.BALANCED))
        given["vpp"] = dice.choice((1, 2, 4)) if given["pp"] != 1 else 1
        given["offload"] = dice.choice((Offload.NONE, Offload.NONE, Offload.OPTIMIZER))
    if framework is Framework.TORCHTITAN:
        given["recompute"] = dice.choice((Recompute.NONE, Recompute.SELECTIVE_OP, Recompute.FULL))
        if given["pp"] != 1:
            given["schedule"] = dice.choice((*Schedule,))
            given["split"] = dice.choice((Split.EVEN, Split.BALANCED))
    if framework in (Framework.DEEPSPEED, Framework.ACCELERATE):
        given["pp"] = 1
        given["cp_comm"] = dice.choice(tuple(CpComm)) if given["cp"] != 1 else CpComm.P2P
        given["offload"] = dice.choice((Offload.NONE, Offload.OPTIMIZER | Offload.PARAMETERS))
    for name in OPTIONAL:
        if dice.random() < 0.15:
            given[name] = dice.choice(
                {
                    "sp": (False, True),
                    "cp_comm": tuple(CpComm),
                    "offload": tuple(Offload),
                    "recompute_layers": (1, 3),
                    "dp_replicate": (2, 4),
                    "etp": (1, 2),
                    "offload_layers": (2,),
                }[name]
            )
    return given


def orders(target: str, *, seed: int) -> Iterator[Order]:
    """Legal plans that the target can write, over models, sizes, jobs and variants."""
    dice = random.Random(seed)
    framework = TARGETS[target].framework
    while True:
        job = dice.choice(JOBS[target])
        # the newer number formats have a device of their own
        device = "B200" if job.get("precision") == "mxfp8" else "H100"
        num_gpus = dice.choice(SIZES)
        there = Scenario(
            model=load_model(dice.choice(MODELS[target])),
            cluster=parse_cluster(f"{num_gpus}x{device}"),
            job=Job(
                seq_len=dice.choice((1024, 4096)),
                global_batch=dice.choice((1, 2, 3)) * max(64, num_gpus),
                **job,
            ),
            frameworks=(framework.name.lower(),),
            variant=dice.choice(VARIANTS.get(target, [""])),
        )
        plan = complete_plan(there, framework=framework, **degrees(there, target, dice))
        order = Order(scenario=there, plan=plan, notes=("a plan",))
        if not check_plan(there, plan) and not obstacles_of(order, TARGETS[target]):
            yield order


def said(order: Order) -> Plan:
    """The plan without what makes no difference."""
    scenario, plan = order.scenario, order.plan
    layers = tuple(chunk.num_layers for chunk in virtual_stages(scenario, plan))
    plan = replace(plan, split=Split.EVEN, stage_layers=layers)
    if plan.cp == 1:
        plan = replace(plan, cp_comm=CpComm.P2P)
    if plan.dp_shard * plan.cp == 1 and plan.framework in (
        Framework.MEGATRON,
        Framework.TORCHTITAN,
    ):
        # nothing to shard over: no axis in torchtitan's mesh; with the optimizer on the host or
        # narrow moments Megatron-LM's is written as a distributed one
        plan = replace(plan, zero=0)
    if not plan.zero:
        plan = replace(plan, dp_replicate=1, dp_shard=plan.dp)
    return plan


def variant(order: Order) -> str:
    """The variant as files say it."""
    scenario = order.scenario
    if scenario.job.precision != "bf16" and scenario.variant == "torchtitan-eager":
        return ""  # casts are compiled whatever the rest is
    name, settings = split_variant(scenario.variant)
    # what is without effect is not said
    useless = ["tensorwise", "blockwise"] if scenario.job.precision != "fp8" else []
    if order.plan.ep == 1:
        useless += ["flex", "overlapped-exchange"]
    return (
        "+".join([name, *left])
        if (left := [s for s in settings if s not in useless])
        else ("" if settings else name)
    )


def read_back(order: Order, target: str, launcher: str, folder, *, named: bool):
    """The files of an order as `check` reads them."""
    paths = []
    for file in launch(order, TARGETS[target].program(order), launcher=launcher):
        (folder / file.name).write_text(file.text, encoding="utf-8")
        paths.append(str(folder / file.name))
    reading = read_files(paths)
    cluster = order.scenario.cluster
    given = {"cluster": f"{cluster.num_gpus}x{cluster.device.name}"}
    if named:
        given["model"] = order.scenario.model.name
    if "seq_len" not in placed(reading, given).settings:
        # arguments of the reader's own script
        assert target in ("deepspeed", "accelerate")
        given["job"] = {"seq_len": order.scenario.job.seq_len}
    return reading, assemble(reading, given)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("target", MODELS)
def test_what_is_emitted_is_what_check_reads(target, launcher, tmp_path):
    seed = 100 * list(LAUNCHERS).index(launcher)
    for order in islice(orders(target, seed=seed), 24):
        named = target not in DESCRIBE_MODELS or seed == 0
        reading, made = read_back(order, target, launcher, tmp_path, named=named)
        where = f"{order.scenario.model.name} {order.plan}"
        back = Order(scenario=made.scenario, plan=made.plan)
        assert said(back) == said(order), where
        for name in (f.name for f in fields(Job)):
            assert getattr(made.scenario.job, name) == getattr(order.scenario.job, name), where
        assert made.scenario.cluster == order.scenario.cluster
        assert made.scenario.variant == variant(order), where
        assert (reading.unknown, reading.named, reading.uncounted, made.assumed) == ((),) * 4, where
        assert not broken_rules(made), where
        if not named:
            ours, theirs = order.scenario.model, made.scenario.model
            assert count_parameters(theirs).total == count_parameters(ours).total, where
        for file in tmp_path.iterdir():
            file.unlink()


@pytest.mark.parametrize(
    ("model", "cluster", "batch"),
    [
        ("llama-3.1-8b", "8xH100", 128),
        ("qwen3-30b-a3b", "64xH100", 1024),
        ("qwen3-32b", "32xH200", 256),
    ],
)
def test_the_best_plan_of_torchtitan_comes_back_without_a_finding(tmp_path, model, cluster, batch):
    asked = {"model": model, "cluster": cluster, "job": {"seq_len": 4096, "global_batch": batch}}
    made = service.emit({**asked, "to": "torchtitan", "launcher": "slurm"})
    for file in made["files"]:
        (tmp_path / file["name"]).write_text(file["text"], encoding="utf-8")
    files = [str(tmp_path / file["name"]) for file in made["files"]]
    found = service.check({"files": files, "cluster": cluster, "best": False})
    assert found["plan"] == made["plans"][0]["plan"]
    assert found["findings"] == [] and found["unknown"] == []
    ours, theirs = (answer["plans"][0] for answer in (made, found))
    assert theirs["step_time_s"] == pytest.approx(ours["step_time_s"])
    assert theirs["memory"]["peak_bytes"] == pytest.approx(ours["memory"]["peak_bytes"])
