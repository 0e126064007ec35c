"""A run of several ranks: clocks, waiting, stragglers, stages, and files of any kind."""

import gzip
import json
import os
import weakref

import numpy as np
import pytest

from diagnose_traces import TraceMaker
from meshplan.diagnose import reading
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.reading import read_run
from meshplan.diagnose.run import measure_run
from meshplan.diagnose.trace import read_trace
from meshplan.errors import UserError

OFFSETS = (0.0, 12_345.0, -777.0, 5e8)


def straggling_run(tmp_path, *, slow=2, late=300.0, steps=4, metadata=True, jitter=2.0):
    """Four data-parallel ranks with clocks of their own, one of them late in each step."""
    dice = np.random.default_rng(1)
    paths = []
    for rank, offset in enumerate(OFFSETS):
        maker = TraceMaker(rank, 4, clock=offset)
        for step in range(steps):
            begin = 10_000.0 * step
            maker.step(step, begin, 10_000.0)
            at = begin
            for _ in range(4):
                own = at + 1000 + (late if rank == slow else 0) + jitter * dice.random()
                maker.kernel("gemm", at, own - at, launch=at - 50)
                end = at + 1000 + late + jitter + 200  # all members leave together
                if metadata:
                    maker.collective(
                        "all_reduce", own, end - own, ranks=range(4), elements=2**20, launch=at
                    )
                else:
                    maker.kernel(
                        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", own, end - own, stream=20
                    )
                at = end
        paths.append(maker.write(tmp_path / f"trace_rank{rank}.json"))
    return paths


@pytest.mark.parametrize("metadata", [True, False])
def test_clocks_and_straggler(tmp_path, metadata):
    run = read_run(straggling_run(tmp_path, metadata=metadata))
    assert list(run.offset_us) == [0, 1, 2, 3]
    for rank, offset in enumerate(OFFSETS):
        assert run.offset_us[rank] == pytest.approx(offset, abs=1.0)
    assert [s.slowest for s in run.skew] == [2, 2, 2, 2]
    skew = run.skew[0]
    assert skew.wait_us[2] < 20
    assert skew.wait_us[0] == pytest.approx(4 * 300, rel=0.02)
    assert skew.caused_us[2] == pytest.approx(4 * 300, rel=0.02)
    assert run.rank(0).steps[0].peer_wait_us == pytest.approx(4 * 300, rel=0.02)
    traffic = run.rank(0).steps[0].traffic[0]
    assert traffic.wait_basis == "peers"
    if metadata:  # the wait is no transfer
        assert traffic.bus_bytes_per_s == pytest.approx(2 * 2**20 * 1.5 / 202e-6, rel=0.02)


def test_equal_ranks_have_no_straggler(tmp_path):
    run = read_run(straggling_run(tmp_path, late=0.0))
    assert {s.slowest for s in run.skew} == {None}


def test_the_peer_of_a_straggler_is_not_blamed(tmp_path):
    """Tensor-parallel ranks 0 and 1 are late together, because 1 is slow."""
    paths = []
    for rank in range(4):
        maker = TraceMaker(rank, 4)
        pair = (0, 1) if rank < 2 else (2, 3)
        for step in range(4):
            begin = 10_000.0 * step
            maker.step(step, begin, 10_000.0)
            own = begin + (1500 if rank == 1 else 1000)
            maker.kernel("gemm", begin, own - begin)
            joint = begin + (1600 if rank < 2 else 1100)
            maker.collective("all_reduce", own, joint - own, ranks=pair, elements=9, group="tp")
            across = (rank % 2, rank % 2 + 2)
            maker.collective("reduce_scatter", joint, begin + 1700 - joint, ranks=across,
                             elements=9, group="dp", stream=21)  # fmt: skip
        paths.append(maker.write(tmp_path / f"r_rank{rank}.json"))
    run = read_run(paths)
    assert {s.slowest for s in run.skew} == {1}


def test_stages_from_groups(tmp_path):
    ranks = []
    for rank, work in enumerate((1000.0, 1500.0)):
        maker = TraceMaker(rank, 2)
        maker.step(0, 0, 2000)
        maker.kernel("gemm", 0, work)
        maker.collective("send_recv", work, 100, ranks=(0, 1), elements=9, purpose="mesh_pp")
        ranks.append(measure_rank(read_trace(maker.write(tmp_path / f"{rank}.json"))))
    run = measure_run(ranks)
    assert [(s.stage, s.ranks, s.compute_us) for s in run.stages] == [
        (0, (0,), 1000),
        (1, (1,), 1500),
    ]
    assert run.stage_basis == "metadata"
    assert run.stages[0].bubble_us == 1000
    assert run.stages[0].bubble_share == 0.5


