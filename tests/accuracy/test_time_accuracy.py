"""Accuracy of step times on the shared runs: no set drifts, no plan is impossibly fast."""

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import planted_path  # noqa: F401  (puts tools/ on the path)
from accuracy_calibrated import calibrated_sweeps, least_error, mean_by_sweep
from accuracy_floor import least_errors, least_regret
from accuracy_measures import TARGETS, hf_rows, reached
from meshplan.validate.metrics import coverage, sweeps
from meshplan.validate.predict import predict
from meshplan.validate.run import read_cases
from meshplan.validate.table import read_models, read_table

SPLIT = Path(__file__).parent / "split.csv"

# mean absolute error allowed per source, a little above what docs/en/accuracy.md states; the
# sources that a target alone judges are not listed
MEAN_ERROR = {
    "vtrain": 0.05,
    "aleph-alpha-layouts": 0.06,
    "llm-foundry-bench": 0.08,
    "nvidia-nemo-megatron": 0.06,
    "megatron-ci-golden": 0.30,
    "internevo": 0.06,
    "korthikanti2022": 0.04,
    "sc21": 0.05,
    "simumax": 0.05,
    "zero-bubble": 0.08,
    "torchtitan-torchao": 0.12,
    "moe-parallel-folding": 0.08,
}


@pytest.fixture(scope="module")
def predictions(shared):
    measured = shared / "data" / "measured"
    rows = read_table(measured / "runs.csv", needs=())
    cases, skipped = read_cases(rows, read_models(measured / "models.csv"))
    cases = [case for case in cases if case.measured is not None]
    num_full = len(cases) + sum(one.full_layout for one in skipped)
    assert len(cases) >= 0.9 * num_full, "at least 90 % of the rows with a full layout"
    return predict(cases, memory=False)


@pytest.mark.slow
@pytest.mark.parametrize("source", MEAN_ERROR)
def test_no_source_drifts(predictions, source):
    errors = [p.error for p in predictions if p.case.source_id == source]
    assert errors
    assert np.mean(np.abs(errors)) < MEAN_ERROR[source]


