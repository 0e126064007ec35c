"""What findings of logs and metrics cost, or why that is not known."""

import pytest

import planted_path  # noqa: F401
from diagnose_traces import TraceMaker
from meshplan.app import service
from meshplan.app.diagnosis import finding_json
from meshplan.app.diagnosis_words import finding_words
from planted.faults import Base, Fault
from planted.judge import diagnosis_of
from planted.sample import Case, make

BASE = Base(
    name="small",
    model="llama-2-13b",
    layers=3,
    cluster="8xH100",
    node=4,
    framework="torchtitan",
    plan={"zero": 3, "dp_shard": 8},
    micro_batches=2,
)


def table(path, *, clocks=True, slow=2):
    """Write a table of four GPUs, of which at most one lowers its clocks."""
    column = ", clocks.current.sm [MHz]" if clocks else ""
    rows = [f"index, utilization.gpu [%], clocks_event_reasons.active{column}"]
    for second in range(10):
        for gpu in range(4):
            mask = "0x20" if gpu == slow and second % 2 else "0x0"
            clock = f", {1500 if gpu == slow else 1600} MHz" if clocks else ""
            rows.append(f"{gpu}, 97 %, {mask}{clock}")
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def throttled(tmp_path, *, clocks):
    paths = [table(tmp_path / "smi.csv", clocks=clocks)]
    (one,) = service.diagnose({"paths": paths})["findings"]
    return one


def test_a_cost_that_is_not_known_says_why(tmp_path):
    known = throttled(tmp_path, clocks=True)
    assert known["cost_share"] == pytest.approx(1 - 1500 / 1600)
    assert known["gain"] == {"share": known["cost_share"], "basis": "trace"}
    unknown = throttled(tmp_path, clocks=False)
    assert (unknown["cost_share"], unknown["cost_reason"]) == (None, "no_clocks")
    for lang, words in (("en", "cost not known: the table has no clocks"), ("zh", "代价未知")):
        assert words in finding_words(unknown, lang)["cost"]


def test_gpus_of_two_machines_may_have_the_same_number(tmp_path):
    paths = [table(tmp_path / "a.csv"), table(tmp_path / "b.csv", slow=None)]
    (one,) = service.diagnose({"paths": paths})["findings"]
    assert (one["code"], one["numbers"]["file"]) == ("gpu_throttled", "a.csv")
    assert one["cost_share"] == pytest.approx(1 - 1500 / 1600)


def test_a_wrong_figure_costs_nothing():
    fault = Fault(kind="wrong_peak", size=2.0)
    case = Case(
        base=BASE, faults=(fault,), seed=3, given="plan", dropped="", as_file=False, log=True
    )
    (peak,) = (f for f in diagnosis_of(make(case)).findings if f.code == "wrong_peak")
    assert (peak.cost_share, peak.gain.share, peak.gain.basis) == (0.0, 0.0, "figure")
    assert finding_words(finding_json(peak), "en")["expected"] == (
        "gain: none in time: the figure changes, the step does not"
    )


def megatron_log(tmp_path, slow):
    lines = [
        f" iteration {n:8}/ 100 | consumed samples: {n * 8} | elapsed time per iteration (ms): "
        f"{3000.0 if n in slow else 1000.0} | global batch size: 8 | lm loss: 2.0E+00 |"
        for n in range(1, 41)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    return service.diagnose({"paths": [str(tmp_path / "train.log")]})


def test_slow_steps_of_a_log_cost_what_they_take_beyond_the_usual(tmp_path):
    (one,) = megatron_log(tmp_path, {10, 20, 30, 40})["findings"]
    assert (one["code"], one["reason"]) == ("slow_steps", "slow_steps_regular")
    # 39 steps after the first, of which four take two seconds longer
    assert one["cost_share"] == pytest.approx(8 / 47)
    assert one["action"]["numbers"] == {"every": 10, "first": 10}
    assert one["gain"]["share"] == one["cost_share"]
    (one,) = megatron_log(tmp_path, {5, 6, 31})["findings"]
    assert one["reason"] == "slow_steps_irregular"
    result = megatron_log(tmp_path, {1})
    assert not result["findings"]
    assert {"code": "slow_steps", "state": "clear", "reason": ""} in result["checks"]


def test_idle_devices_of_a_table_cost_at_most_what_they_idle(tmp_path):
    rows = ["index, utilization.gpu [%]", *["0, 90 %", "1, 50 %", "2, 0 %"] * 5]
    (tmp_path / "smi.csv").write_text("\n".join(rows) + "\n")
    (one,) = service.diagnose({"paths": [str(tmp_path / "smi.csv")]})["findings"]
    assert one["code"] == "low_utilization"
    assert one["cost_share"] == pytest.approx(0.3)  # the third takes no part in the run
    assert (one["numbers"]["gpu"], one["numbers"]["lowest"]) == ("1", 0.5)


def test_idle_time_that_nothing_explains_is_named(tmp_path):
    maker = TraceMaker(0, 1)
    for step in range(3):
        begin = 1000.0 * step
        maker.step(step, begin, 1000)
        maker.kernel("gemm", begin + 10, 390, launch=begin + 1)
        maker.host("cudaMemcpyAsync", begin + 100, 2000, cat="cuda_runtime")
        maker.kernel("gemm", begin + 800, 190, launch=begin + 2)  # launched in time, held up
    maker.write(tmp_path / "rank0.json")
    result = service.diagnose({"paths": [str(tmp_path)]})
    (one,) = result["findings"]
    assert one["code"] == "device_idle"
    assert one["cost_share"] == pytest.approx(0.4, abs=0.01)
    assert one["numbers"]["longest_s"] == pytest.approx(400e-6)
    assert one["numbers"]["synced_fraction"] == pytest.approx(0.4, abs=0.01)
    assert one["numbers"]["graph_fraction"] == 0.0
