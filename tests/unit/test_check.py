"""Configs that people have: read with lines, nothing run, judged and improved."""

import bz2
import gzip
import importlib.util
import json
import lzma
import re
from pathlib import Path

import pytest

from meshplan.app import service
from meshplan.app.cli.main import run
from meshplan.check.read import read_files, read_text
from meshplan.check.records import Source
from meshplan.check.shell import UNKNOWN, commands, option_words
from meshplan.check.slurm import slurm_settings, slurm_variables
from meshplan.emit.launch import launch
from meshplan.emit.records import Order
from meshplan.emit.targets import TARGETS, obstacles_of
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.documents import parse_yaml
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.megatron_layout import read_layout
from meshplan.space.complete import complete_plan
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split
from space_scenarios import scenario

SCRIPT = """#!/bin/bash
#SBATCH --nodes=8
GPUS_PER_NODE=8
NNODES=8
TP=${TP:-4}
WORLD=$(($GPUS_PER_NODE * $NNODES))
MODEL_ARGS="
    --num-layers 80 \\
    --hidden-size 8192
    --num-attention-heads 64 --group-query-attention --num-query-groups 8
    --ffn-hidden-size 28672 --swiglu --disable-bias-linear --normalization RMSNorm
    --position-embedding-type rope --untie-embeddings-and-output-weights
    --vocab-size 128256 --attention-dropout 0 --hidden-dropout 0.0
"
BATCH=(--seq-length 4096 --micro-batch-size 1
       --global-batch-size 64)
PARALLEL=(
  --tensor-model-parallel-size $TP   # a comment with "quotes
  --pipeline-model-parallel-size 4
  --sequence-parallel --use-distributed-optimizer --bf16
)
PARALLEL+=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
if [ -n "$EXTRA" ]; then echo "unused --flag 1"; fi
cat <<'EOF'
--tensor-model-parallel-size 99
EOF
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $SLURM_NODEID \\
    pretrain_gpt.py $MODEL_ARGS "${BATCH[@]}" "${PARALLEL[@]}" --data-path $(touch pwned)
"""


def text(name, content):
    problems = ProblemList()
    reading = read_text(Source(name=name, text=content), problems=problems)
    problems.raise_if_any()
    return reading


def written(folder, name, content):
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def values(reading):
    return {name: setting.value for name, setting in reading.settings.items()}


def test_script_is_read_with_lines():
    reading = text("train.sh", SCRIPT)
    found = values(reading)
    assert (found["tp"], found["pp"], found["sp"], found["zero"]) == (4, 4, True, 1)
    assert (found["gpus_per_node"], found["num_nodes"]) == (8, 8)
    assert found["recompute"] is Recompute.FULL and "recompute_layers" not in found
    assert reading.settings["pp"].where == "train.sh:19"
    assert reading.model["num_layers"].value == 80


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", "adamw16bit"),
        ("--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8", "adamw8bit"),
        ("--exp-avg-dtype bf16", None),
        ("", None),
    ],
)
def test_moments_have_the_stated_format(options, optimizer):
    flags = f"--bf16 --use-precision-aware-optimizer {options}"
    reading = text("train.sh", SCRIPT.replace("--bf16", flags))
    assert values(reading).get("optimizer") == optimizer


@pytest.mark.parametrize(
    ("options", "attention"),
    [
        ("--attention-backend unfused", "unfused"),
        ("--attention-backend local --spec local", "unfused"),
        ("--transformer-impl local", "unfused"),
        ("--transformer-impl local --use-flash-attn", None),
        ("--attention-backend flash", None),
        ("--attention-backend auto", None),
        ("", None),
    ],
)
def test_attention_is_the_stated_one(options, attention):
    """Names of ``AttnBackend`` in megatron/core/transformer/enums.py."""
    reading = text("train.sh", SCRIPT.replace("--bf16", f"--bf16 {options}"))
    assert values(reading).get("attention") == attention


def test_scores_that_a_script_stores_exclude_its_context_parallelism(tmp_path):
    flags = "--bf16 --context-parallel-size 2 --attention-backend"
    ring, stored = (
        written(tmp_path, f"{name}.sh", SCRIPT.replace("--bf16", f"{flags} {name}"))
        for name in ("flash", "unfused")
    )
    asked = {"cluster": "64xH100", "best": False}
    assert service.check({"files": [ring], **asked})["legal"]
    found = service.check({"files": [stored], **asked})
    assert [problem["code"] for problem in found["problems"]] == ["rule_stored_scores_without_cp"]


def test_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "train.sh", SCRIPT)
    service.check({"files": ["train.sh"], "cluster": "64xH100", "best": False})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.sh"]