def test_a_folder_of_ranks_in_natural_order(tmp_path):
    for rank in range(11):
        maker = TraceMaker()  # no metadata: the name tells the rank
        maker.kernel("gemm", 0, 10)
        suffix = ".json.gz" if rank % 2 else ".json"
        maker.write(tmp_path / f"host_rank{rank}{suffix}", indent=2 if rank % 3 else None)
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "notes.md").write_text("# what we tried\n")
    run = read_run([tmp_path])
    assert [r.rank for r in run.ranks] == list(range(11))
    assert {r.rank_basis for r in run.ranks} == {"file_name"}
    assert [n.where for n in run.notes if n.code == "file_skipped"] == ["notes.md"]


def ranks_of(run):
    return [(r.rank, r.rank_basis) for r in run.ranks]


def test_ranks_by_order_and_against_wrong_metadata(tmp_path):
    for name in ("a.json", "b.json"):
        maker = TraceMaker()
        maker.kernel("gemm", 0, 10)
        maker.write(tmp_path / name)
    assert [(r.rank, r.rank_basis) for r in read_run([tmp_path]).ranks] == [
        (0, "order"),
        (1, "order"),
    ]
    other = tmp_path / "other"
    other.mkdir()
    for rank in (3, 5):
        maker = TraceMaker(0, 1)  # each process believes to be alone
        maker.kernel("gemm", 0, 10)
        maker.write(other / f"rank{rank}.json")
    assert [(r.rank, r.rank_basis) for r in read_run([other]).ranks] == [
        (3, "file_name"),
        (5, "file_name"),
    ]


def test_mixed_runs_are_said(tmp_path):
    for rank, world in ((0, 8), (1, 16)):
        maker = TraceMaker(rank, world, device=f"GPU of {world}")
        maker.kernel("gemm", 0, 10)
        maker.write(tmp_path / f"rank{rank}.json")
    codes = {n.code: n.numbers for n in read_run([tmp_path]).notes}
    assert codes["mixed_runs"] == {"sizes": "8, 16"}
    assert "mixed_devices" in codes


def test_one_rank_at_a_time(tmp_path, monkeypatch):
    """However many ranks there are, one trace is held."""
    alive: list[weakref.ref] = []
    peak = 0

    def measured(trace, **options):
        nonlocal peak
        alive.append(weakref.ref(trace.compute.start))
        peak = max(peak, sum(columns() is not None for columns in alive))
        return measure_rank(trace, **options)

    monkeypatch.setattr(reading, "measure_rank", measured)
    for rank in range(16):
        maker = TraceMaker(rank, 16)
        for i in range(200):
            maker.kernel("gemm", 10 * i, 5)
        maker.write(tmp_path / f"rank{rank}.json")
    run = read_run([tmp_path])
    assert len(run.ranks) == 16
    assert peak == 1


def test_progress_is_told(tmp_path):
    seen = []
    read_run(straggling_run(tmp_path), progress=seen.append)
    assert {(r.number, r.num_files) for r in seen} == {(i, 4) for i in (1, 2, 3, 4)}
    last = [r for r in seen if r.number == 4][-1]
    assert last.num_bytes == last.file_bytes > 0


@pytest.mark.parametrize(
    "name", ["a\nb\trank1.json", "\u202egpj.rank2.json", "x\x1b[31mrank3.json", "排名rank4.json"]
)
def test_hostile_names_are_shown_escaped(tmp_path, name):
    maker = TraceMaker()
    maker.kernel("gemm", 0, 10)
    maker.write(tmp_path / name)
    run = read_run([tmp_path / name])
    shown = run.ranks[0].file
    assert shown.isprintable()
    assert "\u202e" not in shown
    assert ("排名" in shown) == ("排名" in name)
    assert run.ranks[0].rank == int(name.partition("rank")[2][0])


def test_a_name_of_bytes_that_are_no_text(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff\xfe.json"
    maker = TraceMaker()
    maker.kernel("gemm", 0, 10)
    with open(path, "wb") as stream:
        stream.write(json.dumps({"traceEvents": maker.events}).encode())
    run = read_run([os.fsdecode(path)])
    run.ranks[0].file.encode("utf-8")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "trace.empty_file"),
        (b"{", "trace.no_events"),
        (b'{"a": 1}', "trace.no_events"),
        (b"\x1f\x8b\x08\x00", "trace.nothing_whole"),
        (b"\x00\x01\x02\x03", "trace.nothing_known"),
        (b"hello\n", "log_unknown"),
        (b"SQLite format 3\x00 and nonsense", "nsight.unreadable"),
        (b"# gpu  pwr\n# Idx W\n", "metrics_unknown"),
    ],
)
def test_what_is_nothing_is_refused_in_one_message(tmp_path, content, code):
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_run([path])
    assert [p.code for p in caught.value.problems] == [code]


