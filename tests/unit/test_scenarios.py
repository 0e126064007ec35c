"""Scenario files: reading, round trip, settings, and every mistake with its place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshplan.app.cli.main import run
from meshplan.errors import UserError
from meshplan.inputs.load.documents import parse_yaml, read_yaml
from meshplan.inputs.load.scenario import (
    apply_settings,
    dump_scenario,
    load_scenario,
    plain_scenario,
    read_scenario_file,
    scenario_schema,
)
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.vocabulary import AXES

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "64xH100",
    "job": {"seq_len": 8192, "global_batch": 512},
}


def scenario(*settings: str) -> Scenario:
    return load_scenario(apply_settings(BASE, settings))


def problems(data: Any) -> list[tuple[str, str]]:
    with pytest.raises(UserError) as caught:
        load_scenario(data)
    return [(problem.code, problem.where) for problem in caught.value.problems]


def problems_of_yaml(text: str) -> list[tuple[str, str]]:
    with pytest.raises(UserError) as caught:
        parse_yaml(text)
    return [(problem.code, problem.where) for problem in caught.value.problems]


FULL = """
model: llama-3.1-8b
cluster:
  base: 100xH100@8x400Gb/s-roce
  usd_per_gpu_hour: 2.5
job:
  seq_len: 4096
  global_batch_tokens: 4194304
  precision: BF16
  optimizer: AdamW
  task: lora
  lora_rank: 64
  lora_targets: attention
  total_tokens: 15T
  deadline_days: 30
  attention: flash
  dropout: false
frameworks: [Megatron-LM, torchtitan]
axes:
  tp: [1, 2, 4]
  sp: true
  schedule: [1F1B, ZBVZeroBubble, DualPipeV]
  cp_comm: ring
  recompute: [none, selective, "full:4", norm+mlp]
  offload: no
  zero: [1, 3]
objective: pareto
profile: default
"""


def test_a_full_scenario() -> None:
    made = load_scenario(FULL)
    assert made.job.global_batch == 1024, "4 Mi tokens are 1,024 sequences of 4,096"
    assert made.job.total_tokens == 15e12
    assert made.frameworks == ("megatron", "torchtitan")
    assert made.axes == {
        "tp": (1, 2, 4),
        "sp": (True,),
        "schedule": ("1f1b", "zbv", "dualpipe-v"),
        "cp_comm": ("p2p",),
        "recompute": ("none", "selective", "full:4", "norm+mlp"),
        "offload": ("none",),
        "zero": (1, 3),
    }
    assert made.cluster.device.usd_per_hour == 2.5
    assert load_scenario(dump_scenario(made)) == made


def test_what_is_not_said_takes_its_default() -> None:
    made = scenario()
    assert (made.job.precision, made.job.optimizer, made.job.task) == ("bf16", "adamw", "pretrain")
    assert made.frameworks == ("megatron",) and made.axes == {}
    assert dump_scenario(made).splitlines()[:3] == [
        "model: llama-3.1-8b",
        "cluster: 64xH100",
        "job:",
    ]


def test_text_values_from_the_command_line() -> None:
    data = {**BASE, "job": {"seq_len": "8192", "global_batch": "512"}, "axes": {"tp": ["1", "2"]}}
    made = load_scenario(data)
    assert made.job == scenario().job and made.axes == {"tp": (1, 2)}


def test_files_and_plain_values(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(FULL, encoding="utf-8")
    assert load_scenario(file) == load_scenario(str(file)) == load_scenario(FULL)
    assert load_scenario(read_scenario_file(file)) == load_scenario(FULL)
    assert load_scenario(plain_scenario(load_scenario(FULL))) == load_scenario(FULL)
    assert load_scenario(
        json.loads(json.dumps(plain_scenario(load_scenario(FULL))))
    ) == load_scenario(FULL)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("cluster: {device: H100, gpus: 16}\n", encoding="utf-8")
    assert load_scenario({**BASE, "cluster": str(cluster)}).cluster.num_gpus == 16


def test_files_beside_the_scenario_and_changes_to_them(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("device: H100\ngpus: 16\n", encoding="utf-8")
    (tmp_path / "short.yaml").write_text("cluster: 32xA100\n", encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "model: llama-3.1-8b\ncluster: ours.yaml\njob: {seq_len: 4096, global_batch: 64}\n",
        encoding="utf-8",
    )
    assert load_scenario(file).cluster.num_gpus == 16
    data = read_scenario_file(file)
    changed = load_scenario(apply_settings(data, ["cluster.gpus=24", "cluster.network=25GbE"]))
    assert changed.cluster.num_gpus == 24 and changed.cluster.tiers[-1].fabric == "ethernet"
    data["cluster"] = str(tmp_path / "short.yaml")
    assert load_scenario(data).cluster.device.name == "A100-80GB"
    assert load_scenario(apply_settings(data, ["cluster.gpus=8"])).cluster.num_gpus == 8
    (tmp_path / "fitted.yaml").write_text("fitted: {gemm: 0.5}\n", encoding="utf-8")
    file.write_text(file.read_text("utf-8") + "profile: fitted.yaml\n", encoding="utf-8")
    assert load_scenario(file).profile == str(tmp_path / "fitted.yaml")


def test_a_model_that_no_name_gives_is_saved_whole() -> None:
    from dataclasses import replace

    made = scenario()
    changed = replace(made, model=replace(made.model, name="mine", source="", hidden=4224))
    text = dump_scenario(changed)
    assert load_scenario(text) == changed
    assert len(text.splitlines()) < 80, "equal layers are written once"


def test_a_config_may_stand_in_the_scenario(shared: Path) -> None:
    config = json.loads((shared / "data/hf_configs/llama3.1-8b.json").read_text("utf-8"))
    made = load_scenario({**BASE, "model": {"name": "inline", "config": config}})
    assert (made.model.name, made.model.hidden) == ("inline", 4096)
    assert load_scenario(dump_scenario(made)) == made


# --- settings ---------------------------------------------------------------------------------


def test_settings() -> None:
    made = scenario(
        "job.seq-len=4096",
        "job.precision=fp8",
        "cluster.gpus=128",
        "cluster.network=25GbE",
        "axes.tp=1,2,4",
        "axes.recompute=full:4,selective",
        "objective=cheapest",
        "job.total_tokens=15T",
        "frameworks=accelerate, mcore",
    )
    assert made.frameworks == ("accelerate", "megatron")
    assert (made.job.seq_len, made.job.precision, made.cluster.num_gpus) == (4096, "fp8", 128)
    assert made.cluster.tiers[-1].fabric == "ethernet"
    assert made.axes == {"tp": (1, 2, 4), "recompute": ("full:4", "selective")}
    assert (made.objective, made.job.total_tokens) == ("cheapest", 15e12)


def test_settings_reach_into_levels() -> None:
    text = """
