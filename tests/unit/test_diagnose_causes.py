"""Findings on cases whose right answer is known by arithmetic, one kind of mistake each."""

from dataclasses import replace

import pytest

import planted_path  # noqa: F401
from meshplan.app import service
from meshplan.diagnose.findings import pipeline, rounds
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import CLEAR, Open
from meshplan.diagnose.findings.play import (
    Pipe,
    _equal_times,
    _measured_times,
    _play,
    bubble_share,
    enough_micro_batches,
)
from meshplan.diagnose.findings.records import Context
from meshplan.diagnose.machine import crossed_tier, domain_gpus, leaves_domain
from meshplan.diagnose.records import RunMeasures
from meshplan.inputs.load.cluster import draft_cluster
from meshplan.space.plan import Schedule
from planted.faults import Base
from planted.judge import diagnosis_of
from planted.sample import Case, make


def titan_log(folder, *, tflops, peak_tflops):
    """Write a torchtitan log that divides its speed by a peak."""
    rows = [
        f"[rank0]:2026-03-01 10:00:{step:02d},000 - root - INFO - step: {step:2d}  "
        f"loss: {9.0 - 0.1 * step:.4f}  memory: 42.20GiB(53.27%)  tps: 7,000  "
        f"tflops: {tflops:,.2f}  mfu: {tflops / peak_tflops * 100:.2f}%"
        for step in range(1, 11)
    ]
    path = folder / "train.log"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("cluster", "peak_tflops", "state", "what"),
    [
        # NVIDIA's data sheets: H100 SXM BF16 989.4 dense, FP8 1978.9 dense = BF16 with sparsity
        ("8xH100", 989.4, "clear", ""),
        ("8xH100", 1978.9, "open", "precision_unknown"),
        ("8xH100", 3957.8, "found", "sparse"),
        # no FP8 on an A100: 624 is the sparse rate alone
        ("8xA100-80GB", 624.0, "found", "sparse"),
        ("8xA100-80GB", 989.4, "found", "device"),
        ("8xH100", 700.0, "found", "unknown"),
    ],
)
def test_a_peak_without_a_precision(tmp_path, cluster, peak_tflops, state, what):
    path = titan_log(tmp_path, tflops=200.0, peak_tflops=peak_tflops)
    result = service.diagnose({"paths": [str(path)], "cluster": cluster})
    (check,) = [c for c in result["checks"] if c["code"] == "wrong_peak"]
    assert check["state"] == state
    if state == "found":
        (one,) = result["findings"]
        assert one["numbers"]["what"] == what
    else:
        assert (check["reason"] or "") == what


@pytest.mark.parametrize(("precision", "state"), [("fp8", "clear"), ("bf16", "found")])
def test_a_peak_with_the_precision_stated(tmp_path, precision, state):
    path = titan_log(tmp_path, tflops=400.0, peak_tflops=1978.9)
    job = {"seq_len": 4096, "global_batch": 16, "precision": precision}
    result = service.diagnose(
        {"paths": [str(path)], "cluster": "8xH100", "model": "llama-2-13b", "job": job}
    )
    (check,) = [c for c in result["checks"] if c["code"] == "wrong_peak"]
    assert check["state"] == state


def cluster_of(text):
    return draft_cluster(text, where="cluster").build()


@pytest.mark.parametrize(
    ("text", "domain", "group", "leaves", "tier"),
    [
        ("72xGB200", 72, (8, 1), False, "nvlink"),  # two trays of four, one NVLink domain
        ("144xGB200", 72, (8, 1), False, "nvlink"),
        ("144xGB200", 72, (2, 72), True, "leaf"),
        ("1024xH100", 8, (8, 1), False, "nvlink"),
        ("1024xH100", 8, (16, 1), True, "leaf"),
        ("1024xH100", 8, (16, 8), True, "leaf"),  # 128 ranks lie below one leaf of 256
        ("1024xH100", 8, (128, 8), True, "spine"),
        ("8xL40S", 8, (4, 1), False, None),  # no scale-up fabric: the node
    ],
)
def test_the_network_begins_where_the_scale_up_domain_ends(text, domain, group, leaves, tier):
    cluster = cluster_of(text)
    assert domain_gpus(cluster) == domain
    assert leaves_domain(cluster, group) is leaves
    if tier:
        assert cluster.tiers[crossed_tier(cluster, group)].name == tier


