"""Calibration of a cluster profile."""

import re
from dataclasses import fields, replace

import numpy as np
import pytest
import yaml

from meshplan.app.document import document
from meshplan.cost.likeness import time_of_runs_alike
from meshplan.cost.step import StepGrid, StepModel, step_time
from meshplan.errors import UserError
from meshplan.explanation.formulas import formulas_of
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.profile import cluster_profile, profile_of
from meshplan.inputs.profile import MOST_WEIGHT, SIZES
from meshplan.inputs.scenario import Scenario
from meshplan.search.evaluate import evaluate
from meshplan.space.plan import Framework, PlanGrid
from meshplan.text import LANGUAGES, t
from meshplan.validate.calibrate import MOST_OFF, apart_of, calibrate, check_reach, slopes_of
from meshplan.validate.predict import predict
from meshplan.validate.rows import Case
from space_scenarios import enumerate_plans


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


def test_the_band_is_as_wide_as_runs_lie_apart():
    alike, apart = cases_on({}, 2), cases_on({}, 2)
    apart = [replace(c, measured=c.measured * by) for c, by in zip(apart, (1.5, 0.7), strict=True)]
    assert 0.03 < calibrate(alike).base_share < 0.2
    assert calibrate(apart).base_share > 2 * calibrate(alike).base_share


def test_repeats_of_one_run_say_nothing_of_how_far_other_layouts_are_off():
    slow = [replace(c, measured=c.measured * 1.2) for c in cases_on({}, 3)]
    once = calibrate(slow[:1])
    often = calibrate([replace(slow[0], row_id=str(i)) for i in range(5)])
    assert often.base_share == pytest.approx(once.base_share, rel=0.1)
    scattered = [replace(slow[0], measured=slow[0].measured * by) for by in (0.6, 1.0, 1.6)]
    assert calibrate(scattered).base_share > 1.5 * once.base_share
    assert calibrate(slow).base_share < once.base_share


def test_document_reads_as_a_profile(tmp_path):
    cases = cases_on({"gemm": 0.7}, 2)
    found = calibrate(cases)
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(found.document(sources=["runs.csv"])))
    scenario = replace(cases[0].scenario, profile=str(path))
    read = predict([replace(case, scenario=scenario) for case in cases], memory=False)
    assert [p.error for p in read] == pytest.approx(found.after, abs=1e-3)
    again = cluster_profile(str(path))
    assert again.gemm == pytest.approx(found.profile.gemm, rel=1e-3)
    assert "runs.csv" in again.sources["gemm"].source


def profile_with(found):
    """Profiles with what a calibration found."""

    def profile(scenario, framework):
        own = profile_of(scenario, framework)
        return replace(own, cluster=found.profile, residuals=found.residuals)

    return profile


def test_plans_follow_runs_like_them():
    """One layout takes 1.3 times what it takes elsewhere: its neighbours are thought to as well."""
    cases = cases_on({}, 24)
    slow = replace(cases[0], measured=cases[0].measured * 1.3)
    found = calibrate([slow, *cases[8::8]])
    numbers_alone = predict(
        cases, memory=False, profile=lambda s, f: replace(profile_of(s, f), cluster=found.profile)
    )
    followed = predict(cases, memory=False, profile=profile_with(found))
    ratio = np.array(
        [b.step_time_s / a.step_time_s for a, b in zip(numbers_alone, followed, strict=True)]
    )
    apart = apart_of(cases)[0]
    assert ratio[0] == ratio.max() > 1.05
    assert ratio[0] < 1.3  # chance had its part
    assert ratio[apart.argmax()] < 1.0 + (ratio[0] - 1.0) / 4
    assert found.after[0] == pytest.approx(followed[0].step_time_s / slow.measured - 1.0)


def test_parts_of_a_step_that_follows_runs_add_up_and_stay_in_the_band():
    cases = cases_on({}, 24)
    slow = [
        replace(c, measured=c.measured * f)
        for c, f in zip(cases[::8], (1.4, 0.9, 1.1), strict=True)
    ]
    found = calibrate(slow)
    for made in predict(cases, memory=False, profile=profile_with(found)):
        assert sum(made.parts.values()) == pytest.approx(made.step_time_s, rel=1e-12)
        assert made.low_s < made.step_time_s < made.high_s


def test_a_grid_that_follows_runs_is_its_plans_one_by_one_and_bounded_from_below():
    cases = cases_on({}, 24)
    found = calibrate([replace(c, measured=c.measured * 1.2) for c in cases[::12]])
    scenario, grid = cases[0].scenario, PlanGrid.of([c.plan for c in cases])
    profile = profile_with(found)(scenario, cases[0].plan.framework.name.lower())
    model = StepModel(scenario, grid, profile=profile)
    together = model.times()
    for i, case in enumerate(cases):
        one = step_time(scenario, PlanGrid.of([case.plan]), profile=profile)
        for f in fields(StepGrid):
            assert getattr(one, f.name)[0] == getattr(together, f.name)[i], f.name
    assert (model.least_high() <= together.high_s).all()
    assert (together.high_s <= model.times(exact=True).high_s).all()