model: llama-3.1-8b
cluster:
  device: H100
  gpus: 16
  tiers:
    - {fabric: nvlink, gpus: 8, bandwidth_per_gpu: 450 GB/s}
    - {fabric: ib, bandwidth_per_gpu: 50 GB/s}
job: {seq_len: 8192, global_batch: 512}
"""
    data = parse_yaml(text)
    made = load_scenario(apply_settings(data, ["cluster.tiers.1.oversubscription=4"]))
    assert made.cluster.tiers[1].oversubscription == 4
    assert load_scenario(data).cluster.tiers[1].oversubscription == 1, "what was given stays"


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("job.seq_len", "bad_setting"),
        ("=3", "bad_setting"),
        ("job..x=3", "bad_setting"),
        ("job.seq_len.x=3", "setting_has_no_keys"),
        ("model.layers=3", "setting_has_no_keys"),
        ("job.seqlen=3", "unknown_key"),
        ("jobs.seq_len=3", "unknown_key"),
        ("job.seq_len=", "missing_key"),
        ("job.seq_len=[1", "yaml_syntax"),
    ],
)
def test_mistakes_in_settings(setting: str, code: str) -> None:
    with pytest.raises(UserError) as caught:
        scenario(setting)
    assert code in [problem.code for problem in caught.value.problems]


# --- mistakes ---------------------------------------------------------------------------------


def test_all_mistakes_at_once_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "model: llama-3.1-8b\n"
        "cluster: 64xH1000\n"
        "job:\n"
        "  seqlen: 8192\n"
        "  seq_len: -1\n"
        "  precision: bf17\n"
        "axes:\n"
        "  tpp: 3\n"
        "  schedule: dual-pipe\n"
        "frmeworks: megatron\n",
        encoding="utf-8",
    )
    assert problems(file) == [
        ("unknown_key", "bad.yaml:10: frmeworks"),
        ("unknown_cluster", "cluster"),
        ("unknown_key", "bad.yaml:4: job.seqlen"),
        ("bad_count", "bad.yaml:5: job.seq_len"),
        ("unknown_name", "bad.yaml:6: job.precision"),
        ("missing_key", "job.global_batch"),
        ("unknown_key", "bad.yaml:8: axes.tpp"),
        ("unknown_name", "bad.yaml:9: axes.schedule"),
    ]


VALUES: list[tuple[str, Any, str]] = [
    ("job.seq_len", True, "bad_count"),
    ("job.seq_len", 0, "bad_count"),
    ("job.seq_len", -8192, "bad_count"),
    ("job.seq_len", 8192.5, "bad_count"),
    ("job.seq_len", float("nan"), "bad_count"),
    ("job.seq_len", float("inf"), "bad_count"),
    ("job.seq_len", "8k", "bad_count"),
    ("job.seq_len", [8192], "bad_count"),
    ("job.seq_len", {"a": 1}, "bad_count"),
    ("job.seq_len", 10**12, "number_too_large"),
    ("job.seq_len", 10**30, "number_too_large"),
    ("job.global_batch", "0", "bad_count"),
    ("job.total_tokens", -1, "bad_tokens"),
    ("job.total_tokens", "15X", "bad_tokens"),
    ("job.total_tokens", float("nan"), "bad_tokens"),
    ("job.total_tokens", float("inf"), "bad_tokens"),
    ("job.total_tokens", True, "bad_tokens"),
    ("job.deadline_days", 0, "number_not_positive"),
    ("job.deadline_days", "soon", "number_not_positive"),
    ("job.precision", 16, "unknown_name"),
    ("job.dropout", "maybe", "bad_flag"),
    ("job.lora_rank", 8, "lora_without_lora"),
    ("job.lora_targets", "attention", "lora_without_lora"),
    ("job.global_batch_tokens", 8192, "batch_given_twice"),
    ("job", 5, "not_a_mapping"),
    ("job", [1], "not_a_mapping"),
    ("job", "x", "not_a_mapping"),
    ("axes", [1], "not_a_mapping"),
    ("axes", {"tp": []}, "list_empty"),
    ("axes", {"tp": [0]}, "bad_count"),
    ("axes", {"zero": 4}, "count_not_listed"),
    ("axes", {"recompute": "full:0"}, "bad_recompute_layers"),
    ("axes", {"recompute": "norm:2"}, "bad_recompute_layers"),
    ("axes", {"recompute": "full+norm"}, "names_do_not_combine"),
    ("axes", {"sp": 3}, "bad_flag"),
    ("frameworks", [], "list_empty"),
    ("frameworks", ["megatron", "torchtitann"], "unknown_name"),
    ("objective", "best", "unknown_name"),
    ("top", 0, "bad_count"),
    ("model", 5, "bad_model"),
    ("model", {"record": 5}, "bad_record"),
    ("model", {"config": 5}, "bad_record"),
    ("cluster", 5, "not_a_mapping"),
    ("cluster", {}, "missing_key"),
    ("cluster", {"gpus": 8}, "missing_key"),
    ("cluster", {"device": "H100"}, "missing_key"),
    ("cluster", "nowhere.yaml", "file_missing"),
    ("profile", "nowhere", "unknown_profile"),
    ("variant", "nowhere", "unknown_variant"),
    ("variant", "+nowhere", "unknown_variant"),
    ("variant", "torchtitan+bf16-gradients", "unknown_variant"),
    ("variant", "megatron+tp_overlap", "unknown_switch"),
    ("variant", "megatron+", "unknown_switch"),
    ("variant", "+tp-overlap+nowhere", "unknown_switch"),
]


@pytest.mark.parametrize(("where", "value", "code"), VALUES)
def test_mistakes_in_values(where: str, value: Any, code: str) -> None:
    data = {**BASE, "job": dict(BASE["job"])}
    section, _, key = where.partition(".")
    if key:
        data[section][key] = value
    else:
        data[section] = value
    assert code in [found for found, _ in problems(data)]


def test_a_variant_of_another_framework_is_refused_with_those_there_are() -> None:
    data = {**BASE, "frameworks": ["megatron"], "variant": "torchtitan-eager"}
    with pytest.raises(UserError) as caught:
        load_scenario(data)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("variant_of_another_framework", "variant")
    assert {"megatron", "megatron-2021", "nemo", "+bf16-gradients"} <= set(problem.allowed)
    assert not {"torchtitan", "torchtitan-eager", "accelerate"} & set(problem.allowed)
    assert load_scenario({**data, "frameworks": ["megatron", "torchtitan"]}).variant


@pytest.mark.parametrize(
    ("variant", "framework"),
    [("torchtitan-eager", "torchtitan"), ("+bf16-gradients", "megatron"), ("pax", "accelerate")],
)
def test_a_variant_says_which_framework_is_meant(variant: str, framework: str) -> None:
    assert load_scenario({**BASE, "variant": variant}).frameworks == (framework,)


def test_adapters_need_something_to_adapt() -> None:
    job = {**BASE["job"], "task": "lora", "lora_targets": "mlp"}
    assert problems({**BASE, "model": "mamba-2.8b", "job": job}) == [
        ("lora_targets_missing", "job.lora_targets")
    ]
    assert load_scenario({**BASE, "job": job}).job.lora_targets == "mlp"


@pytest.mark.parametrize(
    ("device", "precision", "allowed"),
    [
        ("V100", "bf16", ("fp16",)),
        ("T4", "bf16", ("fp16",)),
        ("A100", "fp8", ("bf16", "fp16")),
        ("H100", "mxfp8", ("bf16", "fp16", "fp8")),
        ("MI300X", "nvfp4", ("bf16", "fp16", "fp8")),
    ],
)
def test_precisions_that_the_device_lacks(
    device: str, precision: str, allowed: tuple[str, ...]
) -> None:
    data = {**BASE, "cluster": f"8x{device}", "job": {**BASE["job"], "precision": precision}}
    with pytest.raises(UserError) as caught:
        load_scenario(data)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("precision_unsupported", "job.precision")
    assert problem.allowed == allowed


@pytest.mark.parametrize(
    ("device", "frameworks", "attention"),
    [
        ("V100", [], "unfused"),
        ("T4", ["megatron"], "unfused"),
        ("V100", ["accelerate"], "flash"),
        ("V100", ["accelerate", "megatron"], "unfused"),
        ("A100", [], "flash"),
    ],
)
def test_attention_is_what_the_device_has(
    device: str, frameworks: list[str], attention: str
) -> None:
    """FlashAttention begins with SM 8.0, PyTorch's memory-efficient kernel with SM 5.0."""
    data = {**BASE, "cluster": f"8x{device}", "job": {**BASE["job"], "precision": "fp16"}}
    if frameworks:
        data["frameworks"] = frameworks
    assert load_scenario(data).job.attention == attention


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("device", ["V100", "A100"])
def test_attention_as_stated_is_kept(device: str, attention: str) -> None:
    job = {**BASE["job"], "precision": "fp16", "attention": attention}
    scenario = load_scenario({**BASE, "cluster": f"8x{device}", "job": job})
    assert scenario.job.attention == attention
    assert load_scenario(dump_scenario(scenario)) == scenario


