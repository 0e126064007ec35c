"""Pipes and the standard input in all verbs that read files: read once, told of and waited for."""

import os
import subprocess
import sys
import threading

import pytest

from meshplan.app.cli.main import run
from meshplan.errors import UserError
from meshplan.inputs.load import opening
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.opening import is_there, opened, read_bytes, telling_waits

SCRIPT = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --use-distributed-optimizer --bf16"
    " --micro-batch-size 1 --global-batch-size 64 --seq-length 4096\n"
)
ACCELERATE = """# FSDP
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
"""
SCENARIO = "model: llama-3.2-1b\ncluster: 8xH100\njob: {seq_len: 4096, global_batch: 64}\n"
JOB = ("--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "64")


def meshplan(*words, given=b"", **more):
    """Run the command line with something on its standard input."""
    command = [sys.executable, "-m", "meshplan", *words]
    return subprocess.run(command, input=given, capture_output=True, timeout=120, **more)


@pytest.mark.parametrize("place", ["/dev/stdin", "-"])
@pytest.mark.parametrize(
    ("verb", "text", "options", "said"),
    [
        ("check", SCRIPT, ("--model", "llama-3.2-1b", "--cluster", "H100"), "legal in megatron"),
        ("check", ACCELERATE, ("--model", "llama-3.2-1b", *JOB), "legal in accelerate"),
        ("plan", SCENARIO, (), "llama-3.2-1b on 8xH100"),
        ("emit", SCENARIO, ("--to", "megatron"), "train.sh"),
    ],
)
def test_standard_input(place, verb, text, options, said):
    done = meshplan(verb, place, *options, given=text.encode())
    assert said in done.stdout.decode(), done.stderr.decode()


def test_a_plan_goes_from_verb_to_verb():
    planned = meshplan("plan", "llama-3.2-1b", *JOB, "--json")
    done = meshplan("emit", "/dev/stdin", "--to", "megatron", given=planned.stdout)
    assert done.returncode == 0 and b"pretrain_gpt.py" in done.stdout, done.stderr


def test_a_model_comes_through_a_pipe(tmp_path):
    config = b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,'
    config += b'"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}'
    done = meshplan("inspect", "/dev/stdin", given=config)
    assert done.returncode == 0, done.stderr


def test_nothing_in_a_pipe_is_an_empty_file():
    done = meshplan("check", "/dev/stdin", "--cluster", "8xH100")
    assert done.returncode == 2 and b"is empty" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("check", "{}", "--cluster", "8xH100"),
        ("plan", "{}"),
        ("inspect", "{}"),
        ("diagnose", "{}"),
        ("calibrate", "{}", "--scenario", "scenario.yaml"),
        ("plan", "llama-3.2-1b", *JOB, "--profile", "{}"),
        ("emit", "{}", "--to", "megatron"),
    ],
)
def test_a_pipe_that_nobody_writes_to_is_named(tmp_path, monkeypatch, capfd, words):
    """The wait is told of before it begins; then whoever writes is heard."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(opening, "_PATIENCE_MS", 1)
    told = threading.Event()

    def write():
        told.wait(30)
        pipe.write_text("neither this nor that\n")

    monkeypatch.setattr(
        "meshplan.app.cli.main.print",
        lambda text, **more: (print(text, **more), told.set()),
        raising=False,
    )
    writer = threading.Thread(target=write)
    writer.start()
    run([word.format(pipe) for word in words])
    writer.join()
    assert f"waiting for {pipe}" in capfd.readouterr().err


def test_a_pipe_gives_its_bytes_again_within_a_command(tmp_path):
    read, write = os.pipe()
    os.write(write, b"once")
    os.close(write)
    name = f"/dev/fd/{read}"
    with telling_waits(lambda pipe: None):
        assert read_bytes(name, most_bytes=10) == read_bytes(name, most_bytes=10) == b"once"
    assert read_bytes(name, most_bytes=10) == b""
    os.close(read)


def test_no_device_is_read(tmp_path):
    with pytest.raises(OSError):
        opened("/dev/zero")
    assert read_bytes("/dev/null", most_bytes=1) == b""


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", f"/{'y' * 300}"])
def test_names_that_no_file_can_have(name, capfd):
    assert not is_there(name)
    with pytest.raises(UserError):
        load_model(name)
    if "\0" not in name:
        for words in (("plan", "llama-3.2-1b", *JOB, "--profile", name), ("check", name)):
            assert run(words) == 2
            assert max(map(len, capfd.readouterr().err.split())) <= 200
