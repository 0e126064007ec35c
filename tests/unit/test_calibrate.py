"""Calibration of a cluster profile."""

from dataclasses import replace

import pytest

from meshplan.errors import UserError
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.profile import cluster_profile, profile_of
from meshplan.inputs.scenario import Scenario
from meshplan.space.enumerate import enumerate_plans
from meshplan.validate.calibrate import calibrate, check_reach
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
    # what chance could bring of a shift is not believed, even where runs are free of noise
    assert after < 0.6 * before


def test_runs_that_agree_change_little():
    found = calibrate(cases_on({}, 3))
    assert found.profile.gemm == pytest.approx(cluster_profile("default").gemm, rel=1e-3)


def test_runs_inside_the_band_leave_it_as_it_is():
    own = profile_of(cases_on({}, 1)[0].scenario, "megatron").band.base
    alike, apart = cases_on({}, 2), cases_on({}, 2)
    apart = [replace(c, measured=c.measured * by) for c, by in zip(apart, (1.5, 0.7), strict=True)]
    assert calibrate(alike).base_share == own
    assert calibrate(apart).base_share > own


def test_document_reads_as_a_profile(tmp_path):
    import yaml

    found = calibrate(cases_on({"gemm": 0.7}, 2))
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(found.document(sources=["runs.csv"])))
    again = cluster_profile(str(path))
    assert again.gemm == pytest.approx(found.profile.gemm, rel=1e-3)
    assert "runs.csv" in again.sources["gemm"].source


def test_runs_that_contradict_each_other_move_nothing():
    """One plan, run three times: faster than predicted, slower, and as predicted."""
    (one,) = cases_on({}, 1)
    odd = [replace(one, measured=one.measured * factor) for factor in (1 / 1.2, 1.2, 1.02)]
    assert calibrate(odd).profile.gemm == cluster_profile("default").gemm


def test_a_shift_that_all_runs_share_moves_the_speed():
    """The same plan, run three times, 1.4 times slower: most of that is believed."""
    (one,) = cases_on({}, 1)
    slow = [replace(one, measured=one.measured * factor) for factor in (1.37, 1.4, 1.43)]
    found = calibrate(slow)
    assert all(abs(after) < 0.1 for after in found.after)
    default = cluster_profile("default")
    moved = found.profile.gemm / default.gemm
    assert found.profile.scale_up / default.scale_up == pytest.approx(moved)
    assert found.profile.latency / default.latency == pytest.approx(1 / moved)


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_a_time_of_another_unit_is_refused(factor):
    cases = cases_on({}, 3)
    wrong = replace(cases[0], measured=cases[0].measured * factor)
    with pytest.raises(UserError) as caught:
        check_reach([wrong, *cases[1:]])
    assert [problem.code for problem in caught.value.problems] == ["run_out_of_reach"]


def test_runs_far_from_the_forecast_are_fitted_all_the_same():
    """Runs of a cluster that stalls took more than twenty times as long as one without stalls."""
    far = [replace(c, measured=c.measured * 30.0) for c in cases_on({}, 3)]
    found = calibrate(far)
    assert all(
        abs(after) < abs(before) for before, after in zip(found.before, found.after, strict=True)
    )
