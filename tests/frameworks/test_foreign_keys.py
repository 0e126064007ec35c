"""Keys that are called refused or ignored, asked of the frameworks' own loaders."""

import subprocess

import pytest

from meshplan.check.foreign import known_to
from meshplan.check.read import read_text
from meshplan.check.records import Source
from meshplan.errors import ProblemList

_DEEPSPEED = """
import json, os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed.comm.comm as communication
import deepspeed.runtime.config as runtime
for module in (communication, runtime.dist):
    module.get_rank, module.get_world_size = (lambda *a, **k: 0), (lambda *a, **k: 1)
runtime.DeepSpeedConfig(json.load(open(sys.argv[1])))
"""
_ACCELERATE = """
import sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
found = launch_command_parser().parse_args(["--config_file", sys.argv[1], "train.py"])
_validate_launch_command(found)
"""
_MEGATRON = """
import shlex, sys
sys.path.insert(0, "tools/frameworks")
import stand_ins
stand_ins.install("deep_ep")
from megatron.training.arguments import parse_args
sys.argv = ["pretrain_gpt.py", *shlex.split(open(sys.argv[1]).read())]
parse_args()
"""
_TITAN = """
import sys
sys.path.insert(0, "tools/frameworks")
import stand_ins
stand_ins.install()
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
exec(open(sys.argv[1]).read().replace("model_spec=None,", ""))
mine()
"""
_FILES = {
    "deepspeed": (
        "a.json",
        _DEEPSPEED,
        '{"train_batch_size": 8, "gradient_clipping": 1.0, "bf16": {"enabled": true},\n'
        '"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}},\n'
        '"comms_logger": {"enabled": false}, "aio": {"queue_depth": 8},\n'
        '"compile": {"deepcompile": false}, "wandb": {"enabled": false}}\n',
        (
            ('"gradient_clipping"', '"gradient_cliping"'),
            ('"enabled": true', '"enable": true'),
            ('"offload_param"', '"ofload_param"'),
            ('"device"', '"devise"'),
            ('"deepcompile"', '"deep_compile"'),
            ('"queue_depth"', '"queue_deep"'),
            ('"wandb": {"enabled"', '"wandb": {"enable"'),
        ),
    ),
    "accelerate": (
        "a.yaml",
        _ACCELERATE,
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
        "num_machines: 1\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_offload_params: false\n",
        (
            ("num_machines", "num_machine"),
            ("fsdp_config:", "fsdp_configs:"),
            ("fsdp_offload_params", "fsdp_ofload_params"),
        ),
    ),
    "megatron": (
        "a.sh",
        _MEGATRON,
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64\n"
        "--max-position-embeddings 64 --micro-batch-size 1 --tensor-model-parallel-size 1 --bf16\n",
        (
            ("--hidden-size", "--hiden-size"),
            ("--tensor-model-parallel-size", "--tensor-model-paralel-size"),
        ),
    ),
    "torchtitan": (
        "a.py",
        _TITAN,
        "from torchtitan.trainer import Trainer\n\ndef mine() -> Trainer.Config:\n"
        "    return Trainer.Config(\n        model_spec=None,\n"
        "        training=TrainingConfig(local_batch_size=1),\n"
        "        parallelism=ParallelismConfig(tensor_parallel_degree=2),\n    )\n",
        (
            ("tensor_parallel_degree", "tensor_paralel_degree"),
            ("parallelism=", "paralelism="),
            ("local_batch_size", "local_batchsize"),
        ),
    ),
}


def _takes(python, script, path):
    command = [python, "-c", script, str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", _FILES)
def test_frameworks_refuse_what_is_called_refused(python, tmp_path, kind):
    name, script, text, slips = _FILES[kind]
    path = tmp_path / name
    path.write_text(text)
    assert _takes(python, script, path), "the file itself"
    for right, wrong in slips:
        assert right in text
        path.write_text(text.replace(right, wrong, 1))
        source = Source(name=name, text=path.read_text())
        (key,) = read_text(source, problems=ProblemList()).foreign
        assert _takes(python, script, path) is not key.refused, (right, wrong)


_OPTIONS = """
import argparse, sys
sys.path.insert(0, "tools/frameworks")
import stand_ins
stand_ins.install("deep_ep")
from megatron.training import arguments
def parse(self, *given, **named):
    print(*(name[2:] for name in self._option_string_actions if name.startswith("--")))
    raise SystemExit
argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = parse
arguments.parse_args()
"""


def test_options_of_megatron_are_all_known(python):
    command = [python, "-c", _OPTIONS]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    names = {name.replace("_", "-") for name in found} - {"help"}
    assert len(names) > 800
    assert names <= known_to("megatron").sections["."]
