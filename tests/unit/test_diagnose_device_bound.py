"""A rank played again with a host that launches everything at once, against sums by hand."""

import pytest

from diagnose_traces import TraceMaker
from meshplan.diagnose.findings.device_bound import device_bound_step_us
from meshplan.diagnose.findings.flows import channel_of
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.trace import read_trace

RANKS = (0, 1)


def played(tmp_path, rows, *, end, launches=True, axis="dp"):
    """One step of rows ``(name, start, duration, launch)``; names of collectives have streams."""
    maker = TraceMaker(rank=0, world_size=2)
    maker.step(1, 0, end)
    for name, start, duration, launch in rows:
        launch = launch if launches else None
        if name in ("gemm", "multi_tensor_apply_kernel"):
            maker.kernel(name, start, duration, launch=launch, stream=7)
        else:
            maker.collective(
                name, start, duration, ranks=RANKS, elements=1 << 24, launch=launch, stream=20
            )
    rank = measure_rank(read_trace(maker.write(tmp_path / "rank0.json")), timeline=False)
    axes = {channel_of(traffic): axis for traffic in rank.steps[0].traffic}
    return device_bound_step_us(rank, axes)


def test_gaps_before_late_launches_go(tmp_path):
    rows = [("gemm", 10, 100, 5), ("gemm", 300, 100, 295), ("gemm", 700, 100, 695)]
    assert played(tmp_path, rows, end=1000) == pytest.approx(300)


def test_compute_waits_for_calls_inside_its_passes(tmp_path):
    rows = [("gemm", 10, 100, 5), ("all_reduce", 150, 80, 145), ("gemm", 400, 100, 395)]
    assert played(tmp_path, rows, end=600, axis="tp") == pytest.approx(280)


def test_a_reduction_hides_behind_compute_that_is_launched_in_time(tmp_path):
    # the kernel after it comes late, so that all of it shows; launched in time it would run beside
    rows = [("gemm", 10, 100, 5), ("all_reduce", 110, 80, 50), ("gemm", 400, 100, 395)]
    assert played(tmp_path, rows, end=600) == pytest.approx(200)


def test_a_reduction_that_is_longer_than_compute_shows(tmp_path):
    rows = [("gemm", 10, 100, 5), ("all_reduce", 110, 180, 50), ("gemm", 400, 100, 395)]
    assert played(tmp_path, rows, end=600) == pytest.approx(280)


def test_the_optimizer_waits_for_reductions(tmp_path):
    rows = [
        ("gemm", 10, 100, 5), ("all_reduce", 110, 80, 50),
        ("gemm", 300, 30, 295), ("multi_tensor_apply_kernel", 500, 40, 495),
    ]  # fmt: skip
    assert played(tmp_path, rows, end=600) == pytest.approx(100 + 80 + 40)


def test_parameters_that_are_gathered_on_demand_hold_compute(tmp_path):
    rows = [
        ("all_gather", 10, 60, 5), ("gemm", 100, 100, 95),
        ("all_gather", 210, 60, 205), ("gemm", 400, 100, 395),
    ]  # fmt: skip
    assert played(tmp_path, rows, end=600) == pytest.approx(320)


def test_parameters_that_are_gathered_ahead_hide(tmp_path):
    # two gathers before the first kernel: each kernel needs all but the last one
    rows = [
        ("all_gather", 10, 60, 5), ("all_gather", 70, 60, 6), ("gemm", 150, 100, 145),
        ("all_gather", 300, 60, 295), ("gemm", 400, 100, 395), ("gemm", 600, 100, 595),
    ]  # fmt: skip
    # 60 for the first; the third starts when the first kernel is over, at 160, and hides
    assert played(tmp_path, rows, end=800) == pytest.approx(60 + 300)


def test_unknown_launches_are_not_played(tmp_path):
    rows = [("gemm", 10, 100, 5), ("all_reduce", 110, 80, 50), ("gemm", 400, 100, 395)]
    assert played(tmp_path, rows, end=600, launches=False) is None