@pytest.fixture(scope="module")
def judged(predictions):
    with SPLIT.open(encoding="utf-8") as file:
        side = {row["group"]: row["side"] for row in csv.DictReader(file)}
    rows = reached(predictions, side, hf_rows([p.case for p in predictions]))
    return {row[0]: row for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", [target.name for target in TARGETS])
def test_targets_are_reached(judged, name):
    """Each set keeps to what it is to reach, over all of its rows."""
    assert judged[name][-1] == "yes", judged[name]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_judge_side_reaches_the_targets_too(judged, target):
    """Groups that no number was fitted on."""
    value = float(judged[target.name][6].split()[0])
    assert value <= 100 * target.limit, judged[target.name]


@pytest.mark.slow
def test_both_sides_of_the_split_agree(predictions):
    """Numbers that were fitted on one side hold on the other."""
    with SPLIT.open(encoding="utf-8") as file:
        side = {row["group"]: row["side"] for row in csv.DictReader(file)}
    errors = defaultdict(list)
    for p in predictions:
        if p.case.source_id in MEAN_ERROR:
            errors[side[p.case.group]].append(abs(p.error))
    assert np.median(errors["judge"]) < 1.25 * np.median(errors["fit"])


@pytest.mark.slow
def test_bands_hold_four_of_five(predictions):
    assert 0.75 <= coverage(predictions) <= 0.90


@pytest.mark.slow
def test_picks_of_strict_sweeps(predictions):
    found = sweeps(predictions)
    steady = [s["regret"] for s in found if s["source_id"] != "hf-ultrascale"]
    assert np.median(steady) == 0
    assert np.mean(steady) < 0.02
    # of hf-ultrascale repeats of one layout lie further apart than that
    assert np.mean([s["regret"] for s in found]) < 0.055


@pytest.mark.slow
def test_repeats_leave_no_forecast_without_error(predictions):
    """The floor beside a target: repeats of a layout in the tables, each a run of its own."""
    steady = [p for p in predictions if p.case.source_id == "aleph-alpha-layouts"]
    assert 0.001 < np.median(least_errors(steady)) < 0.02
    floor = least_regret(predictions)
    assert floor["hf-ultrascale"] > 0.3
    assert floor["aleph-alpha-layouts"] < 0.01
    assert "vtrain" not in floor, "no layout of it was run twice"


@pytest.mark.slow
def test_what_sequence_parallelism_brings_is_as_measured(predictions):
    """Pairs of runs of aleph-alpha-layouts that differ in sequence parallelism alone.

    Its stack saves what it gathers, and has no second gather in the backward pass.
    """
    pairs = defaultdict(dict)
    for p in predictions:
        plan = p.case.plan
        if p.case.source_id == "aleph-alpha-layouts" and plan.tp > 1 and "sp" in p.case.sweep_id:
            key = (p.case.scenario, replace(plan, sp=False))
            pairs[key][plan.sp] = (p.case.measured_step_s(), p.step_time_s)
    both = [pair for pair in pairs.values() if len(pair) == 2]
    assert len(both) == 15
    off = [np.log(on[1] / without[1] * without[0] / on[0]) for without, on in map(ends, both)]
    print(f"off by {np.mean(np.abs(off)):.1%} in the mean of {len(off)} pairs")
    assert abs(np.median(off)) < 0.01
    assert np.mean(np.abs(off)) < 0.02


def ends(pair):
    """A run without and one with sequence parallelism: measured and predicted step times."""
    return pair[False], pair[True]


@pytest.mark.slow
def test_what_heads_of_an_odd_width_cost_is_as_measured(predictions):
    """BigScience: heads 108 wide against 144, all else the same; heads 150 and 450 wide."""
    by_row = {p.case.row_id: p for p in predictions}
    for even, odd in (("0093", "0094"), ("0096", "0097"), ("0098", "0099")):
        one, two = by_row[f"bigscience:{even}"], by_row[f"bigscience:{odd}"]
        more = two.case.measured_step_s() - one.case.measured_step_s()
        assert more > 35.0
        assert two.step_time_s - one.step_time_s == pytest.approx(more, rel=0.12)
    wide = [by_row[f"bigscience:000{i}"].error for i in range(1, 7)]
    assert np.max(np.abs(wide)) < 0.08
    # a miss: heads 145 wide on V100 are slower still
    narrow = [by_row[f"bigscience:{i}"].error for i in ("0167", "0168", "0170", "0171", "0172")]
    print(*(f"{error:+.1%}" for error in (*wide, *narrow)))
    assert -0.25 < min(narrow) <= max(narrow) < -0.1


@pytest.mark.slow
def test_what_the_fused_softmax_cannot_take_is_as_slow_as_measured(predictions):
    """vtrain, 16 heads, TP 8: one sequence makes two matrices of scores, two make four.

    The host launches slower than the devices work, and more kernels without the fused one.
    """
    found = defaultdict(list)
    for p in predictions:
        plan, model = p.case.plan, p.case.scenario.model
        if p.case.source_id == "vtrain" and model.hidden == 1024 and plan.tp == 8 and plan.pp == 1:
            units = model.num_layers * plan.num_micro_batches
            found[plan.micro_batch].append(
                (p.case.measured_step_s() / units, p.step_time_s / units)
            )
    one, two = (np.median(found[size], axis=0) for size in (1, 2))
    measured, predicted = one / two
    assert measured > 1.15
    assert predicted == pytest.approx(measured, rel=0.05)


# how much better three of its runs make the rest of a source's sweeps at least: mean error after
# over before, the share of its sweeps that are better in the mean over the draws, and the draws
# a miss: of bigscience all runs but one are predicted within 5 % without any given, and that one,
# which took 1.4 times as long as its neighbours, misleads where it is among the three
CALIBRATED = {
    "aleph-alpha-layouts": (0.48, 0.9, 2),
    "bigscience": (1.2, 0.0, 20),
    "megatron-bridge-perf-summary": (0.55, 0.8, 2),
    "vtrain": (0.75, 0.8, 2),
    "sc21": (0.7, 1.0, 20),
    "hf-ultrascale": (0.4, 0.7, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", CALIBRATED)
def test_three_runs_of_a_sweep_bring_good(predictions, source):
    """Whichever they are, and with a prior and defaults that were made without the source."""
    cases = [p.case for p in predictions if p.case.source_id == source]
    most, least, num_draws = CALIBRATED[source]
    found = calibrated_sweeps(cases, num_draws=num_draws)
    sweeps = mean_by_sweep(found)
    assert np.mean([one.after for one in found]) < most * np.mean([one.before for one in found])
    assert sum(after <= before for before, after, _ in sweeps.values()) >= least * len(sweeps)


def test_the_best_one_factor_leaves_least():
    """Found at a corner of the error; no factor in a fine grid leaves less."""
    ratios = np.array([0.7, 0.98, 1.01, 1.5, 3.0])
    grid = np.linspace(0.5, 2.0, 20_001)[:, None]
    assert least_error(ratios) == pytest.approx(
        np.abs(grid * ratios - 1).mean(axis=1).min(), abs=1e-4
    )
    assert least_error(ratios) < np.abs(ratios - 1.0).mean()
    assert least_error(ratios) < np.abs(ratios / np.median(ratios) - 1.0).mean()
    assert least_error(np.full(3, 1.3)) == pytest.approx(0.0, abs=1e-12)


# highest model FLOP utilisation of the shared runs, attention in full, against the dense peak of
# 16-bit numbers: aleph-alpha-layouts row 68 (A100, 70.6 % as published with the embedding, 67.3 %
# by our count), nvidia-nemo-megatron row 236 (H100), simumax row 42 (B200), alpa row 107 (V100)
BEST_MFU = {"ampere": 0.674, "hopper": 0.626, "blackwell": 0.574, "volta": 0.533}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cluster", "seq_len", "global_batch"),
    [
        ("gpt3-175b", "256xA100-80GB", 2048, 512),
        ("llama-3.1-8b", "64xH100", 8192, 256),
        ("llama-3.1-70b", "64xH100", 8192, 256),
        ("llama-3.1-8b", "64xB200", 8192, 256),
        ("llama-3.1-70b", "64xGB300", 8192, 256),
        ("gpt3-13b", "64xV100", 2048, 512),
    ],
)
def test_no_plan_beats_the_best_ever_measured(name, cluster, seq_len, global_batch):
    from meshplan.cost.memory import Verdict, peak_memory
    from meshplan.cost.step import step_time
    from meshplan.inputs.job import Job
    from meshplan.inputs.load.cluster import parse_cluster
    from meshplan.inputs.load.hf_config import load_model
    from meshplan.inputs.scenario import Scenario
    from space_scenarios import enumerate_plans

    scenario = Scenario(
        model=load_model(name),
        cluster=parse_cluster(cluster),
        job=Job(
            seq_len=seq_len,
            global_batch=global_batch,
            precision="fp16" if "V100" in cluster else "bf16",
            attention="unfused" if "V100" in cluster else "flash",
        ),
        frameworks=("megatron", "torchtitan", "deepspeed", "accelerate", "nanotron"),
    )
    grid = enumerate_plans(scenario).grid
    index = np.random.default_rng(0).choice(len(grid), min(len(grid), 40_000), replace=False)
    chosen = grid.take(index)
    fits = peak_memory(scenario, chosen).verdict != Verdict.OOM
    best = step_time(scenario, chosen).mfu[fits].max()
    assert best < BEST_MFU[scenario.cluster.device.architecture]
