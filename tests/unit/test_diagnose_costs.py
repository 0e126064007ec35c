"""What findings of logs and metrics cost, or why that is not known."""

import pytest

import planted_path  # noqa: F401
from diagnose_traces import TraceMaker
from meshplan.app import service
from meshplan.app.diagnosis import finding_json
from meshplan.app.diagnosis_words import finding_words
from meshplan.diagnose.findings.records import Action, Finding
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
    # the third takes no part in the run, the first waits for the second in collectives
    assert one["cost_share"] == pytest.approx(0.5)
    assert one["cost_s"] is None
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


def test_a_table_that_begins_before_the_training_counts_from_its_start(tmp_path):
    head = "index, utilization.gpu [%], clocks.current.sm [MHz]"
    before, work = ["0, 0 %, 345 MHz"] * 30, ["0, 95 %, 1700 MHz", "0, 91 %, 1720 MHz"] * 10
    pause = ["0, 0 %, 1000 MHz"]
    rows = [head, *before, *work, *pause, *work, *before]
    (tmp_path / "smi.csv").write_text("\n".join(rows) + "\n")
    result = service.diagnose({"paths": [str(tmp_path / "smi.csv")]})
    assert result["findings"] == []
    (gpu,) = result["run"]["metrics"][0]["gpus"]
    assert gpu["figures"]["utilization"]["mean"] == pytest.approx(0.93 * 40 / 41)
    assert gpu["figures"]["sm_clock_hz"]["num"] == 41
    notes = {note["code"]: note["numbers"] for note in result["run"]["notes"]}
    assert notes["metrics_ends"] == {"num": 60}


