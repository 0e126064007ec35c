"""Results: names that stay, parts that add up, and the same answer every time."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest

import meshplan
from meshplan.app import service
from meshplan.app.cli.main import run as command_line
from meshplan.app.encode import to_json
from meshplan.app.request import read_scenario
from meshplan.app.result import flips_json
from meshplan.cost.memory import peak_memory
from meshplan.cost.step import PARTS, step_time
from meshplan.errors import UserError
from meshplan.inputs.load.scenario import load_scenario
from meshplan.search.answer import answer, with_alternatives
from meshplan.search.objective import TIE
from meshplan.search.sensitivity import find_flips
from meshplan.space.plan import PlanGrid
from results import VOLATILE
from space_scenarios import enumerate_plans

SMALL = {
    "model": "llama-3.1-8b",
    "cluster": "16xH100",
    "job": {"seq_len": 8192, "global_batch": 64, "total_tokens": 1e12},
    "axes": {"cp": [1], "micro_batch": [1, 2]},
}
PLAN_NAMES = {
    *("framework", "tp", "sp", "pp", "vpp", "schedule", "cp", "ep", "etp", "dp", "dp_shard"),
    *("dp_replicate", "zero", "micro_batch", "num_micro_batches", "recompute", "cp_comm"),
    *("recompute_layers", "offload", "offload_layers", "split", "stage_layers"),
}
FAMILY = ("framework", "tp", "pp", "cp", "ep", "etp", "dp_replicate")


@pytest.fixture(scope="module")
def planned():
    return service.plan(SMALL)


@pytest.fixture(scope="module")
def hopeless():
    """Nothing fits: 8B without sharding of any kind on four GPUs."""
    axes = {"tp": [1], "pp": [1], "zero": [0], "micro_batch": [1], "offload": ["none"]}
    return service.plan({**SMALL, "cluster": "4xH100", "axes": axes})


def walk(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)
    else:
        yield value


def test_names_that_scripts_rely_on(planned):
    assert set(planned["plans"][0]["plan"]) == PLAN_NAMES
    for entry in planned["plans"]:
        for name in ("step_time_s", "tokens_per_s_per_gpu", "mfu", "mfu_causal", "hfu"):
            assert entry[name] > 0
        for name in ("peak_bytes", "usable_bytes", "verdict", "stages"):
            assert name in entry["memory"]
    for name in ("num_candidates", "num_legal", "num_evaluated", "evaluations_per_s", "elapsed_s"):
        assert planned["searched"][name] > 0
    assert all(isinstance(count, int) for count in planned["rejected"].values())
    assert planned["schema_version"] == "1.1"
    assert planned["meshplan_version"] == meshplan.__version__


def test_every_candidate_is_accounted_for(planned):
    searched = planned["searched"]
    rejected = sum(planned["rejected"].values())
    assert rejected + searched["num_legal"] == searched["num_candidates"]
    verdicts = searched["num_fits"] + searched["num_tight"] + searched["num_oom"]
    assert verdicts == searched["num_legal"]
    assert set(planned["rejected_examples"]) == set(planned["rejected"])


def test_parts_add_up(planned):
    for entry in planned["plans"]:
        assert set(entry["time"]) == set(PARTS)
        assert sum(entry["time"].values()) == pytest.approx(entry["step_time_s"], rel=1e-9)
        assert entry["band"]["low_s"] < entry["step_time_s"] < entry["band"]["high_s"]
        tokens = SMALL["job"]["seq_len"] * SMALL["job"]["global_batch"]
        assert entry["tokens_per_s_per_gpu"] * 16 * entry["step_time_s"] == pytest.approx(tokens)
        steps = SMALL["job"]["total_tokens"] / tokens
        assert entry["days"] == pytest.approx(steps * entry["step_time_s"] / 86400)
        assert entry["gpu_hours"] == pytest.approx(entry["days"] * 24 * 16)
        assert entry["cost_usd"] is None  # no price was given
        plan = entry["plan"]
        assert plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"] == entry["num_gpus"] == 16


def test_memory_of_the_stages_is_the_memory_of_the_plan(planned):
    for entry in planned["plans"]:
        memory = entry["memory"]
        assert len(memory["stages"]) == entry["plan"]["pp"]
        assert max(stage["peak_bytes"] for stage in memory["stages"]) == memory["peak_bytes"]
        for stage in memory["stages"]:
            assert sum(term["bytes"] for term in stage["terms"]) == stage["peak_bytes"]
            assert stage["events"][stage["peak_event"]] == stage["peak_bytes"]


def test_ranks_follow_the_pessimistic_end_and_families_differ(planned):
    highs = [entry["band"]["high_s"] for entry in planned["plans"]]
    for first, second in pairwise(highs):
        assert first <= second * (1.0 + TIE)  # a tie may put the simpler plan first
    families = {
        (*(e["plan"][name] for name in FAMILY), e["plan"]["zero"] == 3) for e in planned["plans"]
    }
    assert len(families) == len(planned["plans"])


def test_same_request_gives_the_same_json(planned):
    again = service.plan(SMALL)
    for result in (again, planned):
        for name in VOLATILE:
            assert result["searched"][name] >= 0
    assert without_times(again) == without_times(planned)


def test_json_holds_finite_numbers_only(planned, hopeless):
    for result in (planned, hopeless, service.explain(SMALL)):
        text = to_json(result)
        assert json.loads(text) == result
        assert all(math.isfinite(v) for v in walk(result) if isinstance(v, float))


def test_estimate_of_a_ranked_plan_gives_its_numbers_bit_for_bit(planned):
    for entry in planned["plans"]:
        alone = service.estimate({**SMALL, "plan": entry["plan"]})["plans"][0]
        skip = ("rank", "num_variants")
        assert {k: v for k, v in alone.items() if k not in skip} == {
            k: v for k, v in entry.items() if k not in skip
        }


def test_evaluation_in_a_grid_equals_evaluation_alone_bit_for_bit():
    scenario = load_scenario(SMALL)
    grid = enumerate_plans(scenario).grid
    some = grid.take(np.arange(0, len(grid), max(1, len(grid) // 40)))
    memory = peak_memory(scenario, some)
    for exact in (False, True):
        time = step_time(scenario, some, exact=exact)
        for i, plan in enumerate(some):
            one = PlanGrid.of([plan])
            assert peak_memory(scenario, one).peak_bytes[0] == memory.peak_bytes[i]
            alone = step_time(scenario, one, exact=exact)
            for name in ("step_time_s", "low_s", "high_s", "mfu", *PARTS):
                assert getattr(alone, name)[0] == getattr(time, name)[i], name


def without_times(result):
    searched = {k: v for k, v in result["searched"].items() if k not in VOLATILE}
    return to_json({**result, "searched": searched})


def test_command_line_and_python_give_what_the_service_gives(planned, capsys):
    options = {"axes": SMALL["axes"], "total_tokens": 1e12}
    ours = meshplan.plan(
        "llama-3.1-8b", cluster="16xH100", seq_len=8192, global_batch=64, **options
    )
    assert without_times(ours) == without_times(planned)
    command = ["plan", "llama-3.1-8b", "--cluster", "16xH100", "--seq-len", "8192"]
    command += ["--global-batch", "64", "--cp", "1", "--micro-batch", "1,2"]
    assert command_line([*command, "--set", "job.total_tokens=1T", "--json"]) == 0
    printed = capsys.readouterr().out
    result = json.loads(printed)
    assert to_json(result) + "\n" == printed
    assert without_times(result) == without_times(planned)


def test_scenario_echo_gives_the_same_answer(planned):
    again = service.plan(planned["scenario"])
    assert again["plans"] == planned["plans"]


def test_nothing_fits_is_an_answer_with_a_way_out(hopeless):
    assert hopeless["plans"] == []
    assert hopeless["closest"]["memory"]["verdict"] != "fits"
    kinds = {remedy["kind"] for remedy in hopeless["remedies"]}
    assert "num_gpus" in kinds and "free_axis" in kinds
    for remedy in hopeless["remedies"]:
        assert remedy["peak_bytes"] <= remedy["usable_bytes"]
        assert remedy["step_time_s"] > 0


def test_estimate_of_what_does_not_fit_says_what_would():
    asked = {**SMALL, "model": "llama-3.1-70b", "cluster": "64xH100"}
    result = service.estimate({**asked, "plan": {"tp": 4, "pp": 4}})
    assert result["plans"][0]["memory"]["verdict"] == "oom"
    assert {"recompute", "tp"} <= {remedy["kind"] for remedy in result["remedies"]}
    recompute = next(r for r in result["remedies"] if r["kind"] == "recompute")
    fixed = service.estimate({**asked, "plan": recompute["plan"]})["plans"][0]
    assert fixed["memory"]["verdict"] == "fits"
    assert fixed["memory"]["peak_bytes"] == recompute["peak_bytes"]
    assert fixed["step_time_s"] == recompute["step_time_s"]


def test_what_is_tight_has_a_way_out_too():
    asked = {**SMALL, "model": "llama-3.1-8b", "cluster": "8xH100", "frameworks": ["torchtitan"]}
    job = {"seq_len": 8448, "global_batch": 64}
    result = service.estimate({**asked, "job": job, "plan": {"zero": 3}})
    assert result["plans"][0]["memory"]["verdict"] == "tight"
    assert "recompute" in {remedy["kind"] for remedy in result["remedies"]}


def test_illegal_plan_is_told_the_legal_degrees():
    with pytest.raises(UserError) as caught:
        service.estimate({**SMALL, "plan": {"tp": 3}})
    codes = {problem.code for problem in caught.value.problems}
    assert codes and all(code.startswith("rule_") for code in codes)
    assert any(1 in p.allowed or 2 in p.allowed for p in caught.value.problems)


def test_all_problems_of_a_plan_come_at_once():
    with pytest.raises(UserError) as caught:
        service.estimate({**SMALL, "plan": {"tpp": 2, "pp": -1, "schedule": "fastest"}})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("task", "framework"),
    [("pretrain", "megatron"), ("lora", "accelerate"), ("qlora", "accelerate")],
)
def test_who_names_no_framework_gets_one_that_can_train_the_job(task, framework):
    asked = {**SMALL, "cluster": "1xH100", "job": {**SMALL["job"], "task": task}}
    found = service.estimate({**asked, "axes": {}, "plan": {"recompute": "full"}})
    assert found["plans"][0]["plan"]["framework"] == framework
    assert {"code": "frameworks", "value": framework} in found["assumptions"]


@pytest.mark.parametrize(
    ("model", "job", "framework"),
    [
        # PEFT finds the linear layers of any dense model
        ("llama-3.1-8b", {}, "accelerate"),
        ("mixtral-8x7b", {"lora_targets": "attention"}, "accelerate"),
        # what its projections are called is not known, and Megatron-Bridge has names of its own
        ("phi-3.5-mini", {"lora_targets": "attention"}, "megatron"),
        # Muon is in Megatron-LM alone
        ("llama-3.1-8b", {"optimizer": "muon"}, "megatron"),
    ],
)
def test_adapters_go_to_a_framework_that_can_launch_them(model, job, framework):
    asked = {**SMALL, "model": model, "job": {**SMALL["job"], "task": "lora", **job}}
    assert read_scenario(asked).frameworks == (framework,)
    named = {**asked, "frameworks": ["deepspeed"]}
    assert read_scenario(named).frameworks == ("deepspeed",)


def test_no_legal_plan_is_bad_input():
    with pytest.raises(UserError) as caught:
        service.plan({**SMALL, "axes": {"tp": [3]}})
    refused, pinned = caught.value.problems
    assert refused.code == "no_legal_plan"
    assert refused.allowed
    assert (pinned.code, pinned.where, pinned.value) == ("pinned_axis", "tp", "3")
    assert set(pinned.allowed) >= {1, 2, 4, 8}


@pytest.mark.parametrize("count", [0, 1, 5])
def test_compare_takes_two_to_four_plans(count):
    with pytest.raises(UserError) as caught:
        service.compare({**SMALL, "plans": [{"tp": 1}] * count})
    assert caught.value.problems[0].code == "bad_plan_count"


@pytest.mark.parametrize("plans", [None, "tp=8", {"tp": 8}, 3])
def test_compare_takes_a_list(plans):
    with pytest.raises(UserError) as caught:
        service.compare({**SMALL, "plans": plans})
    assert caught.value.problems[0].code == "bad_plan_count"


@pytest.mark.parametrize("plan", ["tp=8", [8], 3])
def test_a_plan_is_a_mapping(plan):
    with pytest.raises(UserError) as caught:
        service.estimate({**SMALL, "plan": plan})
    assert caught.value.problems[0].code == "not_a_mapping"


def test_compare_keeps_the_order_and_says_what_differs():
    result = service.compare({**SMALL, "plans": [{"tp": 8}, {"tp": 2}]})
    assert [entry["plan"]["tp"] for entry in result["plans"]] == [8, 2]
    best = result["plans"][result["best"] - 1]
    for entry, difference in zip(result["plans"], result["differences"], strict=True):
        total = best["step_time_s"] + sum(difference.values())
        assert total == pytest.approx(entry["step_time_s"], rel=1e-9)


def test_of_plans_that_do_not_fit_none_is_best():
    request = {**SMALL, "model": "llama-3.1-405b", "plans": [{"tp": 2, "pp": 2}, {"tp": 4}]}
    result = service.compare(request)
    assert [entry["memory"]["verdict"] for entry in result["plans"]] == ["oom", "oom"]
    assert result["best"] is None
    assert set(result["differences"][0].values()) == {0.0}


@pytest.mark.parametrize("top", [0, -1, "many", 1000, 2.5, True])
def test_top_must_make_sense(top):
    with pytest.raises(UserError) as caught:
        service.plan({**SMALL, "top": top})
    assert caught.value.problems[0].where == "top"


def test_inspect_counts_parameters():
    result = service.inspect({"model": "llama-3.1-70b"})
    parameters = result["parameters"]
    # sum of the safetensors headers of meta-llama/Llama-3.1-70B
    assert parameters["total"] == parameters["active"] == 70_553_706_496
    assert sum(run["count"] for run in result["layers"]) == 80
    assert result["layers"][0]["mixer"]["kind"] == "Attention"


@pytest.mark.parametrize("kind", ["models", "devices", "clusters", "rules", "frameworks"])
def test_lists(kind):
    result = service.list_things({"kind": kind})
    assert result["items"]
    assert to_json(result)


def test_list_of_something_else():
    with pytest.raises(UserError) as caught:
        service.list_things({"kind": "colours"})
    assert "devices" in caught.value.problems[0].allowed


def test_public_names():
    assert sorted(meshplan.__all__) == meshplan.__all__
    for name in meshplan.__all__:
        assert getattr(meshplan, name) is not None
        assert name in dir(meshplan)
    with pytest.raises(AttributeError):
        _ = meshplan.plane


def test_the_python_api_refuses_wrong_types_in_words_and_takes_paths(tmp_path):
    job = {"cluster": "8xH100", "seq_len": 4096, "global_batch": 64}
    for verb, wrong in (
        (meshplan.estimate, {"degrees": 5}),
        (meshplan.explain, {"degrees": "tp=2"}),
        (meshplan.compare, {"plans": 5}),
        (meshplan.compare, {"plans": [5, {"tp": 2}]}),
        (meshplan.plan, {"model": tmp_path / "config.json"}),
        (meshplan.plan, {"cluster": tmp_path / "cluster.yaml"}),
    ):
        with pytest.raises(UserError) as caught:
            verb(**{"model": "llama-3.1-8b", **job, **wrong})
        assert {problem.code for problem in caught.value.problems} <= {
            *("not_a_mapping", "bad_plan_count", "model_file_missing", "file_missing"),
        }


def test_too_late_is_an_answer_with_a_way_out():
    job = {"seq_len": 8192, "global_batch": 64, "total_tokens": 1e12, "deadline_days": 30}
    asked = {**SMALL, "job": job, "objective": "fewest_gpus"}
    result = service.plan(asked)
    assert result["plans"] == []
    closest = result["closest"]
    assert closest["memory"]["verdict"] == "fits" and closest["run"]["meets_deadline"] is False
    remedies = {remedy["kind"]: remedy for remedy in result["remedies"]}
    assert set(remedies) == {"deadline_days", "num_gpus"}
    later = {**job, "deadline_days": remedies["deadline_days"]["after"]}
    assert service.plan({**asked, "job": later})["plans"]
    larger = {**asked, "cluster": f"{remedies['num_gpus']['after']}xH100"}
    assert service.plan(larger)["plans"]


def test_nothing_fits_on_any_size_of_an_odd_cluster():
    """The whole cluster has no legal plan (8 sequences over 6 GPUs), a part of it has."""
    axes = {"pp": [1], "tp": [1], "cp": [1]}
    job = {"seq_len": 4096, "global_batch": 8}
    asked = {"model": "llama-3.1-70b", "cluster": "6xA100-40GB", "job": job, "axes": axes}
    result = service.plan({**asked, "objective": "cheapest"})
    assert result["plans"] == [] and result["closest"]["num_gpus"] < 6


def test_rules_of_no_legal_plan_are_said_in_words(capsys):
    command = ["plan", "llama-3.1-8b", "--cluster", "8xH100", "--seq-len", "8192"]
    assert command_line([*command, "--global-batch", "64", "--tp", "3"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "tp divides the attention heads" in said and "tp_divides" not in said


def test_the_best_plans_with_other_degrees_compete_for_flips():
    """The answer of the service is that of the search with all contenders."""
    request = {
        "model": "llama-3.1-8b",
        "cluster": "16xH100",
        "job": {"seq_len": 8192, "global_batch": 64},
        "axes": {"cp": [1]},
        "top": 1,
    }
    scenario = load_scenario({k: v for k, v in request.items() if k != "top"})
    found = with_alternatives(answer(scenario, top=1), top=1)
    others = [near.result.grid.plan(0) for near in found.alternatives]
    flips = find_flips(found.scenario, found.rivals, others=others)
    assert service.plan(request)["flips"] == flips_json(flips)
    assert any(flip.plan is not None and flip.rank is None for flip in flips)


@pytest.mark.parametrize("verb", ["estimate", "compare", "explain"])
def test_one_plan_takes_one_value_of_each_axis(verb):
    """A value outside what the scenario leaves open would be a plan that nobody asked about."""
    request = {
        "model": "llama-3.1-8b",
        "cluster": "8xH100",
        "job": {"seq_len": 4096, "global_batch": 64},
        "axes": {"tp": [2, 4], "recompute": ["none", "full"]},
    }
    plans = {"plans": [{"pp": 2}, {"pp": 4}]} if verb == "compare" else {"plan": {"pp": 2}}
    with pytest.raises(UserError) as caught:
        getattr(service, verb)({**request, **plans})
    problem = caught.value.problems[0]
    assert (problem.code, problem.allowed) == ("axis_left_open", (2, 4))
    assert problem.where.endswith(".tp")
    entry = service.estimate({**request, "plan": {"tp": 4}})["plans"][0]
    assert (entry["plan"]["tp"], entry["plan"]["recompute"]) == (4, "none")


def test_the_largest_cluster_can_grow():
    """Ways out ask about larger clusters than anyone may name."""
    request = {
        "model": "llama-3.1-8b",
        "cluster": "10000000xH100",
        "job": {"seq_len": 4096, "global_batch": 10**7},
        "axes": {"tp": [8], "pp": [1], "cp": [1], "zero": [1], "recompute": ["none"]},
    }
    assert service.plan({**request, "top": 1})["plans"]


def test_sizes_that_were_searched_are_not_doubted_by_flips(capsys):
    """A size with plans of its own is no change at which "none of these plans would fit"."""
    asked = {
        "model": "llama-3.1-8b",
        "cluster": "8xH100",
        "job": {"seq_len": 4096, "global_batch": 64},
        "axes": {"cp": [1]},
    }
    result = service.plan({**asked, "objective": "cheapest"})
    assert len(result["sizes"]) > 1 and result["flips"]
    assert "num_gpus" not in {flip["change"] for flip in result["flips"]}
    command = ["plan", "llama-3.1-8b", "--cluster", "8xH100", "--seq-len", "4096"]
    command += ["--global-batch", "64", "--objective", "cheapest", "--set", "axes.cp=1"]
    assert command_line(command) == 0
    assert "days" not in capsys.readouterr().out
    command_line([*command, "--set", "job.total_tokens=1T"])
    assert "days" in capsys.readouterr().out


def test_frameworks_tell_whose_rules_and_whose_files():
    """Rules are read in the source of a framework, files are written for what is installed."""
    items = {item["name"]: item for item in service.list_things({"kind": "frameworks"})["items"]}
    versions = {entry["target"]: entry["version"] for entry in items["megatron"]["emitted"]}
    assert versions == {"megatron": "megatron-core 0.19.2", "bridge": "Megatron-Bridge 0.6.2"}
    assert all(item["versions"] for item in items.values())
    assert all(item["emitted"] for item in items.values())


def test_a_plan_that_is_the_only_one_has_nothing_around_it():
    job = {"seq_len": 4096, "global_batch": 16, "task": "lora"}
    found = service.plan({"model": "llama-3.1-8b", "cluster": "1xRTX4090", "job": job})
    assert [entry["plan"]["recompute"] for entry in found["plans"]] == ["full"]


@pytest.mark.parametrize(
    "asked",
    [
        {"objective": "fewest_gpus"},
        {"objective": "pareto", "axes": {"tp": [1, 2]}},
        {"axes": {"recompute": ["full:1"], "pp": [1, 4]}},
    ],
)
def test_the_options_of_a_plan_give_it_again(asked, capsys):
    base = {"model": "qwen2.5-7b", "cluster": "32xA100-40GB"}
    base["job"] = {"seq_len": 512, "global_batch": 96}
    found = service.plan({**base, **asked})["plans"]
    line = ["estimate", base["model"], "--cluster", base["cluster"]]
    line += ["--seq-len", "512", "--global-batch", "96", "--json"]
    for entry in found[:3]:
        assert command_line([*line, *entry["options"]]) in (0, 1)
        again = json.loads(capsys.readouterr().out)["plans"][0]
        assert (again["plan"], again["num_gpus"]) == (entry["plan"], entry["num_gpus"])
        assert again["step_time_s"] == pytest.approx(entry["step_time_s"])


@pytest.mark.parametrize(("task", "attention"), [("pretrain", "unfused"), ("qlora", "flash")])
def test_attention_follows_the_framework_that_is_chosen(task, attention):
    """A T4: PyTorch has a kernel that stores no scores there, Megatron-LM has none."""
    job = {"seq_len": 1024, "global_batch": 8, "precision": "fp16", "task": task}
    scenario = read_scenario({"model": "llama-3.2-1b", "cluster": "1xT4", "job": job})
    assert scenario.job.attention == attention


@pytest.mark.parametrize(
    ("request_", "value"),
    [
        ({"variant": "megatron+alltoall+bf16-gradients"}, "variant +alltoall"),
        ({"model": "mamba-2.8b", "job": {"attention": "unfused"}}, "job.attention=unfused"),
        (
            {"variant": "megatron-2022", "plan": {"framework": "torchtitan"}},
            "variant=megatron-2022",
        ),
        ({"plan": {"cp_comm": "all-gather"}}, "cp_comm=all-gather"),
    ],
)
def test_what_has_no_effect_is_said(request_, value):
    """Not in silence: a switch of experts in a dense model, scores where there is no attention."""
    job = {"seq_len": 4096, "global_batch": 64, **request_.get("job", {})}
    usual = {"model": "llama-3.1-8b", "cluster": "8xH100", "plan": {}}
    answer = service.estimate({**usual, **request_, "job": job})
    noted = [a["value"] for a in answer["assumptions"] if a["code"] == "no_effect"]
    assert noted == [value]


@pytest.mark.parametrize(("gemm", "said"), [(50.0, True), (0.8, False)])
def test_a_step_faster_than_the_peak_allows_is_said(gemm, said):
    """A profile written by hand may hold any number."""
    request = {**SMALL, "profile": {"fitted": {"gemm": gemm}}}
    given = {**request, "axes": {}, "plan": {"tp": 2}}
    compared = {**request, "axes": {}, "plans": [{"tp": 2}, {"tp": 4}]}
    answers = [service.plan(request), service.estimate(given), service.explain(given)]
    for answered in (*answers, service.compare(compared)):
        codes = [assumed["code"] for assumed in answered["assumptions"]]
        assert ("beyond_peak" in codes) is said


def test_attention_outside_its_mask_may_count_for_more_than_the_peak():
    """The usual MFU counts all pairs, of which causal attention computes half."""
    job = {"seq_len": 10_000_000, "global_batch": 64}
    long = service.estimate(
        {**SMALL, "cluster": "8xGB200", "job": job, "plan": {"tp": 2}, "axes": {}}
    )
    assert long["plans"][0]["hfu"] > 1.0 > long["plans"][0]["mfu_causal"]
    assert "beyond_peak" not in [assumed["code"] for assumed in long["assumptions"]]
