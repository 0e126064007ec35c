"""Calibration of a cluster profile, and the console logs that it reads."""

import json
from dataclasses import replace

import pytest

from meshplan.errors import UserError
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.profile import cluster_profile, profile_of
from meshplan.inputs.scenario import Scenario
from meshplan.space.enumerate import enumerate_plans
from meshplan.validate.calibrate import calibrate
from meshplan.validate.logs import read_log
from meshplan.validate.predict import predict
from meshplan.validate.rows import Case


def cases_on(cluster_numbers, count):
    """Runs as a cluster with these numbers would have measured them."""
    scenario = Scenario(
        model=load_model("llama-3.1-8b"),
        cluster=parse_cluster("32xH100"),
        job=Job(seq_len=8192, global_batch=128),
    )
    grid = enumerate_plans(scenario).grid
    plans = [grid.plan(i) for i in range(0, len(grid), len(grid) // count)][:count]
    blank = [
        Case(
            row_id=str(i),
            source_id="made",
            sweep_id="",
            sweep_key=(),
            group="made",
            scenario=scenario,
            plan=plan,
            target="step_time_s",
            measured=1.0,
            measured_bytes=None,
            out_of_memory=False,
        )
        for i, plan in enumerate(plans)
    ]
    truth = replace(cluster_profile("default"), **cluster_numbers)
    found = predict(
        blank,
        memory=False,
        profile=lambda s, f: replace(profile_of(s, f), cluster=truth),
    )
    return [replace(p.case, measured=p.step_time_s) for p in found]


@pytest.mark.parametrize("numbers", [{"gemm": 0.6}, {"scale_out": 0.4, "gemm": 0.7}])
def test_three_runs_make_the_others_better(numbers):
    cases = cases_on(numbers, 24)
    picked, rest = cases[::8], [c for i, c in enumerate(cases) if i % 8]
    found = calibrate(picked)

    def mean_error(profile):
        made = predict(rest, memory=False, profile=profile)
        return sum(abs(p.error) for p in made) / len(made)

    before = mean_error(profile_of)
    after = mean_error(lambda s, f: replace(profile_of(s, f), cluster=found.profile))
    assert after < 0.5 * before


def test_runs_that_agree_change_little():
    found = calibrate(cases_on({}, 3))
    assert found.profile.gemm == pytest.approx(cluster_profile("default").gemm, rel=1e-3)


def test_document_reads_as_a_profile(tmp_path):
    import yaml

    found = calibrate(cases_on({"gemm": 0.7}, 2))
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(found.document(sources=["runs.csv"])))
    again = cluster_profile(str(path))
    assert again.gemm == pytest.approx(found.profile.gemm, rel=1e-3)
    assert "runs.csv" in again.sources["gemm"].source


EXPECTED = {
    "megatron_lm_2021_gpt52b_v100x64_tp4_pp16.log": ("steady_step_s", "step"),
    "megatron_lm_2021_gpt18b_v100x16_tp4_pp4_interval10.log": ("steady_step_s", "step"),
    "megatron_deepspeed_3d_ds-on_v100x64_tp4_pp16.log": ("steady_step_s", "step"),
    "megatron_deepspeed_zero_v100x64_tp4.log": ("steady_step_s", "step"),
    "megatron_lm_aws_gpt3_tp8_pp1.log": ("steady_step_s", "step"),
    "torchtitan_llama3_8b_h100x8_bf16.log": ("steady_tps_per_gpu", "tokens"),
    "torchtitan_llama3_8b_h100x8_float8_rowwise.log": ("steady_tps_per_gpu", "tokens"),
    "torchtitan_dsv3_16b_mxfp8_ep8_tps_only.log": ("steady_tps_per_gpu", "tokens"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_steady_figures_of_real_logs(shared, name):
    folder = shared / "data" / "logs"
    expected = json.loads((folder / "expected.json").read_text())[name]
    key, kind = EXPECTED[name]
    log = read_log(folder / name)
    value = log.steady_step_s() if kind == "step" else log.steady_tokens_per_s_per_gpu()
    assert value == pytest.approx(expected["derived"][key], rel=1e-4)
    memory = (expected["memory"] or {}).get("max_allocated_mb")
    if memory:
        assert log.peak_gib == pytest.approx(memory / 1024, rel=1e-6)


def test_steps_that_ranks_repeat_count_once(shared):
    log = read_log(shared / "data" / "logs" / "torchtitan_llama3_8b_h100x32_ansi_srun.log")
    assert dict(log.tokens_per_s_per_gpu) == {1990: 6785.0}


def test_thousands_and_suffixes(shared):
    log = read_log(shared / "data" / "logs" / "rerendered_from_issues" / "nanotron_2gpu.log")
    assert log.framework == "nanotron"
    assert log.steady_step_s() == pytest.approx(11.5)
    assert log.steady_tokens_per_s_per_gpu() == pytest.approx(11400)
    assert log.settings["global_batch"] == 64


def test_degrees_from_the_log(shared):
    log = read_log(shared / "data" / "logs" / "megatron_lm_2021_gpt52b_v100x64_tp4_pp16.log")
    assert log.settings["tp"] == 4
    assert log.settings["pp"] == 16
    assert log.settings["seq_len"] == 1024


def test_a_log_without_speed_is_refused(shared, tmp_path):
    with pytest.raises(UserError, match="log_without_speed"):
        read_log(shared / "data" / "logs" / "llmfoundry_mpt125m_noperf.log")
    with pytest.raises(UserError, match="log_unreadable"):
        read_log(tmp_path / "absent.log")
