"""Names of plans and sentences that terminal and web page share."""

from __future__ import annotations

import pytest
import yaml

from meshplan.app import service
from meshplan.app.names import sharding_text
from meshplan.app.sentences import room_text, source_text
from meshplan.cost.surfaces import constants
from meshplan.inputs.load.framework import framework_memory_names, load_framework_memory
from meshplan.inputs.load.presets import PRESETS
from meshplan.inputs.load.profile import (
    cluster_profile,
    cluster_profile_names,
    framework_profile,
    framework_profile_names,
)
from meshplan.inputs.vocabulary import FRAMEWORKS

JOB = {"seq_len": 4096, "global_batch": 256}


@pytest.mark.parametrize(
    ("framework", "zero", "groups", "text"),
    [
        ("megatron", 1, 1, "ZeRO-1"),
        ("megatron", 3, 1, "FSDP"),
        ("deepspeed", 2, 1, "ZeRO-2"),
        ("deepspeed", 3, 1, "ZeRO-3"),  # its documentation knows no FSDP
        ("accelerate", 3, 1, "FSDP"),
        ("accelerate", 2, 1, "FSDP ZeRO-2"),  # reshard_after_forward: false
        ("torchtitan", 3, 4, "HSDP 8x4"),
        ("torchtitan", 0, 4, "DDP"),
        ("megatron", 1, 4, "ZeRO-1 8x4"),
    ],
)
def test_sharding_goes_by_the_word_of_the_framework(framework, zero, groups, text):
    plan = {"framework": framework, "zero": zero, "dp": 8 * groups, "dp_shard": 8, "cp": 1}
    assert sharding_text({**plan, "dp_replicate": groups}) == text


def test_nothing_is_sharded_over_one_device():
    plan = {"framework": "megatron", "zero": 3, "dp": 1, "dp_shard": 1, "cp": 1}
    assert sharding_text({**plan, "dp_replicate": 1}) == ""


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"tp": 8, "zero": 3}, "zero=3"),
        ({"tp": 2, "cp_comm": "all_gather"}, "cp_comm=all_gather"),
        ({"pp": 2, "split": "balanced"}, "split=balanced"),  # 32 layers over 2 stages: 16 each
        ({"dp_replicate": 2, "zero": 0}, "dp_replicate=2"),
    ],
)
def test_what_has_no_effect_is_said(plan, words):
    request = {"model": "llama-3.1-8b", "cluster": "8xH100", "job": JOB}
    for verb, asked in (("estimate", {"plan": plan}), ("compare", {"plans": [plan, {"tp": 2}]})):
        result = getattr(service, verb)({**request, **asked})
        said = [a["value"] for a in result["assumptions"] if a["code"] == "no_effect"]
        assert said == [words]
    assert not any(
        a["code"] == "no_effect"
        for a in service.estimate({**request, "plan": {"tp": 2, "zero": 1}})["assumptions"]
    )


def test_defaults_of_the_job_are_named_as_they_are_set():
    """Keys of ``--set``, which are the same in every language."""
    result = service.estimate(
        {"model": "llama-3.1-8b", "cluster": "8xH100", "job": JOB, "plan": {"tp": 2}}
    )
    (said,) = (a["value"] for a in result["assumptions"] if a["code"] == "job")
    assert said.startswith("job.precision=bf16, job.optimizer=adamw")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_tight_says_what_it_hangs_on(lang):
    """With all allowances it is too much, without them it is not: neither yes nor no."""
    terms = [{"bytes": 76e9, "allowance": False}, {"bytes": 10e9, "allowance": True}]
    memory = {"peak_bytes": 86e9, "usable_bytes": 84e9, "worst_stage": 0}
    memory |= {"host_bytes": 0.0, "host_capacity_bytes": 1e12}
    said = room_text({**memory, "verdict": "tight", "stages": [{"terms": terms}]}, lang)
    for number in ("80.1 GiB", "78.2 GiB", "1.9 GiB", "9.3 GiB"):
        assert number in said
    over = room_text({**memory, "verdict": "oom", "stages": [{"terms": terms}]}, lang)
    assert said != over


@pytest.mark.parametrize(("lang", "word"), [("en", "host memory"), ("zh", "主机内存")])
def test_what_lacks_host_memory_says_so(lang, word):
    """ZeRO-Infinity of 175B on two nodes of V100: the devices have room, the hosts do not."""
    request = {
        "model": "gpt3-175b",
        "cluster": "16xV100-32GB",
        "job": {"seq_len": 1024, "global_batch": 16, "precision": "fp16"},
        "frameworks": ["deepspeed"],
        "plan": {"tp": 16, "zero": 3, "recompute": "full", "offload": "optimizer+parameters"},
    }
    result = service.estimate(request)
    memory = result["plans"][0]["memory"]
    assert memory["verdict"] == "oom"
    assert memory["peak_bytes"] < memory["usable_bytes"]
    assert memory["host_bytes"] > memory["host_capacity_bytes"]
    assert word in room_text(memory, lang)
    both = room_text({**memory, "peak_bytes": 2 * memory["usable_bytes"]}, lang)
    assert word in both and "31.3 GiB" in both
    codes = [reason["code"] for reason in result["reasons"]]
    assert "memory_host_over" in codes
    assert "memory_fits_alone" in codes


def _stated_sources() -> set[str]:
    """What presets say of where figures of memory, time and profiles come from."""
    behaviours = [load_framework_memory(name) for name in framework_memory_names()]
    preset = yaml.safe_load((PRESETS / "framework_memory.yaml").read_text(encoding="utf-8"))
    options = [load_framework_memory("megatron", (name,)) for name in preset["settings"]]
    profiles = [
        framework_profile(framework, name)
        for framework in FRAMEWORKS
        for name in framework_profile_names()
    ]
    clusters = [cluster_profile(name) for name in cluster_profile_names()]
    records = [*behaviours, *options, *profiles, *clusters]
    found = {s.source for record in records for s in record.sources.values() if s.kind != "fitted"}
    return found | {s.source for s in constants().values()}


def test_sources_of_figures_are_said_in_both_languages():
    missing = [s for s in sorted(_stated_sources()) if source_text(s, "zh") == s]
    assert missing == [], "add them to text/catalog/{en,zh}/sources.json"
    assert all(source_text(s, "en") == s for s in _stated_sources())
