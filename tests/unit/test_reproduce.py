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


CLUSTERS = {
    "machines counted": "node: dgx-h100\nnodes: 4\n",
    "a device and machines": "device: A100-80GB\nnodes: 4\nnetwork: 100GbE\n",
    "a base": "base: dgx-h100\nnodes: 4\n",
    "both": "device: H100\ngpus: 32\nnodes: 4\n",
    "levels spelled out": (
        "device: H100\nnodes: 4\ngpus_per_node: 8\ntiers:\n"
        "  - {fabric: nvlink, gpus: 8, bandwidth_per_gpu: 450 GB/s}\n"
        "  - {fabric: infiniband, gpus: 16, bandwidth_per_nic: 400 Gb/s, nics_per_node: 8}\n"
        "  - {fabric: infiniband, bandwidth_per_nic: 400 Gb/s, nics_per_node: 8, "
        "oversubscription: 2}\n"
    ),
    "under a name": "cluster:\n  name: ours\n  node: dgx-h100\n  nodes: 4\n",
}


@pytest.mark.parametrize("kind", CLUSTERS)
@pytest.mark.parametrize("place", ["cluster file", "scenario file"])
def test_options_of_other_sizes_fit_every_kind_of_cluster(kind, place, capsys, tmp_path):
    text = CLUSTERS[kind]
    (tmp_path / "cluster.yaml").write_text(text, encoding="utf-8")
    words = ["llama-3.1-8b", "--cluster", str(tmp_path / "cluster.yaml")]
    if place == "scenario file":
        inner = text.removeprefix("cluster:\n")
        inner = inner if inner != text else "".join(f"  {line}\n" for line in text.splitlines())
        (tmp_path / "scenario.yaml").write_text(
            f"model: llama-3.1-8b\ncluster:\n{inner}", encoding="utf-8"
        )
        words = [str(tmp_path / "scenario.yaml")]
    words += ["--seq-len", "4096", "--global-batch", "64"]
    objective = ["--objective", "pareto", "--set", "top=8"]
    plans = answer(capsys, "plan", *words, *objective)["plans"]
    smaller = [entry for entry in plans if "--set" in entry["options"] and entry["num_gpus"] < 32]
    assert smaller, "a front has smaller clusters on it"
    for entry in (smaller[0], smaller[-1]):
        assert f"cluster.gpus={entry['num_gpus']}" in entry["options"]
        judged = answer(capsys, "estimate", *words, *entry["options"])["plans"][0]
        assert judged["plan"] == entry["plan"]
        assert judged["step_time_s"] == entry["step_time_s"]
        assert judged["memory"]["peak_bytes"] == entry["memory"]["peak_bytes"]