@pytest.mark.parametrize("given", ["cluster", "nothing"])
def test_tensor_parallelism_over_the_trays_of_one_nvlink_domain(given):
    base = Base(
        name="trays",
        model="llama-2-13b",
        layers=3,
        cluster="8xGB200",
        node=4,
        framework="megatron",
        plan={"tp": 8, "zero": 1},
        micro_batches=8,
    )
    case = Case(base=base, faults=(), seed=3, given=given, dropped="", as_file=False)
    outcome = diagnosis_of(make(case))
    assert "tp_across_nodes" not in {f.code for f in outcome.findings}
    states = {check.code: check.state for check in outcome.checks}
    assert states["tp_across_nodes"] == "clear"


def test_groups_of_experts_have_no_stride_by_their_size_under_tensor_parallelism():
    # Megatron's expert-tensor-parallel size is that of the dense layers unless it is set
    facts = Facts(RunMeasures(ranks=()), Context())
    sizes = {"tp": 2}
    facts._size_of = lambda axis: sizes.get(axis, 1)
    assert facts._by_size("ep", 4) is None
    sizes["tp"] = 1
    assert facts._by_size("ep", 4) == (4, 1)


def pipe(schedule, *, pp, micro, vpp=1, again=0.0):
    return Pipe(schedule=schedule, pp=pp, vpp=vpp, micro=micro, again=again)


@pytest.mark.parametrize(
    ("one", "share"),
    [
        # Narayanan et al. 2021: (p - 1) / (v m) of the ideal time, with 1F1B and interleaved
        (pipe(Schedule.ONE_F_ONE_B, pp=4, micro=12), 3 / 15),
        (pipe(Schedule.GPIPE, pp=4, micro=12), 3 / 15),
        (pipe(Schedule.INTERLEAVED, pp=4, micro=12, vpp=2), 3 / 27),
        # Qi et al. 2024: (p - 1) (f + b - w) with ZB-H1, a pass each: 3 over 36 + 3
        (pipe(Schedule.ZB_H1, pp=4, micro=12), 3 / 39),
    ],
)
def test_the_bubble_is_that_of_the_schedule(one, share):
    assert bubble_share(one) == pytest.approx(share)


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.INTERLEAVED])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_the_advice_clears_the_finding_and_is_the_least_that_does(schedule, pp):
    looped = schedule is Schedule.INTERLEAVED
    one = pipe(schedule, pp=pp, micro=pp if looped else 1, vpp=2 if looped else 1)
    enough = enough_micro_batches(one)
    assert bubble_share(replace(one, micro=enough)) < 0.10
    fewer = enough - (pp if looped else 1)
    assert fewer <= one.micro or bubble_share(replace(one, micro=fewer)) >= 0.10


def played(one, work):
    return _play(one, _measured_times(_equal_times(one), one, work))


def test_recompute_of_everything_makes_the_forward_pass_a_quarter():
    # one stage's forward pass of one micro-batch delays the second stage: pp=2, m=1
    for again, forward in ((0.0, 1 / 3), (0.25, 1 / 4)):
        lone = played(pipe(Schedule.ONE_F_ONE_B, pp=2, micro=1, again=again), [1.0, 0.0])
        assert lone == pytest.approx(1.0)
        both = played(pipe(Schedule.ZB_H1, pp=2, micro=1, again=again), [1.0, 1.0])
        # forward twice, input gradients twice, and the weights of the first stage last
        assert both == pytest.approx(2 * forward + 2 * (1 - 2 * forward) + forward)


@pytest.mark.parametrize(
    ("sends", "waits", "answer"),
    [
        (4, 0.3, "few_micro_batches"),  # four at the most: 3 / 7
        (40, 0.3, Open("micro_batches_unknown")),  # ten to forty: 3 / 13 or 3 / 43
        (200, 0.3, CLEAR),  # fifty at the least: 3 / 53
        (40, 0.05, CLEAR),  # whatever their number, they wait for less than counts
    ],
)
def test_micro_batches_are_counted_where_any_count_says_the_same(monkeypatch, sends, waits, answer):
    facts = Facts(RunMeasures(ranks=()), Context())
    facts.num_stages, facts.stages = 4, ((0,), (1,), (2,), (3,))
    monkeypatch.setattr(rounds, "_sends", lambda _: {1: sends})
    monkeypatch.setattr(pipeline, "_least_waiting", lambda _: waits)
    said = pipeline.find_few_micro_batches(facts)
    if isinstance(answer, str):
        assert said.code == answer
    else:
        assert said == answer