def test_a_profile_that_stays_takes_no_runs_on(tmp_path):
    path = tmp_path / "profile.yaml"
    path.write_text("fitted: {gemm: 0.9}\n")
    runs = cases_on({}, 3)
    scenario = replace(runs[0].scenario, profile=str(path))
    own = [replace(run, scenario=scenario) for run in runs]
    as_known = [
        replace(run, measured=made.step_time_s)
        for run, made in zip(own, predict(own, memory=False), strict=True)
    ]
    found = calibrate(as_known)
    assert found.residuals is None
    assert found.profile.gemm == 0.9


def test_runs_of_one_layout_are_one_run_in_the_file_and_further_runs_add_to_them(tmp_path):
    (one,) = cases_on({}, 1)
    runs = [replace(one, measured=one.measured * f) for f in (1.3, 1.4)]
    first = calibrate(runs)
    assert len(first.residuals.runs) == 1
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(first.document(sources=["a.csv"])))
    other = replace(cases_on({}, 3)[2], scenario=replace(one.scenario, profile=str(path)))
    second = calibrate([replace(other, measured=other.measured * 3.0)])
    assert len(second.residuals.runs) == 2


def test_runs_of_another_framework_are_not_followed():
    cases = cases_on({}, 3)
    found = calibrate([replace(c, measured=c.measured * 1.3) for c in cases])
    scenario, grid = cases[0].scenario, PlanGrid.of([c.plan for c in cases])
    profile = profile_with(found)(scenario, "torchtitan")
    assert time_of_runs_alike(scenario, grid, profile) is None


def test_runs_of_two_frameworks_are_not_alike():
    """One took longer than predicted and the other less: neither is stretched by the other."""
    (one,) = cases_on({}, 1)
    scenario = replace(one.scenario, frameworks=("nanotron",))
    plan = replace(one.plan, framework=Framework.NANOTRON)
    made = predict([one, replace(one, scenario=scenario, plan=plan)], memory=False)
    factors = (1.2, 0.8)
    runs = [
        replace(p.case, measured=p.step_time_s * factor)
        for p, factor in zip(made, factors, strict=True)
    ]
    found = calibrate(runs)
    assert apart_of(runs)[0, 1] == np.inf
    for before, after in zip(found.before, found.after, strict=True):
        assert abs(after) < 0.5 * abs(before)
        assert after * before > 0  # as far as chance allows, and no further


def test_many_runs_alike_stretch_a_plan_no_further_than_one_may():
    (one,) = cases_on({}, 1)
    found = calibrate([replace(one, measured=one.measured * 1.3)])
    (run,) = found.residuals.runs
    for weight in (-MOST_WEIGHT, MOST_WEIGHT):
        runs = tuple(replace(run, weight=weight) for _ in range(200))
        profile = profile_of(one.scenario, "megatron")
        profile = replace(profile, residuals=replace(found.residuals, runs=runs))
        factor = time_of_runs_alike(one.scenario, PlanGrid.of([one.plan]), profile)
        assert factor == pytest.approx(np.exp(-weight))


def test_a_profile_of_runs_that_are_absurdly_far_off_can_be_read(tmp_path):
    (one,) = cases_on({}, 1)
    found = calibrate([replace(one, measured=one.measured * 1e12)])
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(found.document(sources=["runs.csv"])))
    cluster_profile(str(path))


def test_an_answer_says_how_many_runs_of_its_frameworks_it_follows(tmp_path):
    runs = cases_on({}, 2)
    found = calibrate([replace(run, measured=run.measured * 1.3) for run in runs])
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(found.document(sources=["runs.csv"])))
    scenario = replace(runs[0].scenario, profile=str(path))

    def followed(*frameworks):
        head = document("plan", replace(scenario, frameworks=frameworks))
        return [a["value"] for a in head["assumptions"] if a["code"] == "runs_alike"]

    assert followed("megatron") == followed("torchtitan", "megatron") == ["2"]
    assert followed("torchtitan") == []


def test_explain_shows_by_how_much_runs_stretch_a_plan(tmp_path):
    (one,) = cases_on({}, 1)
    found = calibrate([replace(one, measured=one.measured * 1.3)])
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(found.document(sources=["runs.csv"])))
    scenario, grid = replace(one.scenario, profile=str(path)), PlanGrid.of([one.plan])
    codes = [f.code for f in formulas_of(one.scenario, evaluate(one.scenario, grid))]
    assert "runs_alike" not in codes
    formulas = {f.code: f for f in formulas_of(scenario, evaluate(scenario, grid))}
    factor = time_of_runs_alike(scenario, grid, profile_of(scenario, "megatron"))[0]
    assert formulas["runs_alike"].result == factor > 1.0
    for lang in LANGUAGES:
        assert t("formula.runs_alike", lang) != "formula.runs_alike"


