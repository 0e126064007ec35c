"""Scripts with branches: the branch that a run takes is read, or what they differ in is unknown."""

import pytest

from meshplan.app import service
from meshplan.check.branches import test_value as value_of
from meshplan.check.build import assemble
from meshplan.check.read import read_text
from meshplan.check.records import Source
from meshplan.check.shell import commands, option_words
from meshplan.check.shell_words import UNKNOWN
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.model import Moe
from meshplan.space.plan import Framework, Recompute

U = UNKNOWN
CHOICES = {
    "if [ $S = 8B ]; then A=1\nelif [ $S = 70B ]; then A=2\nelse A=3\nfi": {"8B": "1", "70B": "2"},
    'if [[ "$S" == 8* ]]; then A=1; else A=2; fi': {"8B": "1", "70B": "2"},
    "if [ $S = 8B ] && [ 2 -gt 1 ]; then A=1; else A=2; fi": {"8B": "1", "1B": "2"},
    "if ! [ $S != 8B ]; then A=1; else A=2; fi": {"8B": "1", "1B": "2"},
    "case $S in\n 8B|7B)\n A=1 ;;\n '70B') A=2;;\n *) A=3 ;;\nesac": {"7B": "1", "9B": "3"},
    "case $S in 8B) if [ 1 = 1 ]; then A=1; fi;; *) A=2;; esac": {"8B": "1", "9B": "2"},
    'A=2\n[ "$S" = 8B ] && A=1': {"8B": "1", "9B": "2"},
    'A=1\n[ "$S" = 8B ] || A=2': {"8B": "1", "9B": "2"},
    "if [ $S = 8B ]; then\nif [ -z '' ]; then A=1; else A=5; fi\nelse A=2; fi": {"8B": "1"},
}


@pytest.mark.parametrize("script", CHOICES)
def test_the_branch_of_a_known_value_is_taken(script):
    for size, want in CHOICES[script].items():
        assert words_of(f"S={size}\n{script}\nrun --x $A")[-1] == want


EXPANDED = {
    ': "${A:=2}"\nrun --x $A': ["2"],
    "A=4\n: ${A:=2}\nrun --x $A": ["4"],
    "if [ 1 = 2 ]; then\n: ${A:=2}\nelse\n: ${A:=4}\nfi\nrun --x $A": ["4"],
    "A=\nrun --x ${A:-3}": ["3"],
    "A=\nrun --x ${A-3}": [],
    "A=1\nrun --x ${A:+--y}": ["--y"],
    "A=\nrun --x ${A:+--y}": [],
    "run --x ${A:+--y}": [U],
}


@pytest.mark.parametrize("script", EXPANDED)
def test_defaults_are_those_of_bash(script):
    assert words_of(script)[2:] == EXPANDED[script]


UNDECIDED = {
    "if [ $1 = 8B ]; then A=1; else A=2; fi": U,
    "if [ $1 = 8B ]; then A=1; else A=1; fi": "1",
    'if [ -z "$A" ]; then A=4; fi': "4",
    "A=4\nwhile [[ $# -gt 0 ]]; do case $1 in --tp) A=$2; shift 2;; *) shift;; esac; done": "4",
    "A=1\nfor A in 1 2 4; do :; done": U,
    "A=4\nif [ -f x ]; then A=2; fi": U,
}


@pytest.mark.parametrize("script", UNDECIDED)
def test_what_branches_disagree_on_is_unknown(script):
    assert words_of(f"{script}\nrun --x $A")[-1] == UNDECIDED[script]


@pytest.mark.parametrize(
    "script",
    [
        'O="--x 1"\nif [ -n "$W" ]; then O+=" --y 2 --z"; fi\nrun $O',
        'O=(--x 1)\nif [ -n "$W" ]; then O+=(--y 2 --z); fi\nrun ${O[@]}',
        'O=(--x 1 --y=\ufffd --z=\ufffd)\nif (( $# > 0 )); then O=("$@"); fi\nrun "${O[@]}"',
        'O=(--x 1)\n[ -n "$W" ] && O+=(--y 2 --z)\nrun "${O[@]}"',
        'if [ -n "$W" ]; then P="--y 2 --z"; else P=""; fi\nrun --x 1 $P',
    ],
)
def test_options_of_one_branch_alone_have_no_known_value(script):
    assert words_of(script)[1:] == ["--x", "1", f"--y={U}", f"--z={U}"]


