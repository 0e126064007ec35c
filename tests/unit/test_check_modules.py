"""Python modules of torchtitan: read from their text, never imported, nothing guessed."""

import re

import pytest

from meshplan.app import service
from meshplan.check.python_values import Unread, parse_module
from meshplan.check.read import read_files, read_text
from meshplan.check.records import Source
from meshplan.errors import ProblemList, UserError
from meshplan.space.plan import Recompute, Schedule

# in the manner of torchtitan/models/llama3/config_registry.py of 0.3.0
REGISTRY = """\
import os
from dataclasses import replace

from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

TP = 4
SEQ = 2 * 4096


def base(pp: int = 1) -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=2, seq_len=SEQ, global_batch_size=64),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=TP,
            pipeline_parallel_degree=pp,
        ),
        activation_checkpoint=FullAC.Config(),
    )


def train() -> Trainer.Config:
    config = base(pp=2)
    config.training.local_batch_size *= 4
    config.parallelism = replace(
        config.parallelism, pipeline_parallel_schedule="Interleaved1F1B"
    )
    config.activation_checkpoint = SelectiveAC.Config()
    config.compile = CompileConfig(enable=True)
    {more}
    return config
"""


def reading(more="pass", **given):
    source = Source(name="my.py", text=REGISTRY.replace("{more}", more))
    problems = ProblemList()
    found = read_text(source, problems=problems, **given)
    problems.raise_if_any()
    return found


def test_functions_are_followed_and_lines_are_those_of_the_last_word():
    found = reading()
    said = {name: setting.value for name, setting in found.settings.items()}
    assert found.model["name"].value == "llama-3.1-8b"
    assert (said["tp"], said["pp"], said["vpp"], said["seq_len"]) == (4, 2, 2, 8192)
    assert said["schedule"] is Schedule.INTERLEAVED
    assert said["recompute"] is Recompute.SELECTIVE_OP
    # eight sequences in micro-batches of one
    assert (said["micro_batch"], said["num_micro_batches"]) == (1, 8)
    assert said["variant"] == "torchtitan"
    lines = REGISTRY.splitlines()
    for name, words in (("tp", "tensor_parallel_degree=TP"), ("recompute", "SelectiveAC.Config")):
        place = int(found.settings[name].where.removeprefix("my.py:"))
        assert words in lines[place - 1]
    assert not found.unknown


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('config.parallelism.tensor_parallel_degree = int(os.environ["TP"])', "tensor_parallel"),
        ("if os.cpu_count() > 8: config.parallelism.context_parallel_degree = 2", "context_par"),
        ("config.training.seq_len = open('len').read()", "seq_len"),
        ("config.parallelism.tensor_parallel_degree = TP if TP else 2", "tensor_parallel_degree"),
        ("config.model_spec = other(8)", "model_spec"),
        ('config.model_spec = model_registry("8B", moe_comm_backend="deepep")', "deepep"),
        ("for i in os.listdir(): config.training.seq_len = i", "seq_len"),
        ("config.parallelism.update(os.environ)", "parallelism"),
        ("config.activation_checkpoint = MemoryBudgetAC.Config(memory_budget=0.5)", "MemoryBudget"),
        ('config.training.dtype = "bfloat16"', "training.dtype"),
    ],
)
def test_what_only_a_run_shows_is_named(more, named):
    found = reading(more)
    assert [u.spelled for u in found.unknown if named in u.spelled], found.unknown
    line = REGISTRY.splitlines().index("    {more}") + 1
    assert {u.where for u in found.unknown} == {f"my.py:{line}"}
    if "tensor_parallel" in named:
        assert "tp" not in found.settings


def test_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile = "open('owned', 'w'); __import__('os').system('touch owned')"
    reading(hostile)
    text = f"import os\nos.system('touch owned')\n{hostile}\n" + REGISTRY.replace("{more}", "pass")
    parse_module(Source(name="x.py", text=text)).result("train")
    assert not list(tmp_path.iterdir())