EXPANSIONS = {
    "A=1; B=$A$A; run --x $B": ["11"],
    "A='a b'; run --x $A": ["a", "b"],
    "A='a b'; run --x \"$A\"": ["a b"],
    "A=(1 2); A+=(3); run --x ${A[@]}": ["1", "2", "3"],
    "A=('p q' r); run --x \"${A[@]}\"": ["p q", "r"],
    "run --x ${NOT_SET:-7}": ["7"],
    "run --x ${NOT_SET:-$OTHER}": [UNKNOWN],
    "run --x $NOT_SET": [UNKNOWN],
    "A=6; run --x $((A / 2 * 5))": ["15"],
    "run --x $(rm -rf x)": [UNKNOWN],
    "run --x `id`": [UNKNOWN],
    "run --x a\\\nb": ["ab"],
    "run --x \\$HOME": ["$HOME"],
    "run --x '$HOME'": ["$HOME"],
    "A=2\nexport A=3\nrun --x $A": ["3"],
    "run --x 1 # --y 2": ["1"],
    "FOO=1 run --x 2": ["2"],
}


@pytest.mark.parametrize("script", EXPANSIONS)
def test_bash_is_expanded(script):
    words = [w.text for w in option_words(commands(Source(name="s", text=script)))]
    assert words[words.index("--x") + 1 :] == EXPANSIONS[script]


BROKEN = {
    "run --x 'a": ("check_not_closed", 1),
    'run\n --x "a': ("check_not_closed", 1),
    "A=(1 2": ("check_not_closed", 1),
    "\n\nrun --x $(echo": ("check_not_closed", 3),
    "run --x 1 && \\\n B=$((1+": ("check_not_closed", 2),
}


@pytest.mark.parametrize("script", BROKEN)
def test_broken_scripts_name_the_line(script):
    with pytest.raises(UserError) as caught:
        list(commands(Source(name="s", text=script)))
    code, line = BROKEN[script]
    assert caught.value.problems[0].code == code
    assert abs(int(caught.value.problems[0].where.split(":")[1]) - line) <= 1


def test_expansion_without_end_is_refused():
    lines = ["A=xxxxxxxxxx"] + ["A=$A$A"] * 40 + ["run --x $A"]
    with pytest.raises(UserError) as caught:
        list(commands(Source(name="s", text="\n".join(lines))))
    assert caught.value.problems[0].code == "check_too_many_words"


def test_layouts():
    assert read_layout("Et*3|t*4|tmL") == (3, 4, 1)
    assert read_layout("Et|(tt|)*30mL") == (1, *[2] * 30, 0)
    assert read_layout("t|t") == () == read_layout("E(t)*9999999L") == read_layout("")


