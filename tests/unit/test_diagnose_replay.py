"""A rank played again with other collectives, against what its streams say by hand."""

import pytest

from diagnose_traces import TraceMaker
from meshplan.diagnose.findings.flows import channel_of
from meshplan.diagnose.findings.replay import saved_us
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.trace import read_trace

RANKS = (0, 1)


def measured(tmp_path, *, end, launches=True, **kernels):
    """One step with kernels ``(kind, start, duration, launch)`` on a stream for each name."""
    maker = TraceMaker(rank=0, world_size=2)
    maker.step(1, 0, end)
    for number, (stream, rows) in enumerate(kernels.items()):
        for start, duration, launch in rows:
            launch = launch if launches else None
            if stream.startswith("compute"):
                maker.kernel("gemm", start, duration, launch=launch, stream=7)
            else:
                maker.collective(
                    stream, start, duration, ranks=RANKS, elements=1 << 24, launch=launch,
                    stream=20 + number, group=stream,
                )  # fmt: skip
    return measure_rank(read_trace(maker.write(tmp_path / "rank0.json")), timeline=False)


def saved(rank, **factors):
    by_kind = {channel_of(t): factors.get(t.kind, 1.0) for t in rank.steps[0].traffic}
    return saved_us(rank, by_kind)


def test_traffic_that_nothing_hides_shrinks_with_its_time(tmp_path):
    rank = measured(
        tmp_path, end=400, compute=[(0, 100, 0), (300, 100, 2)], all_reduce=[(100, 200, 1)]
    )
    assert saved(rank, all_reduce=0.25) == pytest.approx(150)
    assert saved(rank, all_reduce=0.0) == pytest.approx(200)
    assert saved(rank, all_reduce=1.0) == 0.0


def test_traffic_behind_compute_saves_what_shows_and_no_more(tmp_path):
    # the gather runs from 100 to 300, compute from 100 to 250, and stands still for the last 50
    rank = measured(
        tmp_path,
        end=400,
        compute=[(0, 100, 0), (100, 150, 2), (300, 100, 3)],
        all_gather=[(100, 200, 1)],
    )
    assert saved(rank, all_gather=0.9) == pytest.approx(20)
    assert saved(rank, all_gather=0.5) == pytest.approx(50)


def test_a_queue_of_calls_moves_up_as_a_whole(tmp_path):
    # the second reduction was launched when 200 us of compute were over, but waited for the first
    calls = [(100, 300, 1), (400, 300, 3)]
    compute = [(0, 100, 0), (100, 100, 2), (200, 200, 4), (700, 100, 5)]
    rank = measured(tmp_path, end=800, compute=compute, reduce_scatter=calls)
    # halved: from 100 to 250, from 250 to 400, where compute has just come to
    assert saved(rank, reduce_scatter=0.5) == pytest.approx(300)
    # at a third both are over before: the second cannot start before its data is there
    assert saved(rank, reduce_scatter=1 / 3) == pytest.approx(300)
    # where launches are not known, a call may have had its data only when it started
    rank = measured(tmp_path, end=800, compute=compute, reduce_scatter=calls, launches=False)
    assert 150 <= saved(rank, reduce_scatter=0.5) <= 300


def test_hidden_traffic_saves_nothing(tmp_path):
    rank = measured(
        tmp_path, end=400, compute=[(0, 100, 0), (100, 300, 2)], all_gather=[(100, 200, 1)]
    )
    assert saved(rank, all_gather=0.0) == 0.0


def test_faster_traffic_of_one_kind_leaves_that_of_another_as_it_is(tmp_path):
    # compute stands still for the reduction, then for the gather that starts when it is over
    rank = measured(
        tmp_path,
        end=600,
        compute=[(0, 100, 0), (500, 100, 3)],
        all_reduce=[(100, 200, 1)],
        all_gather=[(300, 200, 2)],
    )
    assert saved(rank, all_reduce=0.5) == pytest.approx(100)
    assert saved(rank, all_reduce=0.5, all_gather=0.5) == pytest.approx(200)


def test_what_other_ranks_end_moves_with_the_compute_around_it(tmp_path):
    # a reduction, then a receive that lasts until the neighbour has sent
    rank = measured(
        tmp_path,
        end=700,
        compute=[(0, 100, 0), (300, 100, 2), (600, 100, 4)],
        all_reduce=[(100, 200, 1)],
        send_recv=[(400, 200, 3)],
    )
    by_kind = {t.kind: channel_of(t) for t in rank.steps[0].traffic}
    factors = {by_kind["all_reduce"]: 0.5}
    assert saved_us(rank, factors, beside={by_kind["send_recv"]}) == pytest.approx(100)


def test_calls_of_one_stream_that_overlap_are_no_queue(tmp_path):
    # two gathers that state one stream and run beside each other; compute waits for the second
    rank = measured(
        tmp_path,
        end=700,
        compute=[(0, 100, 0), (100, 100, 3), (500, 100, 4)],
        all_gather=[(100, 390, 1), (200, 300, 2)],
    )
    assert saved(rank, all_gather=0.5) == pytest.approx(150)
