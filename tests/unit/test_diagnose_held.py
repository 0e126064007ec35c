"""Compute that stands still beside traffic: what waits for it, and what does not."""

import pytest

from diagnose_traces import TraceMaker
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.trace import read_trace

RANKS = (0, 1)


def idle(tmp_path, rows, *, end=1000.0):
    """One step of rows ``(name, start, duration, launch)``; collectives have a stream of theirs."""
    maker = TraceMaker(rank=0, world_size=2)
    maker.step(1, 0, end)
    for name, start, duration, launch in rows:
        if name == "gemm":
            maker.kernel(name, start, duration, launch=launch, stream=7)
        else:
            maker.collective(
                name, start, duration, ranks=RANKS, elements=1 << 24, launch=launch, stream=20
            )
    return measure_rank(read_trace(maker.write(tmp_path / "r.json")), timeline=False).steps[0].idle


def test_compute_that_goes_on_when_a_call_ends_waited_for_it(tmp_path):
    rows = [("gemm", 0, 100, 0), ("all_gather", 50, 350, 1), ("gemm", 405, 100, 2)]
    found = idle(tmp_path, rows)
    assert (found.held_us, found.held_most_us) == (0.0, 0.0)


def test_compute_that_goes_on_amid_a_call_did_not_wait_for_it(tmp_path):
    rows = [("gemm", 0, 100, 0), ("all_reduce", 50, 900, 1), ("gemm", 400, 100, 2)]
    found = idle(tmp_path, rows)
    assert found.held_us == pytest.approx(300)


def test_reductions_that_end_early_are_waited_for_by_the_optimizer_alone(tmp_path):
    # the reduction is over at 250, compute goes on at 400: it waited for neither
    rows = [("gemm", 0, 100, 0), ("all_reduce", 50, 200, 1), ("gemm", 400, 100, 2)]
    found = idle(tmp_path, rows)
    assert found.held_us == pytest.approx(150)  # 100 to 250, the rest is idle time
    assert found.device_us == pytest.approx(150)


def test_a_gather_that_ends_early_may_have_been_waited_for(tmp_path):
    rows = [("gemm", 0, 100, 0), ("all_gather", 50, 200, 1), ("gemm", 400, 100, 2)]
    found = idle(tmp_path, rows)
    assert (found.held_us, found.held_most_us) == (0.0, pytest.approx(150))


def test_compute_that_was_launched_late_waited_for_the_host(tmp_path):
    rows = [("gemm", 0, 100, 0), ("all_reduce", 50, 900, 1), ("gemm", 400, 100, 390)]
    assert idle(tmp_path, rows).held_us == 0.0