def test_options_of_the_command_override_the_module(tmp_path):
    (tmp_path / "my.py").write_text(REGISTRY.replace("{more}", "pass"))
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc-per-node 8 -m torchtitan.train --module my --config base "
        "--parallelism.tensor_parallel_degree 2\n"
    )
    found = read_files([str(tmp_path / "my.py"), str(tmp_path / "run.sh")])
    assert found.get("tp") == 2  # of the command
    assert found.get("pp") == 1  # of base(), which --config names
    assert found.get("recompute") is Recompute.FULL
    assert not found.named
    alone = read_files([str(tmp_path / "run.sh")])
    assert [n.value for n in alone.named] == ["my.py"]


def test_one_of_several_configs_is_asked_for():
    text = REGISTRY.replace("{more}", "pass") + "\n\ndef other():\n    return base()\n"
    with pytest.raises(UserError) as caught:
        read_text(Source(name="my.py", text=text), problems=ProblemList())
    assert caught.value.problems[0].code == "check_several_configs"
    assert caught.value.problems[0].value == "train, other"


@pytest.mark.parametrize(
    "text",
    ["from torchtitan import x\n", "import torchtitan\ndef f(:\n", "torchtitan\n" + "(" * 3000],
)
def test_modules_without_a_config_get_one_message(text):
    with pytest.raises(UserError) as caught:
        read_text(Source(name="x.py", text=text), problems=ProblemList())
    assert caught.value.problems[0].code in ("check_no_config", "check_syntax", "check_too_deep")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("def f():\n    return f()", None),
        ("def f():\n    x = [1]\n    for i in x:\n        y = i\n    return y", 1),
        ("def f():\n    a, b = 3, 4\n    return a * b - 2 // 1", 10),
        ("def f(a, b=2, *, c=3):\n    return a + b + c\ndef g():\n    return f(1)", 6),
        ("def f():\n    return 1 // 0", None),
        ("def f():\n    return 9 ** 9 ** 9", None),
        ("X = 1\ntry:\n    X = 2\nexcept E:\n    X = 3\ndef f():\n    return X", None),
        ("class A:\n    def g(self):\n        return 1\ndef f():\n    return 7", 7),
        ("def f():\n    def g():\n        return 1\n    return 8", 8),
        ("def f():\n    while True:\n        return 1\n    return 2", None),
    ],
)
def test_values_are_read_or_left_unread(text, value):
    module = parse_module(Source(name="x.py", text=text))
    found = module.result(
        "g" if "def g" in text and "def g(self" not in text and value == 6 else "f"
    )
    assert found == value if value is not None else not isinstance(found, int)


def test_loops_without_end_end():
    text = "X = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\ndef f():\n" + "".join(
        f"{'    ' * (depth + 1)}for a{depth} in X:\n" for depth in range(12)
    )
    text += "    " * 13 + "y = 1\n    return y\n"
    assert isinstance(parse_module(Source(name="x.py", text=text)).result("f"), Unread)


# stages of torchtitan 0.3.0's _generate_llm_fqn_per_model_part, by hand from its code
@pytest.mark.parametrize(
    ("options", "stages"),
    [
        # 34 units on 4 stages: 9, 9, 8, 8 with an end in the first and the last
        ("pipeline_parallel_degree = 4", [8, 9, 8, 7]),
        ("pipeline_parallel_degree = 2", []),
        (
            "pipeline_parallel_degree = 4\\npipeline_parallel_first_stage_less_layers = 0\\n"
            "pipeline_parallel_last_stage_less_layers = 0",
            [],
        ),
        (
            "pipeline_parallel_degree = 2\\npipeline_parallel_layers_per_stage = 9\\n"
            'pipeline_parallel_schedule = "Interleaved1F1B"',
            [8, 9, 8, 7],
        ),
    ],
)
def test_stages_are_dealt_as_torchtitan_does(tmp_path, options, stages):
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\n'
        "seq_len = 4096\n[parallelism]\n" + options.replace("\\n", "\n") + "\n"
    )
    (tmp_path / "job.toml").write_text(text)
    files = [str(tmp_path / "job.toml")]
    found = service.check({"files": files, "cluster": "8xH100", "best": False})
    assert found["plan"]["stage_layers"] == stages
    assert re.fullmatch("even|balanced", found["plan"]["split"])
    assert found["scenario"]["variant"] == "torchtitan-eager"