def test_distances_count_doublings_and_settings():
    (case,) = cases_on({}, 1)
    other = replace(case, plan=replace(case.plan, tp=case.plan.tp * 4, zero=case.plan.zero + 2))
    assert apart_of([case, other])[0, 1] == 3.0  # two doublings, and one setting


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "{reach: 0, runs: []}",
        "{reach: 2}",
        "{reach: 2, runs: {}}",
        "{reach: 2, runs: [1]}",
        "{reach: 2, runs: [{framework: megatron}]}",
        "{reach: 2, runs: [RUN, weight: 11}]}",
        "{reach: 2, runs: [RUN, weight: .nan}]}",
        "{reach: 2, runs: [RUN, weight: 0.1, speed: 1}]}",
        "{reach: 2, runs: [{framework: 3, tp: 1, weight: 0.1}]}",
        "{reach: .inf, runs: []}",
        "{reach: 2, runs: [RUN, recompute: half, weight: 0.1}]}",
        "{reach: 2, runs: [RUN, sp: 1, weight: 0.1}]}",
        "{reach: 2, runs: [RUN, zero: 4, weight: 0.1}]}",
    ],
)
def test_runs_of_a_profile_that_cannot_be_are_the_users_mistake(tmp_path, text):
    run = "{framework: megatron, " + ", ".join(f"{name}: 1" for name in SIZES)
    run += ", sp: false, recompute: mlp+norm, zero: 1"
    for name in ("recompute", "sp", "zero"):
        if f"RUN, {name}:" in text:  # no key stands twice
            run = re.sub(rf", {name}: [^,]+", "", run)
    path = tmp_path / "profile.yaml"
    path.write_text(f"fitted: {{gemm: 0.9}}\nresiduals: {text.replace('RUN', run)}\n")
    with pytest.raises(UserError, match="bad_residuals"):
        cluster_profile(str(path))


def test_runs_that_contradict_each_other_move_hardly_anything():
    """One plan, run three times: faster than predicted, slower, and as predicted."""
    (one,) = cases_on({}, 1)
    odd = [replace(one, measured=one.measured * factor) for factor in (1 / 1.2, 1.2, 1.02)]
    assert calibrate(odd).profile.gemm == pytest.approx(cluster_profile("default").gemm, rel=0.02)


def test_a_shift_that_all_runs_share_moves_the_speed():
    """The same plan, run three times, 1.4 times slower: most of that is believed."""
    (one,) = cases_on({}, 1)
    slow = [replace(one, measured=one.measured * factor) for factor in (1.37, 1.4, 1.43)]
    found = calibrate(slow)
    assert all(abs(after) < 0.1 for after in found.after)
    default = cluster_profile("default")
    for name in ("gemm", "attention", "memory_bound", "scale_up", "scale_out"):
        assert getattr(found.profile, name) < getattr(default, name)
    assert found.profile.latency > default.latency


def test_slopes_that_are_known_give_the_same_profile():
    cases = cases_on({"gemm": 0.7}, 6)
    given = np.array([0, 2, 5])
    known = calibrate([cases[i] for i in given], slopes=slopes_of(cases).take(given))
    assert known == calibrate([cases[i] for i in given])


def test_runs_may_lay_out_their_stages_each_in_its_way():
    cases = pipelines()[:2]
    stages, layers = cases[0].plan.pp, cases[0].scenario.model.num_layers
    uneven = (layers - stages + 1, *[1] * (stages - 1))
    own = [replace(cases[0], plan=replace(cases[0].plan, stage_layers=uneven)), cases[1]]
    found = slopes_of(own)
    assert found.per_wait[1] == slopes_of(cases).per_wait[1]
    assert 0 < found.per_wait[0] < slopes_of(cases).per_wait[0]
    check_reach(own)


def test_a_held_up_pipeline_is_fitted_as_a_wait():
    """Each micro-batch waits for 0.8 s where a pipeline passes it on, nothing else is slow."""
    found = calibrate(pipelines()[::3])
    assert found.profile.wait_s == pytest.approx(0.8, rel=0.5)
    rest = predict(
        [case for i, case in enumerate(pipelines()) if i % 3],
        memory=False,
        profile=lambda s, f: replace(profile_of(s, f), cluster=found.profile),
    )
    before = predict([p.case for p in rest], memory=False)
    errors = [sum(abs(p.error) for p in made) for made in (rest, before)]
    assert errors[0] < 0.5 * errors[1]


def pipelines():
    """Plans with a pipeline, on a cluster that holds them up."""
    return [c for c in cases_on({"wait_s": 0.8}, 40) if c.plan.pp > 1]


def test_runs_that_a_wait_explains_are_in_reach():
    """A pipeline that is held up at every micro-batch takes many times what is predicted."""
    cases = pipelines()
    far = [
        replace(c, measured=c.measured + 2.0 * c.plan.num_micro_batches * (1 - 1 / c.plan.pp))
        for c in cases
    ]
    times = [p.case.measured / p.step_time_s for p in predict(far, memory=False)]
    assert max(times) > MOST_OFF
    check_reach(far)


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
