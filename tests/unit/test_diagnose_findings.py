"""Findings: what is said, what is given, and each cause on runs that are small and known."""

import json
import re
from pathlib import Path

import pytest
import yaml

import planted_path  # noqa: F401
from diagnose_traces import TraceMaker
from meshplan.app import service
from meshplan.app.cli.main import run
from meshplan.diagnose import findings
from meshplan.diagnose.findings import KINDS, Context, diagnose
from meshplan.diagnose.findings.thresholds import preset
from meshplan.diagnose.records import RunMeasures
from meshplan.errors import UserError
from meshplan.text import LANGUAGES, has
from planted.faults import Base, Fault, build, played
from planted.judge import diagnosis_of
from planted.kineto_file import write_kineto
from planted.sample import Case, make
from planted.write import Seen

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(findings.__file__).parent
BASE = Base(
    name="small",
    model="llama-2-13b",
    layers=3,
    cluster="8xH100",
    node=4,
    framework="megatron",
    plan={"tp": 4, "zero": 1},
    micro_batches=8,
)


def case(*faults, base=BASE, given="cluster", dropped=""):
    return Case(base=base, faults=faults, seed=3, given=given, dropped=dropped, as_file=False)


def found(*faults, **options):
    return {f.code: f for f in diagnosis_of(make(case(*faults, **options))).findings}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Kineto traces of a run whose tensor-parallel groups span two nodes."""
    folder = tmp_path_factory.mktemp("traces")
    built = build(BASE, (Fault(kind="tp_across_nodes"),), seed=3)
    one = played(built)
    for rank in range(8):
        write_kineto(
            one, rank, Seen(gpus_per_node=2, memory_bytes=8e10, reserved_bytes=6e10), folder
        )
    return folder


# -- words and data ------------------------------------------------------------------------------


def codes(pattern):
    text = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    return set(re.findall(pattern, text))


ONLY_LEFT_OPEN = {"exposed_unknown"}
WAYS = ("pageable", "to_device", "to_host", "on_device", "memset", "other")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_code_has_a_sentence(lang):
    wanted = {f"diagnose.check.{kind}" for kind in KINDS}
    wanted |= {f"diagnose.look.{kind}" for kind in KINDS}
    wanted |= {f"diagnose.finding.{kind}" for kind in KINDS if kind not in ONLY_LEFT_OPEN}
    wanted |= {
        f"diagnose.finding.{code}.{form}"
        for code, form in (
            ("few_micro_batches", "schedule_only"), ("few_micro_batches", "by_log"),
            ("slow_steps", "by_rate"),
            ("host_bound", "away"), ("data_loading", "by_log"), ("straggler", "more_work"),
            ("gradients_exposed", "slow"),
        )
    }  # fmt: skip
    wanted |= {
        f"diagnose.{part}" for way in WAYS for part in (f"way.{way}", f"action.copies_{way}")
    }
    details = codes(r'"((?:idle|late)_(?:traffic|most|gaps|longest)|bus|one_rank)"')
    details |= {f"idle_{part}" for part in ("host", "data", "held", "graph", "synced")}
    wanted |= {f"diagnose.detail.{code}" for code in details}
    wanted |= {f"diagnose.action.{code}" for code in codes(r'Action\(\s*code="(\w+)"')}
    wanted |= {"diagnose.action.no_recompute", "diagnose.action.more_sequences"}
    wanted |= {"diagnose.open.device_not_listed", "diagnose.reason.stacks_recorded"}
    wanted |= {f"diagnose.open.{code}" for code in codes(r'Open\("(\w+)"\)')}
    wanted |= {f"diagnose.reason.{code}" for code in codes(r'\breason="(\w+)"')}
    wanted |= {f"diagnose.no_cost.{code}" for code in codes(r'cost_reason="(\w+)"')}
    wanted |= {f"diagnose.reason.{code}" for code in codes(r'return "(same_\w+|more_\w+)"')}
    assert [code for code in sorted(wanted) if not has(code, lang)] == []


def test_thresholds_are_data_with_reasons():
    table = preset("findings.yaml")
    assert all(
        entry["reason"] and isinstance(entry["value"], int | float) for entry in table.values()
    )
    # every one is used, and every one that is used stands there
    texts = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    assert [name for name in table if f'"{name}"' not in texts] == []
    assert codes(r'threshold\(\s*"(\w+)"') <= set(table)


def test_options_are_those_that_emit_writes_or_check_reads():
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("emit", "check")
        for path in (ROOT / "src" / "meshplan" / folder).glob("*.py")
    )
    options = yaml.safe_load((FOLDER.parent / "presets" / "options.yaml").read_text())
    fields = ("tp", "dp_replicate", "num_micro_batches", "recompute")
    lost = []
    for framework, table in options.items():
        assert table["source"]
        for field in fields:
            entry = table.get(field, "")
            option = entry["option"] if isinstance(entry, dict) else entry
            name = str(option).lstrip("-").split(".")[-1].split(" ")[0]
            if name and name.removeprefix("parallelism_config_") not in sources:
                lost.append((framework, field, name))
    assert lost == []


# -- causes --------------------------------------------------------------------------------------


def test_nothing_was_given():
    outcome = diagnose(RunMeasures(ranks=()), Context())
    assert outcome.findings == ()
    assert {check.state for check in outcome.checks} <= {"absent", "open"}


def test_a_healthy_run_has_no_finding():
    assert found() == {}


def test_tp_across_nodes_is_priced_by_the_cost_model_where_the_plan_is_known():
    by_plan = found(Fault(kind="tp_across_nodes"), given="plan")["tp_across_nodes"]
    assert by_plan.gain.basis == "cost_model"
    (change,) = by_plan.action.changes
    assert (change.option, change.before, change.after) == ("--tensor-model-parallel-size", 4, 2)
    by_trace = found(Fault(kind="tp_across_nodes"))["tp_across_nodes"]
    assert by_trace.gain.basis == "trace"
    assert by_trace.gain.share == by_trace.cost_share


def test_a_slow_device_is_named():
    one = found(Fault(kind="straggler", size=1.3, ranks=(5,)))["straggler"]
    assert one.ranks == (5,)
    assert one.numbers["ratio"] == pytest.approx(1.3, rel=0.05)
    assert {place.rank for place in one.places} == {5}


def test_a_slow_card_is_told_only_where_the_network_is_known():
    slow = Fault(kind="slow_nic", size=6.0, ranks=(0, 1, 2, 3))
    one = found(slow)["slow_nic"]
    assert one.numbers["reached_fraction"] == pytest.approx(1 / 6, rel=0.2)
    unknown = diagnosis_of(make(case(slow, given="nothing")))
    states = {check.code: (check.state, check.reason) for check in unknown.checks}
    assert states["slow_nic"] == ("open", "network_unknown")


def test_stages_typed_by_hand():
    outcome = diagnose(RunMeasures(ranks=(), stage_times_s=(1.0, 1.1, 1.0, 1.4)))
    (one,) = outcome.findings
    assert one.code == "stages_unbalanced"
    assert one.numbers["stage"] == 3
    # the slowest against the mean, over the slowest
    assert one.cost_share == pytest.approx((1.4 - 1.125) / 1.4)
    even = diagnose(RunMeasures(ranks=(), stage_times_s=(1.0, 1.01, 1.0)))
    assert even.findings == ()


def test_costs_do_not_exceed_the_step():
    many = (
        Fault(kind="data_loading", size=0.4),
        Fault(kind="memory_pressure", size=0.4),
        Fault(kind="straggler", size=1.5, ranks=(2,)),
    )
    shares = [f.cost_share for f in found(*many).values()]
    assert len(shares) == 3
    assert all(0 < share < 1 for share in shares)
    assert sum(shares) < 1


def test_findings_come_costliest_first():
    outcome = diagnosis_of(
        make(
            case(
                Fault(kind="data_loading", size=0.5), Fault(kind="straggler", size=1.2, ranks=(1,))
            )
        )
    )
    shares = [f.cost_share for f in outcome.findings]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("dropped", ["purposes", "ranks", "rank"])
def test_lost_metadata_lose_no_straggler(dropped):
    slow = Fault(kind="straggler", size=1.3, ranks=(5,))
    assert "straggler" in found(slow, dropped=dropped)


def test_a_hot_gpu_is_named_by_metrics_alone(tmp_path):
    header = "timestamp, index, utilization.gpu [%], clocks_event_reasons.active"
    rows = [header]
    for second in range(20):
        for gpu in range(4):
            mask = "0x0000000000000020" if gpu == 2 and second % 2 else "0x0000000000000000"
            rows.append(f"2026/03/01 10:00:{second:02d}.000, {gpu}, 97 %, {mask}")
    (tmp_path / "smi.csv").write_text("\n".join(rows) + "\n")
    result = service.diagnose({"paths": [str(tmp_path / "smi.csv")]})
    (one,) = result["findings"]
    assert (one["code"], one["numbers"]["gpu"]) == ("gpu_throttled", "2")
    assert one["numbers"]["share"] == pytest.approx(0.5)


def test_a_gpu_with_a_low_clock_is_named_by_metrics_alone(tmp_path):
    rows = ["index, utilization.gpu [%], clocks.current.sm [MHz]"]
    for _ in range(5):
        # the last one is at rest and takes no part in the run
        rows += ["0, 98 %, 1755 MHz", "1, 97 %, 1155 MHz", "2, 98 %, 1710 MHz", "3, 0 %, 345 MHz"]
    (tmp_path / "smi.csv").write_text("\n".join(rows) + "\n")
    result = service.diagnose({"paths": [str(tmp_path / "smi.csv")]})
    (one,) = result["findings"]
    assert (one["code"], one["numbers"]["gpu"]) == ("gpu_slow_clock", "1")
    assert one["numbers"]["ratio"] == pytest.approx(1155 / 1732.5)
    assert result["rule_of_thumb"]["utilization"] == pytest.approx(0.97)
    (tmp_path / "smi.csv").write_text("\n".join(rows).replace("1155", "1695") + "\n")
    assert not service.diagnose({"paths": [str(tmp_path / "smi.csv")]})["findings"]
    # a trace of one rank beside it, which has no peers to be compared with
    (tmp_path / "smi.csv").write_text("\n".join(rows) + "\n")
    maker = TraceMaker(0, 4)
    maker.kernel("gemm", 0, 1000.0)
    maker.write(tmp_path / "rank0.json")
    (one,) = service.diagnose({"paths": [str(tmp_path)]})["findings"]
    assert one["code"] == "gpu_slow_clock"


def test_a_slow_clock_costs_what_all_wait_for(tmp_path, capsys):
    rows = ["index, utilization.gpu [%], clocks.current.sm [MHz]"]
    rows += ["0, 98 %, 1755 MHz", "1, 97 %, 1155 MHz"] * 3
    (tmp_path / "smi.csv").write_text("\n".join(rows) + "\n")
    assert run(["diagnose", str(tmp_path / "smi.csv")]) == 0
    said = capsys.readouterr().out
    assert "34.2% of the step" in said  # 1 - 1155 / 1755
    assert "2 GPUs; utilisation 97% to 98%; clock 1155 to 1755 MHz" in said


def test_few_micro_batches_by_the_plan_where_nothing_was_traced(capsys):
    job = {"seq_len": 1024, "global_batch": 16}
    asked = {"model": "llama-3.1-8b", "cluster": "16xH100", "job": job, "plan": {"pp": 4}}
    (one,) = service.diagnose({**asked, "utilization": "0.5"})["findings"]
    assert (one["code"], one["reason"]) == ("few_micro_batches", "schedule_only")
    assert (one["ranks"], one["places"]) == ([], [])
    words = "--seq-len 1024 --global-batch 16 --plan pp=4 --utilization 0.5"
    assert run(["diagnose", "--model", "llama-3.1-8b", "--cluster", "16xH100", *words.split()]) == 0
    assert "waits for 0%" not in capsys.readouterr().out


def test_stage_times_are_as_many_as_stages():
    job = {"seq_len": 1024, "global_batch": 16}
    asked = {"model": "llama-3.1-8b", "cluster": "16xH100", "job": job, "plan": {"pp": 2}}
    with pytest.raises(UserError) as caught:
        service.diagnose({**asked, "stage_times": "1,1,1,2"})
    (problem,) = caught.value.problems
    assert (problem.code, problem.allowed) == ("diagnose_stage_count", (2,))


def test_neighbours_with_groups_of_their_own_are_one_pipeline(tmp_path):
    for rank in range(4):
        maker = TraceMaker(rank, 8)
        maker.step(1, 0, 10_000.0)
        maker.kernel("gemm", 0, 1000.0)
        for other in (rank - 1, rank + 1):
            if 0 <= other < 4:
                pair, at = tuple(sorted((rank, other))), 2000.0 + 200.0 * (other > rank)
                maker.collective(
                    "send_recv", at, 80.0, ranks=pair, elements=9, group=f"{pair}", purpose="pipe"
                )
        maker.write(tmp_path / f"rank{rank}.json")
    stages = service.diagnose({"paths": [str(tmp_path)]})["run"]["stages"]
    assert [(stage["stage"], stage["ranks"]) for stage in stages] == [(i, [i]) for i in range(4)]


def test_traffic_that_does_not_say_what_it_is_leaves_gradients_open(tmp_path):
    maker = TraceMaker()
    for step in range(3):
        base = 1e6 + 10_000.0 * step
        maker.step(step, base, 10_000.0)
        maker.kernel("gemm", base, 6000.0, launch=base - 50)
        maker.kernel("ncclDevKernel_Generic_1()", base + 6000, 4000.0, stream=20)
    maker.write(tmp_path / "rank0.json")
    checks = service.diagnose({"paths": [str(tmp_path)]})["checks"]
    (one,) = [check for check in checks if check["code"] == "gradients_exposed"]
    assert (one["state"], one["reason"]) == ("open", "collective_unknown")


# -- service and verb ----------------------------------------------------------------------------


def test_the_result_is_json_with_places(traces):
    result = service.diagnose({"paths": [str(traces)], "cluster": "8xH100"})
    again = json.loads(json.dumps(result, allow_nan=False))
    (one,) = [f for f in again["findings"] if f["code"] == "tp_across_nodes"]
    spans = {
        r["rank"]: (r["steps"][0]["start_us"], r["steps"][-1]["end_us"])
        for r in again["run"]["ranks"]
    }
    assert one["places"]
    for place in one["places"]:
        begin, end = spans[place["rank"]]
        assert begin <= place["start_us"] < place["end_us"] <= end
    assert {check["code"] for check in again["checks"]} == set(KINDS)
    assert sum(again["run"]["parts"].values()) == pytest.approx(1.0, abs=0.02)


def test_the_terminal_says_it_in_both_languages(traces, capsys):
    titles = {"en": "tensor parallelism over the network", "zh": "张量并行跨出高速互联域"}
    for lang, words in titles.items():
        assert run(["diagnose", str(traces), "--cluster", "8xH100", "--lang", lang]) == 0
        out, err = capsys.readouterr()
        assert words in out
        assert "--tensor-model-parallel-size" in out
        assert err == ""


def test_strict_is_for_scripts(traces, capsys):
    assert run(["diagnose", str(traces), "--cluster", "8xH100", "--strict"]) == 1
    assert run(["diagnose", "--stage-times", "1,1,1", "--strict"]) == 0
    capsys.readouterr()


def test_the_rule_of_thumb_speaks_where_only_that_is_known(capsys):
    assert run(["diagnose", "--utilization", "60%", "--stage-times", "1,1,1,2"]) == 0
    assert "60%" in capsys.readouterr().out
    result = service.diagnose({"utilization": "0.6", "stage_times": "1,1,1,2"})
    assert [f["code"] for f in result["rule_of_thumb"]["findings"]] == ["stages_uneven"]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({}, "diagnose_nothing_given"),
        ({"stage_times": "1,two"}, "diagnose_bad_number"),
        ({"stage_times": "1,-1"}, "diagnose_bad_number"),
        ({"utilization": "nan"}, "diagnose_bad_number"),
        ({"paths": ["/nowhere/at/all.json"]}, "trace.absent"),
        ({"stage_times": "1,1", "plan": {"tp": 2}}, "diagnose_plan_without_model"),
        ({"allocation": "12.94 GiB"}, "diagnose_plan_missing"),
    ],
)
def test_what_is_wrong_is_said(request_, code):
    with pytest.raises(UserError) as error:
        service.diagnose(request_)
    assert code in [problem.code for problem in error.value.problems]


def test_the_plan_may_be_given_in_three_ways(traces, tmp_path):
    job = {"seq_len": 4096, "global_batch": 16}
    fields = {"tp": 4, "zero": 1}
    base = {"model": "llama-2-13b", "cluster": "8xH100", "job": job}
    direct = service.diagnose({**base, "paths": [str(traces)], "plan": fields})
    assert direct["plan"]["tp"] == 4
    script = service.emit({**base, "to": "megatron", "plan": fields})["files"][0]
    (tmp_path / "train.sh").write_text(script["text"])
    by_script = service.diagnose(
        {"paths": [str(traces)], "config": [str(tmp_path / "train.sh")], "cluster": "8xH100"}
    )
    assert by_script["plan"]["tp"] == 4
    pinned = {**base, "axes": {"tp": [4], "zero": [1]}, "frameworks": ["megatron"]}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(pinned))
    by_file = service.diagnose(
        {"paths": [str(traces)], "plan_file": str(tmp_path / "scenario.yaml")}
    )
    assert by_file["plan"]["tp"] == 4


def test_mean_over_steps_is_what_is_shared(traces):
    result = service.diagnose({"paths": [str(traces)]})
    steps = [s for r in result["run"]["ranks"] for s in r["steps"] if not s["warm_up"]]
    walls = [s["end_us"] - s["start_us"] for s in steps]
    assert result["run"]["step_time_s"] == pytest.approx(sum(walls) / len(walls) / 1e6, rel=0.01)