def test_absent_and_empty_are_refused_together(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as caught:
        read_run([tmp_path / "absent", tmp_path / "empty"])
    assert [p.code for p in caught.value.problems] == ["trace.absent", "trace.empty_folder"]


def test_one_bad_file_does_not_lose_the_others(tmp_path):
    straggling_run(tmp_path)
    (tmp_path / "trace_rank9.json").write_bytes(b'{"deviceProperties": [')
    run = read_run([tmp_path])
    assert len(run.ranks) == 4
    assert [n.where for n in run.notes if n.code == "file_not_read"] == ["trace_rank9.json"]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_off_trace_keeps_what_it_has(tmp_path, share, packed):
    maker = TraceMaker(0, 1)
    for i in range(5000):
        maker.kernel(f"gemm{i % 7}", 10 * i, 5)
    whole = maker.write(tmp_path / "whole.json").read_bytes()
    data = gzip.compress(whole) if packed else whole
    path = tmp_path / "cut.json"
    path.write_bytes(data[: int(len(data) * share)])
    run = read_run([path])
    assert "truncated" in [n.code for n in run.notes]
    kept = run.ranks[0].num_events
    assert kept >= (0.75 * share * 5000 if packed else share * 5000 - 200)
    assert run.ranks[0].whole.num_compute_kernels == kept


def test_odd_times_are_counted(tmp_path):
    maker = TraceMaker(0, 1)
    maker.kernel("gemm", 0, 10)
    maker.kernel("gemm", 5, 10)  # beside the first
    maker.kernel("gemm", 20, -5)
    maker.kernel("gemm", float("nan"), 5)
    maker.kernel("gemm", 30, 0)
    run = read_run([maker.write(tmp_path / "r.json")])
    assert run.ranks[0].whole.compute_us == 15
    notes = {n.code: n.numbers for n in run.notes}
    lost = (
        notes.get("bad_times", {"num": 0})["num"]
        + notes.get("unreadable_events", {"num": 0})["num"]
    )
    assert lost == 2


def test_no_device_events(tmp_path):
    maker = TraceMaker(0, 1)
    maker.host("PyTorch Profiler (0)", 0, 5)
    run = read_run([maker.write(tmp_path / "r.json")])
    assert [n.code for n in run.notes] == ["no_device_events"]
    assert run.ranks[0].steps == ()
    assert run.ranks[0].whole is None


def test_operators_stand_in_for_kernels_on_the_host(tmp_path):
    maker = TraceMaker(0, 2)
    maker.step(0, 0, 1000)
    maker.host("aten::mm", 0, 300, cat="cpu_op")
    maker.host("aten::addmm", 10, 200, cat="cpu_op")  # inside the first
    maker.host("c10d::allreduce_", 250, 20, cat="cpu_op")
    maker.host("aten::add", 250, 40, cat="cpu_op")
    maker.host("gloo:all_reduce", 250, 450)
    run = read_run([maker.write(tmp_path / "r.json")])
    rank = run.ranks[0]
    assert rank.on_host
    time = rank.steps[0].time
    # an operator that calls another counts where the other does: it may wait in between
    assert (time.compute_us, time.communication_us, time.exposed_us) == (240, 450, 410)
    assert rank.steps[0].traffic[0].kind == "all_reduce"
    assert "host_only" in [n.code for n in run.notes]


def test_a_device_trace_without_its_kernels_is_no_host_trace(tmp_path):
    maker = TraceMaker(0, 2)
    maker.host("aten::mm", 0, 300, cat="cpu_op")
    maker.host("cudaLaunchKernel", 100, 5, cat="cuda_runtime", args={"correlation": 7})
    run = read_run([maker.write(tmp_path / "r.json")])
    assert not run.ranks[0].on_host
    assert [n.code for n in run.notes] == ["no_device_events"]


def test_stage_times_alone_are_a_run(tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"\x00\x01")
    run = read_run([tmp_path / "odd.bin"], stage_times_s=(1.0, 1.2))
    assert run.stage_times_s == (1.0, 1.2)
    assert not run.ranks
