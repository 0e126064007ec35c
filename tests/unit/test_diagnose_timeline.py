"""The timeline of a run, the comparison with its plan, and the profile, as results."""

import json

import numpy as np
import pytest

from diagnose_traces import TraceMaker
from meshplan.app import service
from meshplan.app.cli.main import run
from meshplan.diagnose.intervals import length, union
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.timeline import lane, thin
from meshplan.diagnose.trace import read_trace


def test_a_row_is_thinned_without_losing_time():
    dice = np.random.default_rng(3)
    start = np.cumsum(dice.exponential(5.0, 50_000))
    intervals = union(start, start + dice.exponential(2.0, 50_000))
    row = lane("compute", intervals, most=1000)
    assert len(row.start) == 1000
    assert np.all(row.start[1:] > row.end[:-1])
    covered = ((row.end - row.start) * row.cover).sum()
    assert covered == pytest.approx(length(intervals))
    again = thin(row, most=100)
    assert len(again.start) == 100
    assert ((again.end - again.start) * again.cover).sum() == pytest.approx(length(intervals))
    assert (row.start[0], row.end[-1]) == (intervals[0, 0], intervals[-1, 1])
    longest = np.sort(intervals[1:, 0] - intervals[:-1, 1])[-99:]
    assert np.allclose(np.sort(again.start[1:] - again.end[:-1]), longest)


def test_short_rows_stay_as_they_are():
    intervals = np.array([[0.0, 1.0], [2.0, 5.0]])
    row = lane("copies", intervals, most=2)
    assert row.start.tolist() == [0.0, 2.0]
    assert row.cover.tolist() == [1.0, 1.0]
    assert len(lane("copies", np.empty((0, 2)), most=2).start) == 0


def test_a_timeline_has_a_row_for_each_kind_of_work(tmp_path):
    maker = TraceMaker(0, 4)
    maker.step(0, 0, 1000)
    maker.kernel("gemm", 0, 100)
    maker.collective("all_reduce", 50, 100, ranks=(0, 1), elements=9, purpose="mesh_tp")
    maker.collective(
        "all_gather", 300, 50, ranks=(0, 2), elements=9, group="2", purpose="mesh_fsdp"
    )
    maker.copy(500, 10)
    timeline = measure_rank(read_trace(maker.write(tmp_path / "r.json"))).timeline
    assert [row.name for row in timeline.lanes] == ["compute", "tp", "dp", "copies"]
    assert timeline.num_events == 4
    assert [step.name for step in timeline.steps] == ["ProfilerStep#0"]


def test_a_million_events_are_few_intervals(tmp_path):
    maker = TraceMaker(0, 1)
    for i in range(30_000):
        maker.kernel("gemm", 3 * i, 2)
    path = maker.write(tmp_path / "r.json")
    result = service.diagnose({"paths": [str(path)], "timeline": True})
    (rank,) = result["timeline"]["ranks"]
    (row,) = rank["lanes"]
    assert rank["num_events"] == 30_000
    assert len(row["start_us"]) == 2000
    assert len(json.dumps(result["timeline"])) < 200_000


def test_rows_stand_on_one_clock(tmp_path):
    offsets = (0.0, 7e6)
    for rank, offset in enumerate(offsets):
        maker = TraceMaker(rank, 2, clock=offset)
        for i in range(5):
            maker.kernel("gemm", 1000 * i, 500)
            maker.collective("all_reduce", 1000 * i + 500, 100, ranks=(0, 1), elements=9)
        maker.write(tmp_path / f"rank{rank}.json")
    timeline = service.diagnose({"paths": [str(tmp_path)], "timeline": True})["timeline"]
    first, second = timeline["ranks"]
    assert second["clock_offset_us"] == pytest.approx(7e6)
    assert first["lanes"][0]["start_us"] == pytest.approx(second["lanes"][0]["start_us"])
    assert first["lanes"][0]["start_us"][0] == 0.0


def test_clocks_that_cannot_be_compared_are_lined_up_by_steps(tmp_path):
    for rank, offset in enumerate((0.0, 9e9, -4e9)):
        maker = TraceMaker(rank, 3, clock=offset)
        maker.step(5 if rank < 2 else 99, 100, 1000)
        maker.kernel("gemm", 300 + 10 * rank, 500)
        maker.write(tmp_path / f"rank{rank}.json")
    ranks = service.diagnose({"paths": [str(tmp_path)], "timeline": True})["timeline"]["ranks"]
    assert [rank["aligned"] for rank in ranks] == [False, False, False]
    assert [rank["lanes"][0]["start_us"] for rank in ranks] == [[0.0], [10.0], [0.0]]


@pytest.fixture
def small_run(tmp_path):
    """A trace of a made-up step, on a cluster that computes at two thirds of the speed."""
    maker = TraceMaker(0, 8)
    for step in range(3):
        begin = 3e6 * step
        maker.step(step, begin, 3e6)
        maker.kernel("gemm", begin, 2.7e6, launch=begin - 5)
        maker.collective("reduce_scatter", begin + 2.7e6, 2e5, ranks=range(8), elements=2**24,
                         launch=begin, purpose="mesh_fsdp")  # fmt: skip
    return maker.write(tmp_path / "rank0.json")


ASKED = {
    "model": "llama-3.1-8b",
    "cluster": "8xH100",
    "job": {"seq_len": 4096, "global_batch": 32},
    "plan": {"tp": 1, "zero": 3, "micro_batch": 1},
    "frameworks": ["torchtitan"],
}


def test_a_plan_is_compared_with_its_trace(small_run):
    result = service.diagnose({**ASKED, "paths": [str(small_run)]})
    found = result["comparison"]
    assert found["step"]["measured_s"] == pytest.approx(3.0)
    parts = {part["code"]: part for part in found["parts"]}
    assert parts["compute"]["measured_s"] == pytest.approx(2.7)
    assert parts["dp"]["measured_s"] == pytest.approx(0.2)
    total = sum(part["measured_s"] or 0.0 for part in found["parts"])
    assert total == pytest.approx(3.0)
    predicted = sum(part["predicted_s"] or 0.0 for part in found["parts"])
    assert predicted == pytest.approx(found["step"]["predicted_s"])
    assert service.diagnose({"paths": [str(small_run)]})["comparison"] is None


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_verb_writes_a_profile_that_plan_reads(small_run, tmp_path, capsys, lang):
    profile = tmp_path / "profile.yaml"
    common = ["--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "32", "--lang", lang]
    code = run(
        ["diagnose", str(small_run), "--model", "llama-3.1-8b", "--plan", "tp=1,zero=3",
         "--framework", "torchtitan", "--calibrate", str(profile), *common]
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert code == 0
    assert {"en": "predicted against measured", "zh": "预测与实测对比"}[lang] in shown
    planned = ["plan", "llama-3.1-8b", "--profile", str(profile), "--json", *common]
    assert run(planned) == 0
    slow = json.loads(capsys.readouterr().out)
    assert run(["plan", "llama-3.1-8b", "--json", *common]) == 0
    usual = json.loads(capsys.readouterr().out)

    def step_s(result):
        return result["plans"][0]["step_time_s"]

    assert step_s(slow) > 1.1 * step_s(usual)
