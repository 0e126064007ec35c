"""Keys and options that a framework does not have: named with their line and what was meant.

Which framework refuses them is asked of the frameworks themselves in tests/frameworks.
"""

import pytest

from meshplan.app import service
from meshplan.app.cli.main import run
from meshplan.check import hugging_face, nanotron, torchtitan
from meshplan.check.foreign import known_to
from meshplan.check.megatron_options import COUNTS, FLAGS, MODEL, MODEL_FLAGS
from meshplan.check.read import read_files, read_text
from meshplan.check.records import Source
from meshplan.errors import ProblemList, UserError

TOML = """[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 2
seq_len = 8192

[parallelism]
# tensor_paralel_degree = 2
tensor_parallel_degree = 4

[activation_checkpoint]
mode = "full"
"""
DEEPSPEED = """{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": 8,
  "bf16": {"enabled": true},
  "fp16": {"enabled": false},
  "zero_optimization": {
    "stage": 3,
    "offload_param": {"device": "none", "pin_memory": true},
    "overlap_comm": true
  }
}
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
"""
NANOTRON = """general:
  project: p
parallelism:
  dp: 8
  tp: 2
  pp: 1
tokens:
  micro_batch_size: 1
  batch_accumulation_per_replica: 4
  sequence_length: 2048
data_stages:
  - name: first
    start_training_step: 1
    data:
      seed: 1
optimizer:
  zero_stage: 1
"""
MEGATRON = """srun --nodes 2 --partition train torchrun --nproc_per_node 8 pretrain_gpt.py \\
  --tensor-model-parallel-size 8 --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 \\
  --global-batch-size 256 --bf16 --vocab-size 32000 --own-option-of-a-fork 3
"""
TITAN = """torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b \\
  --parallelism.tensor_parallel_degree 2 --training.local_batch_size 1 \\
  --compile.no-enable
"""
MODULE = """from torchtitan.trainer import Trainer
from torchtitan.models.llama3 import model_registry

def mine() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )
"""
BRIDGE = """torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config \\
  model.tensor_model_parallel_size=2 train.micro_batch_size=1 train.global_batch_size=128 \\
  dataset.sequence_length=8192
"""
TRANSFORMERS = """accelerate launch --num_processes 8 train.py --bf16 true \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_seq_length 4096 \\
  --my_own_flag 1
"""


def foreign(name, text):
    reading = read_text(Source(name=name, text=text), problems=ProblemList())
    return [(k.key, k.where.rpartition(":")[2], k.nearest, k.refused) for k in reading.foreign]