@pytest.mark.parametrize(
    "script",
    [
        'O=" \\\n --x 1 \\\n --y 2"\nsrun -N 2 bash -c "python -u t.py ${O}"',
        "O='--x 1'\nsrun --label /bin/sh -c 'torchrun t.py $O --y 2'",
        'C="python t.py --x 1 --y 2"\neval "$C"',
        'bash -lc "cd /w && python t.py --x 1 --y 2 \\\n"',
    ],
)
def test_what_a_quoted_command_runs_is_read(script):
    assert words_of(script)[-4:] == ["--x", "1", "--y", "2"]


def test_lines_of_a_quoted_command_are_those_of_its_options():
    script = 'O=" \\\n    --x 1 \\\n    --y 2 \\\n    "\nsrun bash -c "python t.py ${O}"'
    lines = {word.text: word.line for word in option_words(commands(Source(name="s", text=script)))}
    assert (lines["--x"], lines["--y"]) == (2, 3)


def test_tests_are_decided_over_known_words_only():
    assert value_of(["[", "3", "-ge", "3", "]"]) is True
    assert value_of(["[", "a", "-ge", "3", "]"]) is None
    assert value_of(["[", "-f", "x", "]"]) is None
    assert value_of(["[", U, "=", "3", "]"]) is None
    assert value_of(["test", "a", "=", "b"]) is False
    assert value_of(["false"]) is False
    assert value_of(["grep", "x"]) is None


def test_branches_without_end_are_refused():
    script = "A=1\n" + "if [ $1 = 2 ]; then A=2\n" * 150 + "run --x $A"
    assert words_of(script)[-1] != ""
    many = "\n".join(f"V{i}=1\nif [ $1 = 2 ]; then V{i}=2; fi" for i in range(9000))
    with pytest.raises(UserError) as caught:
        list(commands(Source(name="s", text=many)))
    assert caught.value.problems[0].code == "check_too_many_words"


MEGATRON = (
    "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --vocab-size 32000 "
    "--seq-length 512 --micro-batch-size 1 --global-batch-size 64 --bf16"
)


def made_of(script, **given):
    problems = ProblemList()
    reading = read_text(Source(name="t.sh", text=script), problems=problems)
    problems.raise_if_any()
    return reading, assemble(reading, given)


def test_a_default_number_of_nodes_gives_way_to_the_cluster():
    nodes = 'N=${SLURM_NNODES:-"1"}'
    script = f"{nodes}\nD=(--nproc_per_node 8 --nnodes $N)\ntorchrun ${{D[@]}} {MEGATRON}"
    assert made_of(script, cluster="32xH100")[1].scenario.cluster.num_gpus == 32
    assert made_of(script, cluster="dgx-h100")[1].scenario.cluster.num_gpus == 8
    stated = script.replace(nodes, "N=2")
    with pytest.raises(UserError) as caught:
        made_of(stated, cluster="32xH100")
    problem = caught.value.problems[0]
    assert problem.numbers["option"] == "--nnodes 2 x --nproc-per-node 8 ="
    assert problem.value == 16


def test_a_flag_that_may_not_be_given_is_listed_and_not_taken():
    script = f'if [ -n "$S" ]; then O="--sequence-parallel"; fi\n{MEGATRON} $O'
    reading, made = made_of(script + " --tensor-model-parallel-size 2", cluster="8xH100")
    assert [u.spelled for u in reading.unknown] == ["--sequence-parallel"]
    assert not made.plan.sp


def test_groups_of_queries_count_only_with_their_flag():
    grouped = f"{MEGATRON} --num-query-groups 4"
    heads = [
        made_of(script, cluster="8xH100")[1].scenario.model.layers[0].mixer.num_kv_heads
        for script in (grouped, f"{grouped} --group-query-attention")
    ]
    assert heads == [16, 4]


def test_rotary_positions_by_their_old_name():
    model = made_of(f"{MEGATRON} --use-rotary-position-embeddings", cluster="8xH100")[1]
    assert model.scenario.model.num_positions == 0


def test_layers_that_options_do_not_describe_ask_for_the_model():
    with pytest.raises(UserError) as caught:
        made_of(f"{MEGATRON} --hybrid-override-pattern M-M*", cluster="8xH100")
    assert caught.value.problems[0].code == "check_model_unread"


def words_of(script):
    return [word.text for word in option_words(commands(Source(name="s", text=script)))]


