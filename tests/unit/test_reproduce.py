"""What a search prints can be given back, and is the same plan."""

import json

import pytest

from meshplan.app.cli.main import run

SEARCHES = [
    "llama-3.1-70b --cluster 64xH100 --seq-len 8192 --global-batch 1024",
    "llama-3.1-70b --cluster 64xH100 --seq-len 8192 --global-batch 64 --framework torchtitan",
    "llama-3.1-8b --cluster 7xA100-80GB --seq-len 4096 --global-batch 70",
    "mixtral-8x7b --cluster 32xH100 --seq-len 4096 --global-batch 256",
    "llama-3.1-8b --cluster 16xH100 --seq-len 4096 --global-batch 64 --framework deepspeed",
    "llama-3.1-8b --cluster 16xH100 --seq-len 32768 --global-batch 16 --framework accelerate",
    "llama-3.1-8b --cluster 16xH100 --seq-len 4096 --global-batch 64 --framework nanotron",
    "llama-3.1-8b --cluster 8xH100 --seq-len 4096 --global-batch 64 "
    "--framework megatron,torchtitan",
]


def answer(capsys, *arguments):
    run([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("search", SEARCHES)
def test_options_give_the_plan_back(search, capsys):
    plans = answer(capsys, "plan", *search.split())["plans"]
    words = search.split()
    if "," in words[-1]:
        words = words[:-2]
    for entry in plans:
        judged = answer(capsys, "estimate", *words, *entry["options"])["plans"][0]
        assert judged["plan"] == entry["plan"]
        assert judged["step_time_s"] == entry["step_time_s"]
        assert judged["memory"]["peak_bytes"] == entry["memory"]["peak_bytes"]