def test_slow_steps_are_told_by_throughput_where_no_times_are_printed(tmp_path):
    speeds = [100] * 4 + [50] + [100] * 4 + [50] + [100] * 4 + [50] + [100] * 5
    lines = [
        f"[rank0]:2026-03-01 10:00:{i:02d},000 - root - INFO - step: {i:2d}  loss: 9.0  "
        f"memory: 42.20GiB(53.27%)  tps: {tps}"
        for i, tps in enumerate([20, *speeds], start=1)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    result = service.diagnose({"paths": [str(tmp_path / "train.log")]})
    (one,) = result["findings"]
    assert (one["code"], one["form"]) == ("slow_steps", "by_rate")
    # three of twenty steps take twice as long: 3 of 23
    assert one["cost_share"] == pytest.approx(3 / 23)
    assert one["action"]["numbers"] == {"every": 5, "first": 6}
    assert one["cost_s"] is None


def test_copies_in_the_way_are_named_by_their_way(tmp_path):
    maker = TraceMaker(0, 1)
    for step in range(3):
        begin = 1000.0 * step
        maker.step(step, begin, 1000)
        maker.copy(begin + 10, 200)
        maker.kernel("gemm", begin + 210, 790, launch=begin + 1)
    maker.write(tmp_path / "rank0.json")
    (one,) = service.diagnose({"paths": [str(tmp_path)]})["findings"]
    assert one["code"] == "copies_exposed"
    assert one["cost_share"] == pytest.approx(0.2)
    assert one["cost_s"] == pytest.approx(200e-6)
    assert one["action"]["code"] == "copies_to_device"


def test_a_host_that_is_away_is_no_host_that_launches_slowly(tmp_path):
    maker = TraceMaker(0, 1)
    for step in range(3):
        begin = 10_000.0 * step
        maker.step(step, begin, 10_000)
        for i in range(20):
            maker.kernel("gemm", begin + 10 + 300 * i, 300, launch=begin + 1 + i)
        maker.kernel("gemm", begin + 9000, 900, launch=begin + 8990)
    maker.write(tmp_path / "rank0.json")
    (one,) = service.diagnose({"paths": [str(tmp_path)]})["findings"]
    assert (one["code"], one["form"]) == ("host_bound", "away")
    assert one["action"]["code"] == "look_at_host"
    assert one["numbers"]["longest_s"] == pytest.approx(3e-3, rel=0.01)


def test_timers_of_a_log_tell_of_data_loading(tmp_path):
    lines = [
        f" iteration {i:8d}/ 20 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0 |\n"
        f"time (ms) | forward-compute: 300.00 | backward-compute: 500.00 | batch-generator: 120.00"
        for i in range(1, 21)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    result = service.diagnose({"paths": [str(tmp_path / "train.log")]})
    assert result["run"]["logs"][0]["timers_s"]["backward-compute"] == pytest.approx(0.5)
    (one,) = result["findings"]
    assert (one["code"], one["form"]) == ("data_loading", "by_log")
    assert one["cost_share"] == pytest.approx(0.12)
    assert one["cost_s"] == pytest.approx(0.12)


def test_settings_of_a_log_tell_of_too_few_micro_batches(tmp_path):
    head = (
        "using world size: 16, data-parallel-size: 1, tensor-model-parallel size: 4, "
        "pipeline-model-parallel size: 4\n"
        "  global_batch_size ............................... {batch}\n"
        "  micro_batch_size ................................ 1\n"
        "setting number of micro-batches to constant {batch}\n"
    )
    step = " iteration {i:8d}/ 20 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0 |"
    lines = [step.format(i=i) for i in range(1, 21)]
    for batch, share in ((4, 3 / 7), (64, None)):
        (tmp_path / "train.log").write_text(head.format(batch=batch) + "\n".join(lines) + "\n")
        findings = service.diagnose({"paths": [str(tmp_path / "train.log")]})["findings"]
        if share is None:
            assert findings == []
            continue
        (one,) = findings
        assert (one["code"], one["form"]) == ("few_micro_batches", "by_log")
        assert one["cost_share"] == pytest.approx(share)  # (pp - 1) / (m + pp - 1)
        assert one["cost_s"] == pytest.approx(share)
        # a bubble of less than a tenth takes more than 27 micro-batches on four stages
        assert one["action"]["numbers"] == {"wanted": 28}


@pytest.mark.parametrize(
    ("before", "after", "en", "zh"),
    [
        ("full", "none", "set --x to none (now full)", "将 --x 由 full 改为 none"),
        ("", "local", "set --x to local", "将 --x 设为 local"),
        (None, "8", "add --x 8", "加上 --x 8"),
        (None, "", "add --x", "加上 --x"),
        ("", "", "add --x", "加上 --x"),
        ("full", None, "take out --x full", "去掉 --x full"),
        (4, "+", "raise --x", "调大 --x"),
        ("", "?", "look at --x", "调整 --x"),
    ],
)
def test_settings_read_as_what_to_do(before, after, en, zh):
    change = {"field": "x", "option": "--x", "before": before, "after": after}
    found = Finding(
        code="host_bound",
        cost_share=0.1,
        numbers=dict.fromkeys(
            ("waiting_fraction", "late_fraction", "num_kernels", "kernel_s", "per_kernel_s"), 0.1
        ),
        action=Action(code="fewer_launches"),
        gain=None,
        confidence="high",
        reason="launches_measured",
    )
    result = finding_json(found)
    result["action"]["changes"] = [change]
    assert finding_words(result, "en")["next"].endswith(en)
    assert finding_words(result, "zh")["next"].endswith(zh)


def test_micro_batches_are_no_global_batch(tmp_path):
    # 6 micro-batches of one sequence on 2 replicas are a global batch of 12
    lines = ["using world size: 4, data-parallel-size: 2, tensor-model-parallel size: 1, "]
    lines[0] += "pipeline-model-parallel size: 2"
    lines += [" micro_batch_size ................. 1", " global_batch_size ................ 4"]
    lines += ["setting number of micro-batches to constant 2"]
    lines += [
        f" iteration {i}/ 10 | elapsed time per iteration (ms): 1000.0 | global batch size: 4 |"
        for i in range(1, 11)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    (one,) = service.diagnose({"paths": [str(tmp_path / "train.log")]})["findings"]
    (change,) = one["action"]["changes"]
    wanted = one["action"]["numbers"]["wanted"]
    assert (change["option"], change["before"]) == ("--global-batch-size", 4)
    assert change["after"] == 2 * wanted
    assert one["action"]["code"] == "more_sequences"
