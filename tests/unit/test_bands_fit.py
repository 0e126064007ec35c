"""How the bands are fitted: how many runs count, and what experts in few bits add."""

from dataclasses import replace

import numpy as np
import pytest

import planted_path  # noqa: F401  (puts tools/ on the path)
from accuracy_calibrated import prior_without
from fit_bands import effective_number, level_of, quantile
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.scenario import Scenario
from profile_defaults import default_framework


class Run:
    """A prediction, of which only the model counts."""

    def __init__(self, model):
        self.case = self
        self.scenario = self
        self.model = self
        self.name = model
        self.group = model
        self.sweep_id, self.sweep_key = "", ()


def test_runs_of_one_model_that_err_alike_count_once():
    runs = [Run(name) for name in "abcde" for _ in range(10)]
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.normal(size=5), 10)
    alike = alike + 1e-6 * rng.normal(size=50)
    apart = rng.normal(size=50)
    assert effective_number(runs, alike) == pytest.approx(5, rel=1e-3)
    assert effective_number(runs, apart) > 30
    assert level_of(runs, alike) == 0.9
    assert level_of(runs, apart) == pytest.approx(0.8 + 0.8 / effective_number(runs, apart))
    assert effective_number(runs[:10], apart[:10]) == 1.0


def test_the_quantile_is_that_of_the_weighted_runs():
    y = np.arange(1.0, 11.0)
    x = np.ones((10, 1))
    assert quantile(x, y, [(0.0, None)], level=0.75) == pytest.approx(8.0)
    heavy = np.array([1.0] * 9 + [20.0])
    assert quantile(x, y, [(0.0, None)], level=0.75, weights=heavy) == pytest.approx(10.0)


def test_experts_in_few_bits_widen_the_band(tmp_path):
    """A profile says by how much; dense models and 16 bits do not ask for it."""
    profile = tmp_path / "profile.yaml"
    profile.write_text("fitted: {}\nband: {base: 0.1, experts: 0.25}\n", "utf-8")

    def base(precision, model="mixtral-8x7b"):
        scenario = Scenario(
            model=load_model(model),
            cluster=parse_cluster("64xH100"),
            job=Job(seq_len=4096, global_batch=256),
            profile=str(profile),
        )
        scenario = replace(scenario, job=replace(scenario.job, precision=precision))
        return profile_of(scenario, "megatron").band.base

    assert base("fp8") == pytest.approx(0.35)
    assert base("bf16") == base("fp8", "llama-3.1-8b") == pytest.approx(0.1)


def test_what_a_job_sets_stays_where_its_source_is_left_out():
    source = "megatron-bridge-perf-summary"

    def left_out(settings):
        return default_framework("megatron", f"megatron-bridge{settings}", source)

    usual = left_out("")
    assert usual.launch_s > 0 and usual.overlap_experts == 0
    assert left_out("+graph-layer").launch_s == 0
    both = left_out("+alltoall+overlapped-exchange")
    assert (both.overlap_experts, both.overlap_tensor) == (1.0, 0.0)
    assert both.contention_experts == pytest.approx(32 / 132, abs=0.005)  # multiprocessors of H100
    assert both.contention == usual.contention and not both.deduplicated_dispatch


def test_a_source_without_a_prior_of_its_own_names_the_tool_that_learns_it():
    with pytest.raises(SystemExit, match=r"'nobody-measured-it': run tools/fit_calibration\.py"):
        prior_without("nobody-measured-it")