def test_what_is_missing_is_named() -> None:
    assert problems({}) == [
        ("missing_model", "model"),
        ("missing_cluster", "cluster"),
        ("missing_key", "job.seq_len"),
        ("missing_key", "job.global_batch"),
    ]


def test_a_batch_in_tokens_must_be_whole_sequences() -> None:
    job = {"seq_len": 4096, "global_batch_tokens": 4_000_000}
    with pytest.raises(UserError) as caught:
        load_scenario({**BASE, "job": job})
    (problem,) = caught.value.problems
    assert problem.code == "batch_not_whole_sequences"
    assert problem.allowed == (976 * 4096, 977 * 4096)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML: list[tuple[str, str, str]] = [
    ("a: 1\na: 2\n", "duplicate_key", "scenario:2: a"),
    ("a:\n\tb: 1\n", "yaml_tab", "scenario:2"),
    ("a: [1, 2\n", "yaml_syntax", "scenario:1"),
    ("a: 'x\n", "yaml_syntax", "scenario:1"),
    ("--- a\n--- b\n", "yaml_syntax", "scenario:2"),
    ("&a [*a]\n", "yaml_too_deep", "scenario:1"),
    ("? [a]\n: 1\n", "yaml_syntax", "scenario:1"),
    ("[" * 5000, "yaml_too_deep", "scenario:1"),
    ("- " * 5000, "yaml_too_deep", "scenario:1"),
    ("a: " + "x" * 2_000_000, "file_too_large", "scenario"),
    ("a: \0\n", "yaml_syntax", "scenario"),
    (BOMB, "yaml_too_many", "scenario:1"),
]


