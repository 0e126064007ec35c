"""What is said about a framework on devices that it was not written for."""

from __future__ import annotations

import pytest

from meshplan.app import service
from meshplan.app.usual import usual_frameworks
from meshplan.inputs.load.presets import device_names, device_preset
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.load.vendors import framework_notes, vendor_table
from meshplan.inputs.vocabulary import FRAMEWORKS
from meshplan.text import LANGUAGES, has

JOB = {"seq_len": 4096, "global_batch": 256}


def test_every_entry_has_a_source_and_every_source_an_entry():
    table = vendor_table()
    entries = [entry for vendor in table["vendors"].values() for entry in vendor.values()]
    used = {entry["source"] for entry in entries}
    assert used == set(table["sources"])
    frameworks = {name for vendor in table["vendors"].values() for name in vendor}
    assert frameworks <= {*FRAMEWORKS, "maxtext"}


def test_every_vendor_of_a_preset_is_known():
    vendors = {device_preset(name).device.vendor for name in device_names()}
    assert vendors - {"nvidia"} == set(vendor_table()["vendors"])


@pytest.mark.parametrize(
    ("vendor", "framework", "codes"),
    [
        ("nvidia", "megatron", []),
        ("other", "megatron", []),  # nothing is known of a device of one's own
        ("google", "megatron", ["framework_not_on_tpu"]),
        ("google", "torchtitan", ["framework_for_maxtext"]),
        ("huawei", "megatron", ["framework_through"]),
        ("huawei", "nanotron", ["framework_not_on_device"]),
        ("amd", "deepspeed", []),
        ("intel", "torchtitan", ["framework_not_on_device"]),
    ],
)
def test_notes(vendor, framework, codes):
    assert [code for code, _ in framework_notes(vendor, [framework])] == codes
    for code in codes:
        assert all(has(f"assumed.{code}", lang) for lang in LANGUAGES)


def test_the_answer_says_so():
    request = {"model": "llama-3.1-8b", "cluster": "64xTPU-v5p", "job": JOB, "plan": {"zero": 3}}
    said = {a["code"]: a["value"] for a in service.estimate(request)["assumptions"]}
    assert said["framework_for_maxtext"] == "torchtitan"
    named = {**request, "frameworks": ["megatron"]}
    said = {a["code"]: a["value"] for a in service.estimate(named)["assumptions"]}
    assert said["framework_not_on_tpu"] == "megatron"


@pytest.mark.parametrize(
    ("model", "cluster", "task", "groups"),
    [
        ("llama-3.1-8b", "64xH100", "pretrain", (("megatron",),)),
        ("llama-3.1-8b", "64xMI300X", "pretrain", (("megatron",),)),
        ("llama-3.1-8b", "64xAscend-910B", "pretrain", (("megatron",),)),
        # Megatron-LM has no Mamba 1; accelerate has no expert parallelism, DeepSpeed has it
        ("jamba-mini-52b", "256xH100", "pretrain", (("accelerate", "deepspeed"),)),
        ("llama-3.1-8b", "64xGaudi2", "pretrain", (("deepspeed", "accelerate"), ("megatron",))),
        # MaxText splits as torchtitan does
        ("llama-3.1-8b", "64xTPU-v5p", "pretrain", (("torchtitan",), ("megatron",))),
        ("llama-3.1-8b", "8xH100", "lora", (("accelerate",),)),
        ("llama-3.1-8b", "8xGaudi2", "lora", (("accelerate",),)),
    ],
)
def test_who_names_no_framework_gets_what_runs_there(model, cluster, task, groups):
    job = {**JOB, "task": task, **({"lora_rank": 16} if task == "lora" else {})}
    scenario = load_scenario({"model": model, "cluster": cluster, "job": job})
    assert usual_frameworks(scenario) == groups


def test_the_best_of_all_frameworks_that_can_is_the_answer():
    job = {"seq_len": 4096, "global_batch": 1024}
    request = {"model": "jamba-mini-52b", "cluster": "256xH100", "job": job}
    found = service.plan({**request, "top": 1})
    alone = [
        service.plan({**request, "top": 1, "frameworks": [name]})["plans"][0]
        for name in ("accelerate", "deepspeed")
    ]
    best = min(alone, key=lambda entry: entry["step_time_s"])
    assert found["plans"][0]["plan"] == best["plan"]
    said = {a["code"]: a["value"] for a in found["assumptions"]}
    assert said["frameworks"] == "accelerate, deepspeed"
    assert said["frameworks_instead"] == "megatron"


def test_rules_of_a_framework_from_elsewhere_serve_where_no_plan_is_legal():
    # one key-value head, which torchtitan does not split; 6,144 replicas are too many for the batch
    job = {"seq_len": 2048, "global_batch": 2048}
    request = {"model": "palm-540b", "cluster": "6144xTPU-v4", "job": job, "top": 1}
    found = service.plan(request)
    assert found["scenario"]["frameworks"] == ["megatron"]
    assert found["plans"][0]["plan"]["framework"] == "megatron"
    assert "framework_not_on_tpu" in {a["code"] for a in found["assumptions"]}
