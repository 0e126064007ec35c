"""Tables of runs: what is read, what is skipped and why, and the figures that come out."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshplan.app.calibration import calibrate_profile
from meshplan.app.validation import validate
from meshplan.errors import UserError
from meshplan.space.plan import Framework, Recompute, Schedule, Split
from meshplan.text import has
from meshplan.validate import recipes
from meshplan.validate.assume import assumptions_of, listed_assumptions
from meshplan.validate.metrics import errors, spearman, sweeps
from meshplan.validate.predict import predict
from meshplan.validate.recipes import with_recipe
from meshplan.validate.rows import has_full_layout, read_case
from meshplan.validate.table import Skip

MODEL = {
    "model_key": "small",
    "layers": "24",
    "hidden": "2048",
    "ffn_hidden": "8192",
    "heads": "16",
    "kv_heads": "16",
    "vocab": "50304",
    "gated_mlp": "False",
    "tied_embeddings": "True",
    "norm": "LayerNorm",
    "pos_emb": "learned",
}
ROW = {
    "row_id": "1",
    "source_id": "made",
    "gpu": "A100-SXM-80GB",
    "num_gpus": "8",
    "model_key": "small",
    "seq_len": "2048",
    "global_batch": "64",
    "micro_batch": "2",
    "tp": "2",
    "pp": "2",
    "step_time_s": "2.5",
    "sweep_id": "",
}
MODELS = {"small": MODEL}
LAYOUT = "transformer-impl=x;pipeline-model-parallel-layout="


def test_blanks_take_assumptions_that_are_written_down():
    case = read_case(ROW, MODELS)
    assert case.plan.framework is Framework.MEGATRON
    assert case.plan.dp == 2
    assert case.plan.num_micro_batches == 16
    assert case.plan.schedule is Schedule.ONE_F_ONE_B
    assert case.plan.recompute is Recompute.NONE
    assert case.scenario.job.precision == "bf16"
    assumed = assumptions_of("made")
    assert all(assumed.reasons[name] for name in assumed.values)


def test_throughput_is_compared_as_throughput():
    row = ROW | {"step_time_s": "", "tokens_per_s_per_gpu": "4096"}
    case = read_case(row, MODELS)
    assert case.target == "tokens_per_s_per_gpu"
    assert case.measured_step_s() == pytest.approx(2048 * 64 / 8 / 4096)
    assert case.predicted(case.measured_step_s()) == pytest.approx(4096)


def test_memory_of_zero_was_not_measured():
    assert read_case(ROW | {"peak_mem_gib": "0"}, MODELS).measured_bytes is None


def test_recompute_and_interleaving_are_read():
    case = read_case(
        ROW | {"recompute": "selective", "recompute_detail": "[core_attn]", "vpp": "2"}, MODELS
    )
    assert case.plan.recompute is Recompute.CORE_ATTENTION
    assert case.plan.schedule is Schedule.INTERLEAVED
    assert case.plan.vpp == 2


def test_layers_that_do_not_divide_are_dealt_with_the_ends():
    models = {"small": MODEL | {"layers": "22"}}
    case = read_case(ROW | {"pp": "4", "tp": "1", "micro_batch": "1"}, models)
    assert case.plan.split is Split.BALANCED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"consistency": "MISMATCH"}, "contradicts_itself"),
        ({"tp": "3"}, "degrees_do_not_divide"),
        ({"micro_batch": "5"}, "batch_does_not_divide"),
        ({"gpu": "no such device"}, "unknown_device"),
        ({"model_key": "absent"}, "no_architecture"),
        ({"num_gpus": "1,024"}, "not_a_number"),
        ({"micro_batch": "8-16"}, "not_a_number"),
        ({"micro_batch": "2.5"}, "not_a_number"),
        ({"step_time_s": "3.2 s"}, "not_a_number"),
        ({"gpus_per_node": "inf"}, "senseless_number"),
        ({"num_gpus": "nan"}, "senseless_number"),
        ({"dp_shard": "-1"}, "senseless_number"),
        ({"step_time_s": "-1"}, "senseless_number"),
        ({"step_time_s": "1e-300"}, "senseless_number"),
        ({"global_batch": "1e12"}, "senseless_number"),
        ({"layers": "1e8"}, "senseless_number"),
        ({"hidden": "15"}, "senseless_number"),
        ({"mtp_layers": "9e8"}, "senseless_number"),
        ({"other_flags": "transformer-impl=x;mtp-num-layers=900000000"}, "senseless_number"),
        ({"other_flags": f"{LAYOUT}t*1000000000"}, "senseless_number"),
        ({"other_flags": f"{LAYOUT}(t|)*{'9' * 5000}"}, "senseless_number"),
        ({"other_flags": LAYOUT + "(tt|)*9999" * 500}, "senseless_number"),
    ],
)
def test_what_cannot_be_modelled_is_skipped_with_its_reason(change, reason):
    with pytest.raises(Skip) as caught:
        read_case(ROW | change, MODELS)
    assert caught.value.reason == reason


# Megatron-Bridge r0.3.0, scripts/performance/configs/llama/llama3_workload_base_configs.py:
# LLAMA3_70B_PRETRAIN_CONFIG_GB300_NVFP4_V2 has pp 4, vpp 5 and micro-batch 1
BRIDGE = ROW | {
    "source_id": "megatron-bridge-perf-summary",
    "framework_version": "NeMo container 26.02.01",
    "gpu": "GB300",
    "model_key": "llama3-70b",
    "precision": "NVFP4",
    "num_gpus": "64",
    "global_batch": "256",
    "micro_batch": "1",
    "tp": "1",
    "pp": "4",
    "vpp": "5",
    "cp": "1",
    "fsdp": "0",
}


def release_of(row):
    return assumptions_of(row["source_id"], row)


def test_a_row_that_contradicts_the_recipe_of_its_release_is_skipped():
    assert with_recipe(BRIDGE, release_of(BRIDGE)).items() >= BRIDGE.items()
    for change in ({"pp": "1", "vpp": ""}, {"micro_batch": "2"}, {"fsdp": "64"}):
        row = BRIDGE | change
        with pytest.raises(Skip, match="contradicts_its_recipe"):
            with_recipe(row, release_of(row))


def test_a_row_that_contradicts_its_recipe_can_be_read_as_printed():
    """What leaving it out hides is counted on the page about accuracy."""
    row, models = BRIDGE | {"pp": "1", "vpp": "", "precision": "BF16"}, {"llama3-70b": MODEL}
    with pytest.raises(Skip, match="contradicts_its_recipe"):
        read_case(row, models)
    assert read_case(row, models, as_printed=True).plan.pp == 1


@pytest.mark.parametrize(
    "change",
    [
        {"framework_version": "NeMo container 25.09"},  # holds a candidate of 0.1.0
        {"global_batch": "512"},  # another job
        {"num_gpus": "128"},
        {"gpu": "A100-SXM-80GB"},
        {"source_id": "made"},
        {"other_inferred": "recipe=ANY@r0.3.0"},  # the table says that it is joined
    ],
)
def test_only_the_recipe_of_the_same_job_and_release_counts(change):
    row = BRIDGE | {"micro_batch": "2"} | change
    assert with_recipe(row, release_of(row)) == row


def test_blanks_take_the_recipe_of_the_release():
    """NeMo launcher at a4184ccc: conf/training/nemotron/nemotron_22b.yaml has vpp 10."""
    row = ROW | {
        "source_id": "nvidia-nemo-megatron",
        "source_ref": "NVIDIA/NeMo-Framework-Launcher@a4184ccc:examples/README.md",
        "gpu": "H100-SXM-80GB",
        "model_key": "nemotron-22b",
        "precision": "FP8",
        "num_gpus": "16",
        "global_batch": "32",
        "micro_batch": "",
        "tp": "2",
        "pp": "4",
    }
    filled = with_recipe(row, release_of(row))
    assert (filled["vpp"], filled["micro_batch"]) == ("10", "1")
    bridge = BRIDGE | {"precision": "FP8", "pp": "1", "vpp": "", "micro_batch": "2", "fsdp": "64"}
    with_offload = with_recipe(bridge, release_of(bridge))["other_inferred"]
    assert with_offload == "cpu_offloading_num_layers=20"


def test_recompute_of_recipes_is_read():
    row = ROW | {"other_inferred": "recompute_num_layers=5"}
    plan = read_case(row, MODELS).plan
    assert (plan.recompute, plan.recompute_layers) == (Recompute.FULL, 5)
    row = ROW | {"other_inferred": "recompute_modules=[layernorm moe_act]"}
    assert read_case(row, MODELS).plan.recompute == Recompute.NORM | Recompute.MLP_ACTIVATION


def test_assumptions_for_some_rows_are_listed_too():
    found = list(listed_assumptions("bigscience"))
    always = {entry["name"]: entry["value"] for entry in found if not entry["when"]}
    assert always["precision"] == "fp16"
    some = [entry for entry in found if entry["when"] == {"notes": "Rebalancing layers"}]
    assert {entry["name"]: entry["value"] for entry in some}["precision"] == "bf16"
    assert all(entry["reason"] for entry in found)
    own = [
        e
        for e in listed_assumptions("bigscience", ["deepseek-v3"])
        if e["when"] == {"model_key": "deepseek-v3"}
    ]
    assert {e["name"]: e["value"] for e in own} == {"route_groups": 8, "route_top_groups": 4}


def test_every_reason_has_a_name():
    text = "".join(path.read_text() for path in Path(recipes.__file__).parent.glob("*.py"))
    reasons = set(re.findall(r'Skip\("(\w+)"\)', text)) | {"no_full_layout"}
    assert len(reasons) > 10
    assert [reason for reason in sorted(reasons) if not has(f"skipped.{reason}", "zh")] == []


def test_full_layout():
    assert has_full_layout(ROW, MODELS)
    assert not has_full_layout(ROW | {"tp": ""}, MODELS)
    assert not has_full_layout(ROW | {"step_time_s": ""}, MODELS)


def run(runs, models, sources=None):
    """What ``validate`` says of two tables."""
    return validate({"runs": str(runs), "models": str(models), "sources": sources})


def write(path, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_table_of_ones_own_says_its_framework():
    own = ROW | {"source_id": "mine", "zero_stage": "", "fsdp": ""}
    names = {
        "torchtitan": "TORCHTITAN",
        "Megatron-LM": "MEGATRON",
        "": "MEGATRON",
        "FSDP2": "ACCELERATE",
    }
    for text, name in names.items():
        assert read_case(own | {"framework": text}, MODELS).plan.framework.name == name
    # known sources are read as their entries say
    known = read_case(ROW | {"source_id": "aleph-alpha-layouts", "framework": "nanotron"}, MODELS)
    assert known.plan.framework is Framework.MEGATRON


def test_rows_with_sizes_of_their_own_need_no_table_of_models(tmp_path):
    sizes = {k: v for k, v in MODEL.items() if k in ("layers", "hidden", "heads")}
    inline = {k: v for k, v in ROW.items() if k != "model_key"} | sizes | {"row_id": "1"}
    inline |= {"tp": "1", "pp": "1", "step_time_s": "2"}
    runs = write(tmp_path / "runs.csv", [inline])
    assert validate({"runs": str(runs)})["groups"][0]["num_predicted"] == 1
    calibrated = calibrate_profile({"runs": [str(runs)], "keep_far": True})
    assert [one["row_id"] for one in calibrated["runs"]] == ["1"]
    named = write(tmp_path / "named.csv", [inline | {"model_key": MODEL["model_key"]}])
    asked = ((validate, str(named)), (calibrate_profile, [str(named)]))
    for ask, files in asked:
        with pytest.raises(UserError) as caught:
            ask({"runs": files})
        assert [(p.code, p.where) for p in caught.value.problems] == [
            ("table_without_models", "--models")
        ]


def test_the_document(tmp_path):
    layouts = [("1", "1"), ("2", "1"), ("1", "2"), ("2", "2"), ("4", "1")]
    rows = [
        ROW | {"row_id": str(i), "tp": tp, "pp": pp, "sweep_id": "s", "step_time_s": str(2 + i)}
        for i, (tp, pp) in enumerate(layouts)
    ]
    rows.append(ROW | {"row_id": "9", "tp": "3"})
    rows.append(ROW | {"row_id": "10", "tp": ""})
    runs = write(tmp_path / "runs.csv", rows)
    models = write(tmp_path / "models.csv", [MODEL])
    result = run(runs, models)
    group = result["groups"][0]
    assert group["source_id"] == "made"
    assert group["target"] == "time"
    assert group["num_rows"] == 6
    assert group["num_predicted"] == 5
    assert group["mape"] >= abs(group["bias"])
    sweep = result["sweeps"][0]
    assert sweep["num_layouts"] == 5
    assert sweep["regret"] >= 0
    assert sweep["regret_fitting"] >= 0
    assert -1 <= sweep["spearman"] <= 1
    assert result["skipped"] == {"degrees_do_not_divide": 1, "no_full_layout": 1}
    assert result["feasibility"] == []
    assert any(a["name"] == "precision" and a["reason"] for a in result["assumptions"])


def test_a_layout_that_is_called_too_large_is_passed_over_only_by_a_search_that_minds_memory():
    """Of three layouts the fastest runs in 1 s, the next in 1.5 s."""
    rows = [
        ROW | {"row_id": tp, "tp": tp, "pp": "1", "sweep_id": "s", "step_time_s": seconds}
        for tp, seconds in (("1", "1.0"), ("2", "1.5"), ("4", "2.0"))
    ]
    made = predict([read_case(row, MODELS) for row in rows])

    def judged(*fitting):
        return sweeps(
            [
                replace(one, high_s=float(place), called_fitting=fits)
                for place, (one, fits) in enumerate(zip(made, fitting, strict=True))
            ]
        )[0]

    for fitting, regret in (((1, 1, 1), 0.0), ((0, 1, 1), 0.5), ((0, 0, 1), 1.0), ((0, 0, 0), 0.0)):
        sweep = judged(*map(bool, fitting))
        assert sweep["regret"] == 0
        assert sweep["regret_fitting"] == pytest.approx(regret)


def test_every_row_is_accounted_for(tmp_path):
    """Predicted, failed, or skipped with a reason: nothing else happens to a row."""
    rows = [
        ROW,
        ROW | {"peak_mem_gib": "20"},
        ROW | {"tp": "3", "peak_mem_gib": "20"},
        ROW | {"step_time_s": "n/a"},
        ROW | {"step_time_s": "0"},
        ROW | {"step_time_s": "", "tflops_per_gpu": "100"},
        ROW | {"step_time_s": "n/a", "peak_mem_gib": "20"},
        ROW | {"step_time_s": "", "oom": "true"},
        ROW | {"step_time_s": "", "oom": "False"},
        ROW | {"source_id": "other", "gpu": "abacus"},
        ROW | {"consistency": "mismatch"},
    ]
    result = run(write(tmp_path / "runs.csv", rows), write(tmp_path / "models.csv", [MODEL]))
    by_key = {(g["source_id"], g["target"]): g for g in result["groups"]}
    time, memory = by_key["made", "time"], by_key["made", "memory"]
    assert (time["num_rows"], time["num_predicted"]) == (8, 2)
    assert (memory["num_rows"], memory["num_predicted"]) == (3, 2)
    assert by_key["other", "time"]["num_predicted"] == 0
    assert result["feasibility"][0]["num_oom"] == 1
    assert result["skipped"] == {
        "degrees_do_not_divide": 1,
        "no_time": 4,
        "no_full_layout": 1,
        "unknown_device": 1,
        "contradicts_itself": 1,
    }
    assert {"source_id": "other", "reason": "unknown_device", "num_rows": 1} in (
        result["skipped_by_source"]
    )
    assert len(rows) == 2 + 1 + sum(result["skipped"].values())
    assert 0 <= memory["coverage"] <= 1


def test_tables_as_other_programs_write_them(tmp_path):
    """A byte-order mark, line ends of Windows, cells too many or too few, a row twice."""
    rows = [ROW, ROW, ROW | {"row_id": "2", "tp": "1"}]
    plain = write(tmp_path / "plain.csv", rows)
    text = plain.read_text("utf-8").splitlines()
    models = write(tmp_path / "models.csv", [MODEL])
    odd = tmp_path / "odd.csv"
    ends = "\r\n".join([*text[:-1], text[-1] + ",more,cells", "3,made", ""])
    odd.write_bytes(b"\xef\xbb\xbf" + ends.encode())
    found = run(odd, models)
    assert found["groups"] == run(plain, models)["groups"]
    assert found["groups"][0]["num_rows"] == 3
    assert found["skipped"] == {"no_full_layout": 1}


def test_mistakes_with_tables(tmp_path):
    models = write(tmp_path / "models.csv", [MODEL])
    with pytest.raises(UserError, match="file_missing"):
        run(tmp_path / "absent.csv", models)
    with pytest.raises(UserError, match="table_columns"):
        run(write(tmp_path / "short.csv", [{"a": "1"}]), models)
    empty = tmp_path / "empty.csv"
    empty.write_text(",".join(ROW) + "\n", "utf-8")
    with pytest.raises(UserError, match="table_empty"):
        run(empty, models)
    runs = write(tmp_path / "runs.csv", [ROW])
    with pytest.raises(UserError, match="unknown_source"):
        run(runs, models, ["other"])


def test_summary_of_errors():
    found = errors([0.1, -0.3, 0.2])
    assert found["mape"] == pytest.approx(0.2)
    assert found["median_ape"] == pytest.approx(0.2)
    assert found["bias"] == pytest.approx(0.0)
    assert errors([])["mape"] is None


def test_rank_correlation_with_ties():
    """Ties take the mean rank: scipy.stats.spearmanr gives the same."""
    stats = pytest.importorskip("scipy.stats")
    left, right = [1, 2, 2, 5, 3], [2, 1, 4, 4, 3]
    assert spearman(left, right) == pytest.approx(stats.spearmanr(left, right).statistic)
    assert spearman([1, 2, 3], [1, 2, 3]) == pytest.approx(1.0)
    assert spearman([1, 1], [1, 2]) is None


@pytest.mark.parametrize(
    "change", [{"tp": "8", "pp": "2"}, {"tp": "2", "pp": "4", "ep": "4"}, {"tp": "1", "ep": "16"}]
)
def test_a_layout_of_several_machines_does_not_say_how_many(change):
    """Tests of Megatron-LM run on one node of eight unless their release recipe says otherwise."""
    row = ROW | {"source_id": "megatron-ci-golden", "num_gpus": "", "pp": "1"}
    assert read_case(row | {"tp": "2"}, MODELS).plan.dp == 4
    with pytest.raises(Skip, match="devices_not_stated"):
        read_case(row | change, MODELS)


def test_calibrate_says_which_rows_it_leaves_out(tmp_path):
    sizes = {k: v for k, v in MODEL.items() if k in ("layers", "hidden", "heads")}
    inline = {k: v for k, v in ROW.items() if k != "model_key"} | sizes | {"tp": "1", "pp": "1"}
    cells = ("2", "1,024", "-3", "nan")
    rows = [inline | {"row_id": str(i), "step_time_s": cell} for i, cell in enumerate(cells)]
    rows.append(inline | {"row_id": "4", "step_time_s": "", "oom": "True"})
    rows = [{"oom": "", **row} for row in rows]
    path = write(tmp_path / "runs.csv", rows)
    found = calibrate_profile({"runs": [str(path)], "keep_far": True})
    left_out = {one["reason"]: one["num_rows"] for one in found["skipped_by_source"]}
    assert left_out == {"not_a_number": 1, "senseless_number": 2, "not_timed": 1}
    assert len(found["runs"]) + sum(left_out.values()) == len(rows)
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match="table_empty"):
        calibrate_profile({"runs": [str(path)]})