@pytest.mark.parametrize(("text", "code", "where"), YAML)
def test_yaml_that_is_refused(text: str, code: str, where: str) -> None:
    assert problems_of_yaml(text) == [(code, where)]


def test_scalars_follow_yaml_1_2() -> None:
    text = "a: no\nb: 12:30\nc: 1e3\nd: '5'\ne: 0x10\nf: 010\ng: ~\nh: true\n"
    assert parse_yaml(text) == {
        "a": "no", "b": "12:30", "c": 1000.0, "d": "5", "e": "0x10", "f": 10, "g": None, "h": True,
    }  # fmt: skip


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00x")
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(2 * 2**30)  # sparse: takes no room
    for path, code in (
        (binary, "file_not_text"),
        (large, "file_too_large"),
        (tmp_path, "file_is_folder"),
        (tmp_path / "none.yaml", "file_missing"),
        (tmp_path / "bad\0name.yaml", "file_unreadable"),
    ):
        with pytest.raises(UserError) as caught:
            read_yaml(path)
        assert caught.value.problems[0].code == code


# --- around -----------------------------------------------------------------------------------


def test_every_key_of_the_schema_is_read_and_the_other_way_round() -> None:
    schema = scenario_schema()
    json.dumps(schema, allow_nan=False)
    assert schema["required"] == ["model", "cluster", "job"]
    assert set(schema["properties"]["axes"]["properties"]) == set(AXES)
    assert schema["properties"]["job"]["required"] == ["seq_len"]
    assert schema["properties"]["job"]["properties"]["precision"] == {
        "enum": ["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
    }
    assert not schema["additionalProperties"]


def test_every_error_has_a_sentence_and_a_hint_in_both_languages() -> None:
    """Codes are read from the source, so that a new one cannot be forgotten."""
    from meshplan.text import catalog

    folder = Path(__file__).parents[2] / "src/meshplan/inputs/load"
    mine = "axes cluster cluster_mapping device_mapping documents fields job model_mapping network"
    mine += " nodes presets scenario settings tiers"
    codes: set[str] = set()
    for name in mine.split():
        text = (folder / f"{name}.py").read_text("utf-8")
        plain = re.findall(r"(?:UserError\.of|problems\.add|noted\.add)\(\s*\"(\w+)\"", text)
        pairs = re.findall(r"\bunknown\(\s*\"(\w+)\"", text)
        chosen = re.findall(r"code = \"(\w+)\"(?: if .*? else \"(\w+)\")?", text)
        kinds = re.findall(r"_quantity\([\w.]+, \"(\w+)\"", text)
        codes |= {*plain, *kinds, *pairs, *(f"{code}_far" for code in pairs)}
        codes |= {code for pair in chosen for code in pair if code}
        codes |= set(re.findall(r"missing=\"(\w+)\"", text))
    assert len(codes) > 40
    for lang in ("en", "zh"):
        known = catalog(lang)
        missing = [c for c in sorted(codes) for k in ("error", "hint") if f"{k}.{c}" not in known]
        assert not missing, f"{lang}: {missing}"


def test_reading_a_scenario_needs_no_pydantic() -> None:
    """It takes longer to import than 64 GPUs take to plan."""
    program = (
        "import sys; from meshplan.inputs.load.scenario import load_scenario; "
        "load_scenario({'model': 'llama-3.1-8b', 'cluster': '64xH100', "
        "'job': {'seq_len': 8192, 'global_batch': 512}}); "
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tp", "0"], "such as 8\n"),
        (["--seq-len", "8k"], "such as 8192\n"),
        (["--set", "job.seq_len=[1,2"], "no valid YAML: [1,2\n"),
    ],
)
def test_hints_fit_what_is_asked_for(capsys, options, words):
    given = ["--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "64", *options]
    assert run(["plan", "llama-3.1-8b", *given, "--lang", "en"]) == 2
    assert words in capsys.readouterr().err


def test_the_hint_for_a_key_of_a_file_may_be_typed(capsys, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "model: llama-3.1-8b\ncluster:\n  device: {name: MyGPU, peaks: {bf16: 100 TFLOP/s}}\n"
        "  gpus: 8\njob: {seq_len: 4096, global_batch: 64}\n"
    )
    assert run(["plan", str(file), "--lang", "en"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "own.yaml:3: cluster.device.memory is missing" in said
    assert "--set cluster.device.memory=VALUE" in said