def test_scripts_of_megatron_deepspeed_are_deepspeeds():
    script = f"deepspeed --num_nodes 2 --num_gpus 8 {MEGATRON} --deepspeed --zero-stage=2"
    reading, made = made_of(
        f"{script} --deepspeed_config=ds.json --checkpoint-activations", cluster="16xH100"
    )
    assert (made.plan.framework, made.plan.zero) == (Framework.DEEPSPEED, 2)
    assert made.plan.recompute == Recompute.FULL
    assert [(n.value, n.spelled) for n in reading.named] == [("ds.json", "--deepspeed-config")]


def test_a_named_file_counts_as_unread_until_it_is_given(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "run.sh").write_text("deepspeed train.py --deepspeed conf/ds.json --bf16 True")
    asked = {"model": "llama-3.2-1b", "cluster": "8xH100", "job": {"seq_len": 512}, "best": False}
    asked["job"]["global_batch"] = 64
    unread = {"code": "file_unread", "value": f"conf/ds.json ({tmp_path / 'run.sh'}:1)"}
    alone = service.check({**asked, "files": [str(tmp_path / "run.sh")]})
    both = service.check({**asked, "files": [str(tmp_path / n) for n in ("run.sh", "ds.json")]})
    assert unread in alone["assumptions"] and unread not in both["assumptions"]
    assert {"code": "micro_batch", "value": "1"} in both["assumptions"]


@pytest.mark.parametrize("strategy", ["HYBRID_SHARD", "4"])
def test_hybrid_sharding_of_accelerate_stays_within_a_machine(strategy):
    text = (
        "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\n"
        f"fsdp_config:\n  fsdp_sharding_strategy: {strategy}\n"
    )
    reading = read_text(Source(name="a.yaml", text=text), problems=ProblemList())
    assert [reading.get(n) for n in ("zero", "dp_shard", "dp_replicate")] == [3, 8, 2]


PATTERNS = {
    "--moe-layer-freq ([0]*2+[1]*2)*2": ([0, 0, 1, 1] * 2, [1] * 8),
    "--moe-layer-freq 2": ([1, 0] * 4, [1] * 8),
    "--window-attn-skip-freq 4": ([1] * 8, [1, 1, 1, 0] * 2),
    "--window-attn-skip-freq [1,0]*4": ([1] * 8, [1, 0] * 4),
}


@pytest.mark.parametrize("options", PATTERNS)
def test_layers_that_differ_by_a_pattern(options):
    name, pattern = options.split(" ")
    script = f"{MEGATRON} --num-experts 8 --window-size 63,0 {name} '{pattern}'"
    layers = made_of(script, cluster="8xH100")[1].scenario.model.layers
    routed = [int(isinstance(layer.ffn, Moe)) for layer in layers]
    inside = [int(layer.mixer.window_size is not None) for layer in layers]
    assert (routed, inside) == PATTERNS[options]


def test_a_flag_of_query_groups_alone_is_one_group():
    made = made_of(f"{MEGATRON} --group-query-attention", cluster="8xH100")[1]
    assert made.scenario.model.layers[0].mixer.num_kv_heads == 1


MODEL = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 1"
RIVALS = {
    f'if [ "$1" = big ]; then\nt pretrain_gpt.py {MODEL} --bf16\nelse\nt x.py {MODEL}\nfi': [
        ("pretrain_gpt.py", "train.sh:2"),
        ("x.py", "train.sh:4"),
    ],
    f"echo t pretrain_gpt.py {MODEL}\nt pretrain_gpt.py {MODEL}": [],
    f"for i in 1 2; do\nt pretrain_gpt.py {MODEL}\ndone": [],
    f"t preprocess_data.py --input a --workers 8\nt pretrain_gpt.py {MODEL}": [],
    f'srun bash -c "t pretrain_gpt.py {MODEL}"': [],
    "deepspeed a.py --deepspeed x.json --bf16\ndeepspeed b.py --deepspeed y.json": [
        ("a.py", "train.sh:1"),
        ("b.py", "train.sh:2"),
    ],
}


@pytest.mark.parametrize("script", RIVALS)
def test_which_of_several_training_commands_runs_is_unknown(script):
    found = read_text(Source(name="train.sh", text=script), problems=ProblemList())
    assert [(u.spelled, u.where) for u in found.unknown] == RIVALS[script]
