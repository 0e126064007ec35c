"""A plan against its trace, and the profile that a trace gives."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from cost_scenarios import plan, scenario
from meshplan.diagnose.calibration import calibrate_run
from meshplan.diagnose.columns import Window
from meshplan.diagnose.compare import compare, predicted_collective_s, predicted_parts
from meshplan.diagnose.records import (
    Breakdown,
    Calls,
    Idle,
    Phase,
    RankMeasures,
    RunMeasures,
    SizeClass,
    StepMeasures,
    Traffic,
)
from meshplan.errors import UserError
from meshplan.inputs.load.profile import cluster_profile, profile_of
from meshplan.inputs.load.profile_file import dump_profile

SCENARIO = scenario("llama-3.1-8b", cluster="32xH100", seq_len=8192, global_batch=64)
PLAN = plan(32, tp=4, sp=True, zero=1, num_micro_batches=8)
EMPTY = np.empty(0)
NO_CALLS = Calls(
    start=EMPTY,
    end=EMPTY,
    exposed_us=EMPTY,
    wait_us=EMPTY,
    message_bytes=EMPTY,
    step=EMPTY.astype(np.int64),
    channel=EMPTY.astype(np.int64),
    channels=(),
)


def traffic_of(axis, kind, ranks, profile, *, message_bytes, count, exposed_s):
    group = (len(ranks), ranks[1] - ranks[0])
    seconds = count * predicted_collective_s(
        SCENARIO, profile, kind, group=group, message_bytes=message_bytes
    )
    return Traffic(
        axis=axis,
        basis="metadata",
        kind=kind,
        group=axis,
        purpose="",
        ranks=ranks,
        group_size=len(ranks),
        count=count,
        total_us=seconds * 1e6,
        exposed_us=exposed_s * 1e6,
        wait_us=0.0,
        wait_basis="shortest",
        message_bytes=count * message_bytes,
        bus_bytes_per_s=None,
        sizes=(
            SizeClass(
                message_bytes=message_bytes,
                count=count,
                total_us=seconds * 1e6,
                transfer_us=seconds * 1e6,
            ),
        ),
        kernels=(),
    )


def run_on(profile, *, phases=()):
    """A run as a cluster of this profile would show it."""
    parts = predicted_parts(SCENARIO, PLAN, profile)
    traffic = (
        traffic_of("tp", "all_gather", (0, 1, 2, 3), profile, message_bytes=64e6, count=512,
                   exposed_s=parts["tp"]),
        traffic_of("dp", "reduce_scatter", tuple(range(0, 32, 4)), profile, message_bytes=2e9,
                   count=4, exposed_s=parts["dp"]),
    )  # fmt: skip
    compute_s = parts["compute"] + parts["recompute"] + parts["optimizer"]
    exposed_s = parts["tp"] + parts["dp"]
    step = StepMeasures(
        time=Breakdown(
            window=Window(name="ProfilerStep#1", start=0.0, end=parts["step"] * 1e6),
            compute_us=compute_s * 1e6,
            communication_us=exposed_s * 1e6,
            exposed_us=exposed_s * 1e6,
            copy_us=0.0,
            idle_us=(parts["step"] - compute_s - exposed_s) * 1e6,
            num_compute_kernels=1,
            num_communication_kernels=1,
        ),
        warm_up=False,
        idle=Idle(host_us=0, data_us=0, device_us=0, unknown_us=0, num_late=0, num_launched=0),
        traffic=traffic,
        exposed_by_axis_us={"tp": parts["tp"] * 1e6, "dp": parts["dp"] * 1e6},
        peer_wait_us=None,
        phases=phases,
        kernels=(),
    )
    rank = RankMeasures(
        file="rank0.json",
        rank=0,
        rank_basis="metadata",
        world_size=32,
        device="NVIDIA H100",
        on_host=False,
        num_devices=8,
        whole=None,
        steps=(step,),
        calls=NO_CALLS,
        timeline=None,
        notes=(),
        num_events=1,
    )
    return RunMeasures(ranks=(rank,))


def profile_with(**numbers):
    known = profile_of(SCENARIO, "megatron")
    return replace(known, cluster=replace(known.cluster, **numbers))


def test_a_run_as_predicted_agrees_in_every_part():
    found = compare(run_on(profile_of(SCENARIO, "megatron")), SCENARIO, PLAN)
    assert found.low_s < found.step.predicted_s < found.high_s
    assert found.step.predicted_s == pytest.approx(found.step.measured_s)
    assert {p.code for p in found.parts} == {"compute", "tp", "dp", "other"}
    for part in found.parts:
        assert part.predicted_s == pytest.approx(part.measured_s, rel=1e-6), part.code
    assert sum(p.measured_s for p in found.parts) == pytest.approx(found.step.measured_s)
    for one in found.collectives:
        assert one.predicted_s == pytest.approx(one.measured_s)
    assert [c.crosses_nodes for c in found.collectives] == [False, True]


def test_phases_are_compared_where_the_trace_has_them():
    parts = predicted_parts(SCENARIO, PLAN, profile_of(SCENARIO, "megatron"))
    phases = tuple(
        Phase(name=name, compute_us=share * parts["compute"] * 1e6, communication_us=0.0)
        for name, share in (("forward", 0.32), ("backward", 0.66), ("optimizer", 0.02))
    )
    found = compare(run_on(profile_of(SCENARIO, "megatron"), phases=phases), SCENARIO, PLAN)
    by_name = {p.code: p for p in found.phases}
    forward, backward = by_name["forward"], by_name["backward"]
    assert forward.predicted_s + backward.predicted_s == pytest.approx(parts["compute"])
    assert backward.predicted_s == pytest.approx(2 * forward.predicted_s, rel=0.2)
    assert by_name["optimizer"].predicted_s == parts["optimizer"]
    assert "optimizer" in [p.code for p in found.parts]


@pytest.mark.parametrize(
    "numbers",
    [{"gemm": 0.7}, {"scale_out": 0.4}, {"scale_up": 0.6}, {"gemm": 0.7, "scale_out": 0.5}],
)
def test_a_trace_tells_the_numbers_of_a_profile_apart(numbers):
    run = run_on(profile_with(**numbers))
    found = calibrate_run(run, SCENARIO, PLAN)
    start = profile_of(SCENARIO, "megatron").cluster
    for name, value in numbers.items():
        fitted, before = getattr(found.calibration.profile, name), getattr(start, name)
        # most of the way there: the prior holds on to a part
        assert abs(np.log(fitted / value)) < 0.5 * abs(np.log(before / value)), (name, fitted)
    for name in {"gemm", "scale_out", "scale_up"} - numbers.keys():
        moved = np.log(getattr(found.calibration.profile, name) / getattr(start, name))
        assert abs(moved) < 0.12, (name, moved)
    assert abs(found.calibration.after[0]) < 0.3 * abs(found.calibration.before[0]) + 0.002


def test_another_plan_is_predicted_better_with_the_profile(tmp_path):
    truth = profile_with(gemm=0.8, scale_out=0.5)
    found = calibrate_run(run_on(truth), SCENARIO, PLAN)
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(found.document(sources=["rank0.json"])))
    known = profile_of(SCENARIO, "megatron")
    read = replace(known, cluster=cluster_profile(str(path)))
    other = plan(32, tp=1, zero=3, num_micro_batches=2)
    wanted = predicted_parts(SCENARIO, other, truth)["step"]
    before = abs(predicted_parts(SCENARIO, other, known)["step"] / wanted - 1)
    after = abs(predicted_parts(SCENARIO, other, read)["step"] / wanted - 1)
    assert after < 0.5 * before
    assert "diagnose --calibrate rank0.json" in read.cluster.sources["gemm"].source


def test_the_same_trace_again_leaves_the_profile_as_it_is():
    """Neither its numbers move nor does its band become narrow; it says which blocks it saw."""
    run, asked, found = run_on(profile_with(gemm=0.7, scale_up=0.6)), SCENARIO, []
    for _ in range(2):
        found.append(calibrate_run(run, asked, PLAN).document(sources=["rank0.json"]))
        asked = replace(SCENARIO, profile=dump_profile(found[-1]))
    assert found[0] == found[1]
    assert found[0]["covers"] == {"hopper": ["attention", "mlp"]}
    assert found[0]["fitted"]["gemm"] < profile_of(SCENARIO, "megatron").cluster.gemm


def test_a_broken_link_is_not_taken_for_the_cluster():
    """A collective at a hundredth of its speed is a fault; the profile stays what it was."""
    run = run_on(profile_of(SCENARIO, "megatron"))
    (step,) = run.ranks[0].steps
    slow = tuple(
        replace(t, sizes=tuple(replace(s, transfer_us=100 * s.transfer_us) for s in t.sizes))
        for t in step.traffic
    )
    broken = replace(run.ranks[0], steps=(replace(step, traffic=slow),))
    found = calibrate_run(RunMeasures(ranks=(broken,)), SCENARIO, PLAN).calibration
    start = profile_of(SCENARIO, "megatron").cluster
    for name in ("gemm", "scale_up", "scale_out"):
        assert getattr(found.profile, name) == pytest.approx(getattr(start, name), rel=1e-2)
    assert abs(found.after[0]) <= abs(found.before[0]) + 1e-9


def test_nothing_measured_is_said():
    with pytest.raises(UserError, match=r"trace\.no_step"):
        calibrate_run(RunMeasures(ranks=()), SCENARIO, PLAN)
    assert compare(RunMeasures(ranks=()), SCENARIO, PLAN) is None