CASES = {
    # file, what is written, what is planted, key as it is named, line, what is meant, refused
    "toml": (
        ("a.toml", TOML, "tensor_parallel_degree", "tensor_paralel_degree"),
        ("parallelism.tensor_paralel_degree", "11", "parallelism.tensor_parallel_degree", True),
    ),
    "toml section": (
        ("a.toml", TOML, "[parallelism]", "[paralelism]"),
        ("paralelism", "9", "parallelism", True),
    ),
    "toml of another section": (
        ("a.toml", TOML, "seq_len = 8192", "pipeline_parallel_schedule = '1F1B'"),
        (
            "training.pipeline_parallel_schedule",
            "7",
            "parallelism.pipeline_parallel_schedule",
            True,
        ),
    ),
    "toml like no other": (
        ("a.toml", TOML, "mode =", "frobnicate ="),
        ("activation_checkpoint.frobnicate", "14", "", True),
    ),
    "deepspeed, outermost": (
        ("a.json", DEEPSPEED, "gradient_accumulation_steps", "gradient_acumulation_steps"),
        ("gradient_acumulation_steps", "3", "gradient_accumulation_steps", False),
    ),
    "deepspeed, a model": (
        ("a.json", DEEPSPEED, "overlap_comm", "overlap_com"),
        ("zero_optimization.overlap_com", "9", "zero_optimization.overlap_comm", True),
    ),
    "deepspeed, a model in a model": (
        ("a.json", DEEPSPEED, "pin_memory", "pinned_memory"),
        (
            "zero_optimization.offload_param.pinned_memory",
            "8",
            "zero_optimization.offload_param.pin_memory",
            True,
        ),
    ),
    "deepspeed, the second of a name": (
        ("a.json", DEEPSPEED, '"fp16": {"enabled"', '"fp16": {"enable"'),
        ("fp16.enable", "5", "fp16.enabled", True),
    ),
    "accelerate, outermost": (
        ("a.yaml", ACCELERATE, "num_machines", "num_machine"),
        ("num_machine", "4", "num_machines", True),
    ),
    "accelerate, a section": (
        ("a.yaml", ACCELERATE, "after_forward", "after_foward"),
        (
            "fsdp_config.fsdp_reshard_after_foward",
            "8",
            "fsdp_config.fsdp_reshard_after_forward",
            False,
        ),
    ),
    "nanotron": (
        ("a.yaml", NANOTRON, "batch_accumulation_per_replica", "batch_acumulation_per_replica"),
        (
            "tokens.batch_acumulation_per_replica",
            "9",
            "tokens.batch_accumulation_per_replica",
            True,
        ),
    ),
    "nanotron, a list": (
        ("a.yaml", NANOTRON, "start_training_step", "start_trainig_step"),
        ("data_stages.start_trainig_step", "13", "data_stages.start_training_step", True),
    ),
    "megatron": (
        ("a.sh", MEGATRON, "--tensor-model-parallel-size", "--tensor-model-paralel-size"),
        ("--tensor-model-paralel-size", "2", "--tensor-model-parallel-size", True),
    ),
    "megatron, letters swapped": (
        ("a.sh", MEGATRON, "--seq-length", "--seq-lenght"),
        ("--seq-lenght", "3", "--seq-length", True),
    ),
    "torchrun": (
        ("a.sh", MEGATRON, "--nproc_per_node", "--nproc_per_nodes"),
        ("--nproc-per-nodes", "1", "--nproc-per-node", True),
    ),
    "torchtitan": (
        ("a.sh", TITAN, "tensor_parallel_degree", "tensor_paralel_degree"),
        ("parallelism.tensor_paralel_degree", "2", "parallelism.tensor_parallel_degree", True),
    ),
    "torchtitan module": (
        ("a.py", MODULE, "tensor_parallel_degree", "tensor_paralel_degree"),
        ("parallelism.tensor_paralel_degree", "8", "parallelism.tensor_parallel_degree", True),
    ),
    "torchtitan module, a section": (
        ("a.py", MODULE, "parallelism=", "paralelism="),
        ("paralelism", "8", "parallelism", True),
    ),
    "bridge": (
        ("a.sh", BRIDGE, "model.tensor_model_parallel", "model.tensor_model_paralel"),
        ("model.tensor_model_paralel_size", "2", "model.tensor_model_parallel_size", True),
    ),
    "bridge section": (
        ("a.sh", BRIDGE, "train.micro_batch_size", "trian.micro_batch_size"),
        ("trian", "2", "train", True),
    ),
    "transformers": (
        ("a.sh", TRANSFORMERS, "--per_device_train_batch_size", "--per_device_train_batch_sise"),
        ("--per-device-train-batch-sise", "2", "--per-device-train-batch-size", False),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_exactly_what_is_misspelt_is_named(case):
    (name, text, right, wrong), expected = CASES[case]
    assert foreign(name, text) == []
    assert right in text
    assert foreign(name, text.replace(right, wrong, 1)) == [expected]


def test_comments_in_json_are_nobodys_keys():
    text = DEEPSPEED.replace("{", '{"_comment": "mine", "//": "too",', 1)
    assert foreign("a.json", text) == []


def test_an_extension_may_add_keys(tmp_path):
    text = TOML + "frobnicate = 3\n[job]\ncustom_config_module = 'my.config'\n"
    assert foreign("a.toml", text) == []
    text = text.replace("tensor_parallel_degree = 4", "tensor_paralel_degree = 4")
    assert [found[3] for found in foreign("a.toml", text)] == [False]


def test_many_keys_like_no_others_are_those_of_a_fork():
    own = "".join(f"{word} = 1\n" for word in ("skip_nan", "varlen", "context_len", "frobnicate"))
    text = TOML.replace("[training]\n", f"[training]\n{own}")
    assert foreign("a.toml", text) == []
    slip = text.replace("seq_len =", "sep_len =")
    assert [found[2:] for found in foreign("a.toml", slip)] == [("training.seq_len", False)]


@pytest.mark.parametrize("option", ["--patch-size 14", "--data-path2 x", "--lt 1"])
def test_other_words_are_no_slips(option):
    """Options of scripts that resemble ``--batch-size``, ``--data-path`` and ``--lr``."""
    assert foreign("a.sh", MEGATRON.replace("--bf16", f"--bf16 {option}")) == []


def test_a_model_of_its_own_has_keys_of_its_own():
    model = "model:\n  model_config:\n    is_mamba_config: true\n    d_model: 8\n"
    assert foreign("a.yaml", NANOTRON + model) == []
    assert foreign("a.yaml", NANOTRON + model.replace("mamba", "llama"))[0][0].endswith("d_model")


@pytest.mark.parametrize("name", ["a.json", "a.toml"])
def test_a_file_without_a_single_key_of_its_framework_is_no_config(name):
    text = {"a.json": '{"hidden_size": 8}', "a.toml": "[project]\nname = 'x'\n"}[name]
    with pytest.raises(UserError) as caught:
        foreign(name, text)
    assert [p.code for p in caught.value.problems] == ["check_unknown_kind"]


def test_what_is_refused_is_not_legal_and_what_is_ignored_is_off(tmp_path):
    asked = {"model": "llama-3.1-8b", "cluster": "8xH100", "best": False}
    asked |= {"job": {"seq_len": 4096}}
    path = tmp_path / "a.json"
    path.write_text(DEEPSPEED.replace("gradient_accumulation_steps", "gradient_acumulation_steps"))
    found = service.check({"files": [str(path)], **asked})
    assert found["legal"]
    (said,) = [f for f in found["findings"] if f["code"] == "foreign_key"]
    assert said["numbers"]["nearest"] == "gradient_accumulation_steps"
    path.write_text(path.read_text().replace("overlap_comm", "overlap_com"))
    found = service.check({"files": [str(path)], **asked})
    assert not found["legal"]
    assert [p["code"] for p in found["problems"]] == ["check_foreign_key"]
    assert [f["code"] for f in found["findings"]] == ["foreign_key"]
    # legal but for the key
    assert found["nearest"]["plan"] == found["plan"]


def test_what_is_missing_may_have_been_misspelt(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text(MEGATRON.replace("--seq-length", "--seq-lenght"))
    with pytest.raises(UserError) as caught:
        service.check({"files": [str(path)], "cluster": "16xH100"})
    said = [(p.code, p.where.rpartition(":")[2]) for p in caught.value.problems]
    assert said == [("check_foreign_key", "3"), ("check_missing", "seq_len")]


@pytest.mark.parametrize(("lang", "words"), [("en", "did you mean"), ("zh", "是否想写")])
def test_a_person_is_told_what_was_meant(tmp_path, capsys, lang, words):
    path = tmp_path / "a.toml"
    path.write_text(TOML.replace("tensor_parallel_degree = 4", "tensor_paralel_degree = 4"))
    command = ["check", str(path), "--cluster", "8xH100", "--global-batch", "16", "--lang", lang]
    assert run(command) == 1
    shown = "".join(capsys.readouterr().out.split())
    assert "".join(words.split()) in shown
    assert "parallelism.tensor_parallel_degree" in shown
    assert "a.toml:11" in shown


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("torchtitan", torchtitan._COUNTS),
        ("deepspeed", hugging_face._DEEPSPEED),
        ("nanotron", {**nanotron._COUNTS, **nanotron._MODEL}),
    ],
)
def test_keys_that_are_read_are_keys_of_the_framework(kind, keys):
    sections = known_to(kind).sections
    for key in keys:
        section, _, last = key.rpartition(".")
        assert last in sections[section or "."], key


def test_options_that_are_read_are_options_of_the_framework():
    sections = known_to("megatron").sections
    known = sections["."] | sections["(former)"]
    of_deepspeed = {"num-gpus", "num-nodes"}
    assert {*COUNTS, *MODEL, *FLAGS, *MODEL_FLAGS} - of_deepspeed <= known


@pytest.mark.parametrize(
    "cut",
    [
        ("--num-layers 32 --hidden-size 4096 \\\n", "--num-layers 32 --hidden-size 4096\n"),
        ("--hidden-size 4096 \\\n", "--hidden-size 4096 \\ \n"),
        ("--hidden-size 4096 \\\n", "--hidden-size 4096 \\\n  # --swiglu \\\n"),
    ],
)
def test_options_that_no_command_has_are_named(tmp_path, cut):
    right, wrong = cut
    assert right in MEGATRON
    text = MEGATRON.replace(right, wrong)
    with pytest.raises(UserError) as caught:
        read_files([_written(tmp_path, text)])
    (problem,) = caught.value.problems
    line = text[: text.index("--num-attention-heads")].count("\n") + 1
    assert (problem.code, problem.value) == ("check_cut_off", "--num-attention-heads")
    assert problem.where.endswith(f":{line}")
    # a list of options alone may have each on a line of its own
    alone = MEGATRON.partition("pretrain_gpt.py")[2].replace("\\\n", "\n").replace(" --", "\n--")
    reading = read_files([_written(tmp_path, alone.strip(" \\\n"))])
    assert (reading.get("tp"), reading.get("seq_len")) == (8, 4096)
    assert reading.model["vocab"].value == 32000


def _written(folder, text):
    path = folder / "a.sh"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("written", ["$MICRO_BATCHSIZE", "${MICRO_BATCHSIZE}"])
def test_a_misspelt_variable_is_named(written):
    head = "MICRO_BATCH_SIZE=1\nNNODES=2\n"
    text = head + MEGATRON.replace("--micro-batch-size 1", "--micro-batch-size $MICRO_BATCH_SIZE")
    assert foreign("a.sh", text) == []
    slip = head + MEGATRON.replace("--micro-batch-size 1", f"--micro-batch-size {written}")
    (said,) = foreign("a.sh", slip)
    assert (said[0], said[2], said[3]) == ("$MICRO_BATCHSIZE", "$MICRO_BATCH_SIZE", False)
    # what has a default, is set elsewhere or is like no other is the environment's
    for other in ("${MICRO_BATCHSIZE:-1}", "$SLURM_NNODES", "$MICRO"):
        assert foreign("a.sh", text.replace("$MICRO_BATCH_SIZE", other)) == []