BAD = {
    "train.sh": (
        "x --num-layers 8 --tensor-model-parallel-size two --micro-batch-size 0",
        ["check_not_a_count", "check_not_a_count"],
    ),
    "again.sh": (
        "x --num-layers 8 --recompute-granularity maybe --cp-comm-type ring",
        ["check_unknown_value", "check_unknown_value"],
    ),
    "layout.sh": (
        "x --num-layers 8 --pipeline-model-parallel-size 3 "
        "--pipeline-model-parallel-layout Et*4|t*4L",
        ["check_bad_layout"],
    ),
    "a.json": ('{"train_batch_size": 8,\n "zero_optimization": {"stage": 4}}', None),
    "b.json": ('{\n"train_batch_size": 8,,\n}', ["check_syntax"]),
    "c.json": ('{"bf16": {"enabled": true}, "fp16": {"enabled": true}}', ["check_both_on"]),
    "d.toml": ("[training]\nseq_len = = 1", ["check_syntax"]),
    "e.yaml": ("distributed_type: FSDPX\n", ["check_unknown_value"]),
    "f.yaml": ("a: 1\n", ["check_unknown_kind"]),
    "g.txt": ("hello", ["check_unknown_kind"]),
    "h.json": ("[" * 100_000, ["check_too_deep"]),
    "j.toml": (f"[training]\nx = {'[' * 5000}{']' * 5000}\n", ["check_too_deep"]),
    "k.json": (f'{{\n"train_batch_size": {"1" * 5000}\n}}', ["check_syntax"]),
    "i.json": ("[1]", ["not_a_mapping"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_say_what_and_where(name, tmp_path):
    content, codes = BAD[name]
    with pytest.raises(UserError) as caught:
        read_files([written(tmp_path, name, content)])
    found = [problem.code for problem in caught.value.problems]
    assert found == (codes or ["check_unknown_value"])
    assert all(name in problem.where for problem in caught.value.problems)
    if codes in (["check_syntax"], ["check_too_deep"]):
        (problem,) = caught.value.problems
        assert problem.where.rpartition(":")[2] == ("1" if name == "h.json" else "2")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_files_are_read(pack, tmp_path):
    suffix = {"gzip": "gz", "bz2": "bz2", "lzma": "xz"}[pack.__module__]
    path = tmp_path / f"x.sh.{suffix}"
    path.write_bytes(pack(SCRIPT.encode()))
    found, plain = read_files([str(path)]), read_files([written(tmp_path, "x.sh", SCRIPT)])
    name = f"x.sh.{suffix}:"
    assert {k: s.value for k, s in found.settings.items()} == {
        k: s.value for k, s in plain.settings.items()
    }
    assert found.settings["tp"].where == plain.settings["tp"].where.replace("x.sh:", name)
    path.write_bytes(pack(SCRIPT.encode())[:-20])
    with pytest.raises(UserError) as caught:
        read_files([str(path)])
    assert caught.value.problems[0].code == "check_damaged"
    # a small file may hold a large one
    path.write_bytes(pack(b"x" * 10**8))
    with pytest.raises(UserError) as caught:
        read_files([str(path)])
    assert caught.value.problems[0].code == "check_too_large"


@pytest.mark.parametrize(
    ("mark", "program"), [(b"PK\x03\x04", "unzip -p"), (b"(\xb5/\xfd", "zstd")]
)
def test_what_is_not_unpacked_here_says_how_to(mark, program, tmp_path):
    if program == "zstd" and importlib.util.find_spec("zstandard"):
        pytest.skip("the package zstandard is here")
    path = tmp_path / "x.sh.zst"
    path.write_bytes(mark + b"\0" * 20)
    with pytest.raises(UserError) as caught:
        read_files([str(path)])
    (problem,) = caught.value.problems
    assert problem.code == "check_packed"
    assert problem.numbers["program"].startswith(program)


def test_files_that_are_none(tmp_path):
    for content, code in ((b"", "check_empty"), (b"\0--x", "file_not_text"), (b"\xff", None)):
        path = tmp_path / "x.sh"
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            read_files([str(path)])
        assert caught.value.problems[0].code == (code or "file_not_text")
    (tmp_path / "big.sh").write_text("x" * 1_000_001)
    for path, code in (
        (tmp_path / "big.sh", "check_too_large"),
        (tmp_path / "none", "file_missing"),
        (tmp_path, "file_is_folder"),
        (Path("/dev/zero"), "file_unreadable"),
    ):
        with pytest.raises(UserError) as caught:
            read_files([str(path)])
        assert caught.value.problems[0].code == code


def test_all_files_are_complained_about_at_once(tmp_path):
    first = written(tmp_path, "a.json", "{")
    second = written(tmp_path, "b.json", "[")
    with pytest.raises(UserError) as caught:
        read_files([first, second])
    assert len(caught.value.problems) == 2


def test_two_files_that_disagree(tmp_path):
    one = written(tmp_path, "ds.json", '{"gradient_accumulation_steps": 4}')
    two = written(
        tmp_path,
        "run.sh",
        "deepspeed train.py --deepspeed ds.json --per_device_train_batch_size 1 "
        "--gradient_accumulation_steps 8",
    )
    with pytest.raises(UserError) as caught:
        read_files([one, two])
    assert caught.value.problems[0].code == "check_contradiction"
    assert "ds.json:1" in str(caught.value.problems[0].numbers["other"])


def test_options_that_contradict_the_file(tmp_path):
    path = written(tmp_path, "train.sh", SCRIPT)
    for more in (
        {"cluster": "32xH100"},
        {"cluster": "64xH100", "job": {"seq_len": 8192}},
        {"cluster": "64xH100", "model": "llama-3.1-8b"},
    ):
        with pytest.raises(UserError) as caught:
            service.check({"files": [path], **more})
        assert {p.code for p in caught.value.problems} == {"check_contradiction"}


def test_what_is_missing_is_asked_for(tmp_path):
    path = written(tmp_path, "ds.json", '{"train_micro_batch_size_per_gpu": 1}')
    with pytest.raises(UserError) as caught:
        service.check({"files": [path]})
    assert {p.where for p in caught.value.problems} == {
        "cluster",
        "global_batch",
        "model",
        "seq_len",
    }


def test_legal_config_is_judged(tmp_path):
    path = written(tmp_path, "train.sh", SCRIPT)
    found = service.check({"files": [path], "cluster": "64xH100"})
    assert found["legal"] and found["plans"][0]["plan"]["num_micro_batches"] == 16
    assert {f["code"] for f in found["findings"]} >= {"recompute_not_needed"}
    now = found["plans"][0]["step_time_s"]
    for change in found["changes"]:
        assert change["step_time_s"] == pytest.approx(now * (1 - change["gain_fraction"]))
        assert change["gain_fraction"] > 0
    gains = [change["gain_fraction"] for change in found["changes"]]
    assert gains == sorted(gains, reverse=True)
    assert found["best"]["step_time_s"] <= now
    same = service.estimate(
        {
            "model": "llama-3.1-70b",
            "cluster": "64xH100",
            "job": {"seq_len": 4096, "global_batch": 64},
            "plan": {"tp": 4, "pp": 4, "recompute": "full"},
        }
    )
    assert same["plans"][0]["memory"]["peak_bytes"] == found["plans"][0]["memory"]["peak_bytes"]


def test_illegal_config_names_line_rule_and_way_out(tmp_path, capsys):
    path = written(tmp_path, "train.sh", SCRIPT.replace("--num-layers 80", "--num-layers 81"))
    found = service.check({"files": [path], "cluster": "64xH100"})
    assert not found["legal"] and found["plans"] == []
    (problem,) = found["problems"]
    assert problem["code"] == "rule_layers_are_dealt"
    assert found["nearest"]["plan"]["pp"] >= 1
    for lang in ("en", "zh"):
        assert run(["check", path, "--cluster", "64xH100", "--lang", lang]) == 1
    assert "81" in capsys.readouterr().out


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_command_line(tmp_path, capsys, lang):
    path = written(tmp_path, "train.sh", SCRIPT)
    assert run(["check", path, "--cluster", "64xH100", "--lang", lang]) == 0
    out = capsys.readouterr().out
    assert "TP4 PP4 DP4" in out
    assert run(["check", path, "--cluster", "64xH100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["legal"]


SLOWER = """torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 8 \\
 --micro-batch-size 1 --global-batch-size 64 --seq-length 65536 --bf16 --use-distributed-optimizer
"""


@pytest.mark.parametrize(
    ("lang", "switch", "slower", "wrong"),
    [
        ("en", "off -> on", "more time, but it fits", "-[0-9.]+% less time"),
        ("zh", "关 -> 开", "，但放得下", "减少 -"),
    ],
)
def test_what_makes_it_fit_is_said_in_words(tmp_path, capsys, lang, switch, slower, wrong):
    path = written(tmp_path, "train.sh", SLOWER)
    run(["check", path, "--model", "llama-3.1-8b", "--cluster", "8xH100", "--lang", lang])
    out = capsys.readouterr().out
    assert switch in out
    assert slower in out
    assert not re.search(wrong, out)
    assert "True" not in out
    assert "False" not in out


def test_torchtitan_arguments_and_toml():
    arguments = text(
        "run.sh",
        "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b "
        "--parallelism.tensor_parallel_degree=2 --parallelism.pipeline_parallel_degree 2 "
        "--parallelism.pipeline_parallel_schedule Interleaved1F1B "
        "--training.local_batch_size=8 --training.seq_len 8192 --training.global_batch_size 64",
    )
    toml = text(
        "job.toml",
        '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 2\n'
        'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"\n'
        "[training]\nlocal_batch_size = 8\nseq_len = 8192\nglobal_batch_size = 64\n"
        '[activation_checkpoint]\nmode = "selective"\n',
    )
    for reading in (arguments, toml):
        found = values(reading)
        assert reading.framework is Framework.TORCHTITAN
        assert reading.model["name"].value == "llama-3.1-8b"
        assert (found["tp"], found["pp"], found["vpp"]) == (2, 2, 2)
        assert (found["micro_batch"], found["num_micro_batches"]) == (1, 8)
        assert found["schedule"] is Schedule.INTERLEAVED
        assert found["recompute"] is Recompute.SELECTIVE_OP
    assert toml.settings["tp"].where == "job.toml:5"


ROUND_TRIP = {
    "megatron": [
        {"tp": 2, "pp": 2, "recompute": Recompute.FULL},
        {"tp": 4, "cp": 2, "cp_comm": CpComm.ALL_GATHER, "micro_batch": 2},
        {"pp": 4, "vpp": 2, "zero": 0},
        {"pp": 4, "split": Split.BALANCED},
        {"zero": 3, "dp_replicate": 2, "recompute": Recompute.CORE_ATTENTION},
        {"tp": 2, "recompute": Recompute.FULL, "recompute_layers": 3},
        {"zero": 1, "offload": Offload.OPTIMIZER},
        {"zero": 1, "offload_layers": 4},
    ],
    "deepspeed": [
        {"zero": 3, "offload": Offload.OPTIMIZER | Offload.PARAMETERS},
        {"zero": 1, "tp": 2, "micro_batch": 2},
        {"cp": 4, "zero": 3, "recompute": Recompute.FULL},
    ],
    "accelerate": [
        {"zero": 3, "tp": 2, "recompute": Recompute.FULL},
        {"zero": 2, "dp_replicate": 2},
        {"zero": 3, "cp": 2, "cp_comm": CpComm.P2P},
        {"zero": 3, "cp": 2, "cp_comm": CpComm.ALL_TO_ALL},
    ],
    "nanotron": [
        {"tp": 2, "pp": 2, "zero": 1},
        {"cp": 2, "cp_comm": CpComm.P2P, "recompute": Recompute.FULL},
        {"cp": 2, "cp_comm": CpComm.ALL_GATHER},
    ],
}


@pytest.mark.parametrize(
    ("target", "given"), [(t, g) for t, plans in ROUND_TRIP.items() for g in plans]
)
def test_what_is_emitted_is_read_back(target, given, tmp_path):
    """Emitters and readers know the same words: the plan comes back field by field."""
    there = scenario(load_model("llama-3.1-8b"), num_gpus=16, seq_len=4096, global_batch=64)
    plan = complete_plan(there, framework=TARGETS[target].framework, **given)
    order = Order(scenario=there, plan=plan)
    assert not obstacles_of(order, TARGETS[target])
    paths = []
    for file in launch(order, TARGETS[target].program(order), launcher="torchrun"):
        if target != "nanotron" or file.name != "train.sh":
            paths.append(written(tmp_path, file.name, file.text))
    found = service.check(
        {
            "files": paths,
            "model": "llama-3.1-8b",
            "cluster": "16xH100",
            "job": {"seq_len": 4096, "global_batch": 64},
            "best": False,
        }
    )
    assert found["legal"], found["problems"]
    from meshplan.app.result import plan_json

    assert found["plan"] == plan_json(plan)


SLURM = """#!/bin/bash
#SBATCH --job-name=x --nodes=4
#SBATCH --gres=gpu:h100:8   # one node
#SBATCH --ntasks-per-node 1
srun torchrun --nnodes {nodes} --nproc-per-node $SLURM_GPUS_ON_NODE pretrain_gpt.py \\
  --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 \\
  --bf16 --sequence-parallel --use-distributed-optimizer
"""


@pytest.mark.parametrize("nodes", ["$SLURM_NNODES", "${SLURM_JOB_NUM_NODES}", "$SLURM_NTASKS"])
def test_directives_of_slurm_are_read(tmp_path, nodes):
    path = tmp_path / "train.sbatch"
    path.write_text(SLURM.format(nodes=nodes))
    asked = {"files": [str(path)], "model": "llama-3.1-8b", "cluster": "8xH100", "best": False}
    with pytest.raises(UserError) as caught:
        service.check(asked)
    (problem,) = caught.value.problems
    assert problem.code == "check_contradiction" and problem.value == 32
    found = service.check({**asked, "cluster": "32xH100"})
    assert found["plan"]["dp"] == 16


def test_nodes_that_only_a_run_shows_contradict_nothing(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(SLURM.format(nodes="$NODES").replace("$SLURM_GPUS_ON_NODE", "8"))
    asked = {"files": [str(path)], "model": "llama-3.1-8b", "cluster": "64xH100", "best": False}
    found = service.check(asked)
    assert found["plan"]["dp"] == 32
    assert "num_nodes" in [unread["name"] for unread in found["unknown"]]


def test_a_range_of_nodes_stays_unknown():
    assert slurm_variables("#SBATCH --nodes=2-4\n#SBATCH -N 3\n")["SLURM_NNODES"] == "3"
    assert slurm_variables("#SBATCH --nodes=2-4\n") == {}
    assert slurm_variables("##SBATCH --nodes=2\n# SBATCH --nodes=3\n") == {}


def test_two_directives_on_one_line_of_slurm_have_its_number():
    text = "#!/bin/bash\n#SBATCH --nodes=16 --gpus-per-node=8\n"
    found = slurm_settings(Source(name="train.sbatch", text=text))
    assert {name: setting.value for name, setting in found.items()} == {
        "num_nodes": 16,
        "gpus_per_node": 8,
    }
    assert {setting.where for setting in found.values()} == {"train.sbatch:2"}


def test_a_file_of_merges_is_a_vocabulary_of_gpt2(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 "
        "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
        "--micro-batch-size 4 --global-batch-size 64 --fp16 --tensor-model-parallel-size 1 "
        "--vocab-file $3 --merge-file $4\n"
    )
    found = service.check({"files": [str(path)], "cluster": "8xA100", "best": False})
    assert found["scenario"]["model"]["record"]["vocab"] == 50257


@pytest.mark.parametrize("there", [True, False])
def test_names_of_files_do_not_reach_the_terminal_raw(tmp_path, capsys, there):
    path = str(tmp_path / "a\x1b[31m\x07.sh")
    if there:
        Path(path).write_text("torchrun x.py --tensor-model-parallel-size zero")
    for words in (["check", path], ["emit", f"{path}.json", "--to", "megatron"]):
        assert run(words) == 2
        said = capsys.readouterr().err
        assert "\x1b" not in said
        assert "\x07" not in said
        assert "\\u001b[31m" in said


@pytest.mark.parametrize(("lang", "words"), [("en", "is no UTF-8"), ("zh", "不是 UTF-8")])
def test_a_name_that_is_no_utf8_gets_one_message(capsys, lang, words):
    assert run(["check", "a\udcff.sh", "--lang", lang]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "\\udcff" in said
    assert "surrogates" not in said


def test_two_switches_that_exclude_each_other_are_both_named(tmp_path, capsys):
    path = written(tmp_path, "c.json", '{"bf16": {"enabled": true}, "fp16": {"enabled": true}}')
    assert run(["check", path, "--model", "llama-3.1-8b", "--cluster", "8xH100"]) == 2
    assert "fp16.enabled and bf16.enabled are both true" in " ".join(
        capsys.readouterr().err.split()
    )


def rounds(folder, *, stated):
    """32 micro-batches for 13 stages of two chunks, in rounds of a stated length."""
    options = "--pipeline-model-parallel-size 13 --num-virtual-stages-per-pipeline-rank 2"
    options += " --micro-batch-size 1 --global-batch-size 32 --seq-length 4096 --bf16"
    group = f" --microbatch-group-size-per-virtual-pipeline-stage {stated}" if stated else ""
    return service.check(
        {
            "files": [written(folder, "run.sh", f"torchrun pretrain_gpt.py {options}{group}\n")],
            "model": "deepseek-v2",
            "cluster": "13xH100",
            "best": False,
        }
    )


def test_rounds_of_a_stated_length_need_no_multiple_of_the_stages(tmp_path):
    # megatron/core/pipeline_parallel/schedules.py: N in [pp, M], M % N zero or at least pp
    refused = {p["code"] for p in rounds(tmp_path, stated=0)["problems"]}
    assert "rule_interleaving_fills_rounds" in refused
    for legal in (16, 32, 19):
        found = rounds(tmp_path, stated=legal)
        assert "rule_interleaving_fills_rounds" not in {p["code"] for p in found["problems"]}
    for illegal in (12, 24, 33):
        with pytest.raises(UserError) as caught:
            rounds(tmp_path, stated=illegal)
        assert [p.code for p in caught.value.problems] == ["check_group_refused"]


def test_sequence_parallelism_without_tensor_parallelism_is_switched_off(tmp_path):
    # as megatron/training/arguments.py does; as in its own examples/llama
    options = "--tensor-model-parallel-size 1 --sequence-parallel --seq-length 4096 --bf16"
    more = "--micro-batch-size 1 --global-batch-size 64"
    path = written(tmp_path, "run.sh", f"torchrun pretrain_gpt.py {options} {more}\n")
    asked = {"files": [path], "model": "llama-3.1-8b", "cluster": "8xH100", "best": False}
    found = service.check(asked)
    assert found["legal"] and found["plan"]["sp"] is False


@pytest.mark.parametrize("kind", ["MULTI_GPU", "MULTI_NPU", "MULTI_XPU"])
def test_data_parallelism_on_any_accelerator_is_one(tmp_path, kind):
    text = f"distributed_type: {kind}\nnum_processes: 8\nnum_machines: 1\nmixed_precision: bf16\n"
    asked = {"files": [written(tmp_path, "accelerate.yaml", text)], "model": "llama-3.2-1b"}
    job = {"seq_len": 2048, "global_batch": 8}
    found = service.check({**asked, "cluster": "8xH100", "job": job, "best": False})
    assert found["framework"] == "accelerate" and found["plan"]["zero"] == 0


def test_a_key_that_was_left_empty_may_be_filled_later():
    # nanotron's own examples/config_qwen_with_moe.yaml: moe_config is null and then a mapping
    assert parse_yaml("a:\n  b: null\n  c: 1\n  b: 2\n", origin="x")["a"]["b"] == 2
    with pytest.raises(UserError) as caught:
        parse_yaml("a:\n  b: 2\n  b: null\n", origin="x")
    assert [p.code for p in caught.value.problems] == ["duplicate_key"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", None),
        ("--grad-reduce-in-bf16", None),
        ("--cross-entropy-loss-fusion", "--cross-entropy-loss-fusion"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", None),
        (
            "--recompute-granularity selective --recompute-modules core_attn gdn_norm_out",
            "--recompute-modules gdn_norm_out",
        ),
    ],
)
def test_savings_that_no_plan_counts_are_named(tmp_path, options, named):
    sizes = "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16"
    path = written(tmp_path, "run.sh", f"torchrun pretrain_gpt.py {sizes} {options}\n")
    asked = {"files": [path], "model": "llama-3.1-8b", "cluster": "8xH100", "best": False}
    found = {f["code"]: f["numbers"] for f in service.check(asked)["findings"]}
    assert found.get("saves_uncounted", {}).get("options") == named


def judged(tmp_path, options, **more):
    sizes = "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16"
    path = written(tmp_path, "run.sh", f"torchrun pretrain_gpt.py {sizes} {options}\n")
    asked = {"files": [path], "model": "llama-3.1-8b", "cluster": "8xH100", "best": False}
    return service.check({**asked, **more})


def peak_and_step(found):
    (entry,) = found["plans"]
    return entry["memory"]["peak_bytes"], entry["step_time_s"]


SHARDED = "--use-distributed-optimizer"
FP8 = f"{SHARDED} --fp8-format hybrid"


@pytest.mark.parametrize(
    ("plain", "switch", "saved_per_parameter"),
    [
        # 16-bit gradient buffers in place of 32-bit ones; of the own eighth a 32-bit copy
        (SHARDED, "--grad-reduce-in-bf16", 2.0),
        # no 16-bit weights beside two 8-bit ones, embedding and head excepted
        (FP8, "--fp8-param-gather", 2.0 * 6.98 / 8.03),
    ],
)
def test_switches_of_megatron_are_counted(tmp_path, plain, switch, saved_per_parameter):
    without, with_it = (judged(tmp_path, o) for o in (plain, f"{plain} {switch}"))
    assert with_it["legal"]
    (peak, step), (less, faster) = peak_and_step(without), peak_and_step(with_it)
    saved = saved_per_parameter * 8.03e9 * 1.05  # with what of it fragments
    assert peak - less == pytest.approx(saved, rel=0.02)
    assert faster < step, "half of the traffic"
    assert not [f for f in with_it["findings"] if f["code"] == "saves_uncounted"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        # megatron/training/arguments.py:1060 and 1808, transformer_config.py:1439 of 0.19.2
        ("--fp8-format hybrid --fp8-param-gather", "rule_fp8_weights_are_sharded"),
        (f"{SHARDED} --fp8-param-gather", "rule_fp8_weights_need_fp8"),
    ],
)
def test_what_weights_in_eight_bits_need(tmp_path, options, rule):
    found = judged(tmp_path, options)
    assert not found["legal"] and [p["code"] for p in found["problems"]] == [rule]


def test_a_switch_of_the_file_follows_the_variant_of_the_reader(tmp_path):
    both = judged(tmp_path, f"{SHARDED} --grad-reduce-in-bf16", variant="megatron-2022")
    assert both["scenario"]["variant"] == "megatron-2022+bf16-gradients"


@pytest.mark.parametrize(("model", "without"), [("llama-3.1-8b", True), ("mixtral-8x7b", False)])
def test_recompute_of_norms_that_no_module_holds_is_said(tmp_path, model, without):
    options = "--recompute-granularity selective --recompute-modules layernorm"
    found = judged(tmp_path, f"{SHARDED} {options}", model=model)
    codes = [f["code"] for f in found["findings"]]
    assert ("norm_recompute_without_effect" in codes) == without


OFFLOADED = f"{FP8} --fp8-param-gather --optimizer-cpu-offload --use-precision-aware-optimizer"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        # megatron/training/arguments.py:1889 and transformer_config.py:2003 at d98e8a64
        (OFFLOADED, None),
        (f"{OFFLOADED} --fp8-recipe delayed", None),
        (f"{OFFLOADED} --fp8-recipe tensorwise", "rule_offloaded_fp8_weights_are_delayed"),
        (f"{OFFLOADED} --fp8-recipe mxfp8", "rule_offloaded_fp8_weights_are_delayed"),
        (f"{OFFLOADED} --fp8-recipe blockwise", "rule_offloaded_fp8_weights_are_delayed"),
        (
            f"{FP8} --recompute-granularity selective --recompute-modules layernorm",
            "rule_delayed_scaling_keeps_norms",
        ),
        (
            f"{FP8} --fp8-recipe tensorwise --recompute-granularity selective"
            " --recompute-modules layernorm",
            None,
        ),
        (
            f"{FP8} --fp8-recipe blockwise --recompute-granularity selective"
            " --recompute-modules layernorm",
            None,
        ),
    ],
)
def test_what_delayed_scaling_allows_and_refuses(tmp_path, options, rule):
    found = judged(tmp_path, options, cluster="8xB200")
    assert [p["code"] for p in found["problems"]] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("recipe", "variant"),
    [
        ("", ""),
        ("--fp8-recipe delayed", ""),
        ("--fp8-recipe tensorwise", "megatron+tensorwise"),
        ("--fp8-recipe blockwise", "megatron+blockwise"),
    ],
)
def test_scales_of_8_bit_tensors_are_those_of_the_recipe(tmp_path, recipe, variant):
    found = judged(tmp_path, f"{FP8} {recipe}", cluster="8xH100")
    assert found["scenario"].get("variant", "") == variant
    assert not [u for u in found["unknown"] if u["name"] == "fp8-recipe"]


def test_recipes_of_ones_own_are_listed_and_misspelt_ones_refused(tmp_path):
    found = judged(tmp_path, f"{FP8} --fp8-recipe custom", cluster="8xH100")
    assert [u["option"] for u in found["unknown"]] == ["--fp8-recipe custom"]
    with pytest.raises(UserError) as caught:
        judged(tmp_path, f"{FP8} --fp8-recipe block", cluster="8xH100")
    assert [p.code for p in caught.value.problems] == ["check_unknown_value"]


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("bf16_with_fp8_delayed_scaling_mixed", None),
        ("bf16_with_fp8_current_scaling_mixed", "tensorwise"),
        ("bf16_with_fp8_subchannel_scaling_mixed", "blockwise"),
        ("nanov2_bf16_with_fp8_current_scaling_mixed", "blockwise"),
    ],
)
def test_recipes_of_mixed_precision_of_megatron_bridge(name, recipe):
    line = f"python run_recipe.py --recipe llama3_8b_pretrain_config mixed_precision={name}"
    reading = text("a.sh", f"{line} model.tensor_model_parallel_size=2")
    scales = {"tensorwise", "delayed", "blockwise"} & set(reading.settings)
    assert scales == ({recipe} if recipe else set())


@pytest.mark.parametrize(
    ("options", "layers", "modules", "idle"),
    [
        # blocks of more layers than there are: all of them (transformer_block.py)
        ("full --recompute-method block --recompute-num-layers 40", 0, "full", None),
        ("full --recompute-method block --recompute-num-layers 32", 0, "full", None),
        ("full --recompute-method block --recompute-num-layers 31", 31, "full:31", None),
        # a module that no layer has is never asked for
        ("selective --recompute-modules core_attn moe", 0, "core_attention", "moe"),
        ("selective --recompute-modules moe shared_experts", 0, "none", "moe, shared_experts"),
    ],
)
def test_recompute_that_megatron_takes_is_taken(tmp_path, options, layers, modules, idle):
    found = judged(tmp_path, f"{SHARDED} --recompute-granularity {options}")
    assert found["legal"], found["problems"]
    assert (found["plan"]["recompute"], found["plan"]["recompute_layers"]) == (modules, layers)
    named = {f["code"]: f["numbers"] for f in found["findings"]}
    assert named.get("modules_without_effect", {}).get("modules") == idle


NANOTRON = """parallelism: {dp: 2, tp: 2, pp: 2}
tokens: {sequence_length: 512, micro_batch_size: 4, batch_accumulation_per_replica: 3}
model:
  model_config: {num_hidden_layers: 4, hidden_size: 64, num_attention_heads: 4, vocab_size: 512}
"""


def test_a_config_that_states_all_degrees_states_the_gpus(tmp_path):
    path = written(tmp_path, "config.yaml", NANOTRON)
    found = service.check({"files": [path], "cluster": "H100", "best": False})
    assert found["legal"] and str(found["scenario"]["cluster"]).startswith("8x")
    assert found["scenario"]["job"]["global_batch"] == 24
    # another number of GPUs is what its degrees do not multiply to
    other = service.check({"files": [path], "cluster": "16xH100", "best": False})
    assert {p["code"] for p in other["problems"]} == {"rule_degrees_multiply_to_gpus"}


def test_one_expert_is_a_dense_model(tmp_path):
    # Megatron-DeepSpeed's ds_pretrain_gpt_1.3B_dense.sh
    script = SCRIPT.replace("--num-layers", "--num-experts 1 --num-layers")
    found = service.check(
        {"files": [written(tmp_path, "run.sh", script)], "cluster": "64xH100", "best": False}
    )
    assert found["legal"] and found["plan"]["ep"] == found["plan"]["etp"] == 1


@pytest.mark.parametrize(
    ("lang", "said"), [("en", "this is the best plan of all"), ("zh", "这就是全局最佳方案")]
)
def test_the_best_plan_is_neither_off_nor_helped_by_itself(tmp_path, capsys, lang, said):
    job = ["llama-3.1-70b", "--cluster", "64xH100", "--seq-len", "8192", "--global-batch", "1024"]
    folder = str(tmp_path / "run")
    plans = str(tmp_path / "plans.json")
    assert run(["plan", *job, "-o", plans]) == 0
    assert run(["emit", plans, "--to", "megatron", "-o", folder]) == 0
    capsys.readouterr()
    script = str(tmp_path / "run" / "train.sh")
    assert run(["check", script, "--cluster", "64xH100", "--lang", lang]) == 0
    assert said in capsys.readouterr().out
    found = service.check({"files": [script], "cluster": "64xH100"})
    assert found["findings"] == [] and found["best"]["plan"] == found["plans"][0]["plan"]


@pytest.mark.parametrize(("tp", "pp", "named"), [(4, 1, True), (8, 8, False)])
def test_sequence_parallelism_is_missed_where_it_would_help(tmp_path, tp, pp, named):
    """On too few stages the memory asks for it; with little to compute it costs time."""
    script = SCRIPT.replace("--sequence-parallel ", "").replace("TP:-4", f"TP:-{tp}")
    script = script.replace("model-parallel-size 4", f"model-parallel-size {pp}")
    path = written(tmp_path, "train.sh", script)
    found = service.check({"files": [path], "cluster": "64xH100", "best": False})
    assert ("no_sequence_parallelism" in {f["code"] for f in found["findings"]}) == named
