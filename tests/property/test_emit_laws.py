"""Whatever a model is called, emitted files run nothing of it and hold no place of this machine."""

import getpass
import os
import socket
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshplan.app import service
from meshplan.app.quick import llama_config
from meshplan.emit.launch import LAUNCHERS
from meshplan.emit.targets import TARGETS

CONFIG = {**llama_config(num_params_b=1.0), "hidden_act": "silu"}
HOSTILE = st.sampled_from(
    [
        "$(touch owned)",
        "`touch owned`",
        "a; touch owned;",
        "x\ntouch owned\n",
        "x\r\ntouch owned",
        "x\u2028touch owned",
        "'; touch owned; '",
        '"; touch owned; "',
        "END_OF_FILE\ntouch owned\nEND_OF_FILE",
        "${IFS}touch${IFS}owned",
        "#SBATCH --wrap='touch owned'",
        '"""\nimport os; os.system("touch owned")\n"""',
        "{{ touch }} %s %n {0}",
        "模型 名称 🦙",
        "../../etc/passwd",
        "-rf",
        "a" * 300,
        "| >owned",
        "!!python/object/apply:os.system ['touch owned']",
    ]
)
NAMES = HOSTILE | st.text(max_size=40)


def emitted(name, target, launcher):
    request = {
        "model": {"config": CONFIG, "name": name},
        "cluster": "16xH100",
        "job": {"seq_len": 2048, "global_batch": 32},
        "plan": {"tp": 2},
    }
    return service.emit({**request, "to": target, "launcher": launcher})["files"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("target", ["megatron", "accelerate", "deepspeed"])
@settings(deadline=None, max_examples=20)
@given(name=NAMES)
@example(name="END_OF_FILE")
@example(name="~0")
def test_a_name_is_never_run(tmp_path_factory, target, launcher, name):
    folder = tmp_path_factory.mktemp("run")
    stubs = folder / "bin"
    stubs.mkdir()
    for program in ("torchrun", "accelerate", "srun", "scontrol", "sky"):
        (stubs / program).write_text("#!/bin/sh\nexit 0\n")
        (stubs / program).chmod(0o755)
    where = {"PATH": f"{stubs}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "a", "SLURM_SUBMIT_DIR": "."}
    where |= {"MEGATRON_LM": "/opt/m", "TRAIN_SCRIPT": "x.py"}
    for file in emitted(name, target, launcher):
        assert "/" not in file["name"]
        text = file["text"]
        (folder / file["name"]).write_text(text, encoding="utf-8")
        commands = [["bash", file["name"]]] if file["name"].endswith((".sh", ".sbatch")) else []
        if file["name"] == "trainjob.yaml":
            trainer = yaml.safe_load(text)["spec"]["trainer"]
            commands = [[*trainer["command"], *trainer["args"]]]
        elif file["name"].endswith(".yaml"):
            assert isinstance(yaml.safe_load(text), dict)
        for command in commands:
            subprocess.run(command, cwd=folder, env=where, capture_output=True, check=False)
    assert not list(folder.rglob("owned"))


@pytest.mark.parametrize("target", TARGETS)
def test_no_place_of_this_machine_is_written(target, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_a_person")
    monkeypatch.chdir(tmp_path)
    asked = {"model": "llama-3.1-8b", "cluster": "16xH100"}
    asked |= {"job": {"seq_len": 2048, "global_batch": 32}, "to": target}
    private = {str(Path.home()), str(tmp_path), os.getcwd(), socket.gethostname(), "hf_secret"}
    private.add(f"/{getpass.getuser()}/")
    for launcher in LAUNCHERS:
        for file in service.emit({**asked, "launcher": launcher, "plan": {"tp": 2}})["files"]:
            assert [word for word in private if word in file["text"]] == []
