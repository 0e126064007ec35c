"""The rule of thumb beside the full model: the stand-in, both answers, and the differences."""

import ast
from pathlib import Path

import pytest

from meshplan import thumb
from meshplan.app import quick as module
from meshplan.app.cli.main import run
from meshplan.app.quick import llama_config, quick
from meshplan.cost.parameters import count_parameters
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import model_from_config
from meshplan.text import LANGUAGES, has


@pytest.mark.parametrize("num_params_b", [0.5, 1, 3, 7, 13, 30, 70, 175, 405, 1000])
def test_the_stand_in_has_about_the_size(num_params_b):
    config = llama_config(num_params_b=num_params_b)
    total = count_parameters(model_from_config(config, name="stand-in")).total
    assert total == pytest.approx(num_params_b * 1e9, rel=0.12)
    assert config["hidden_size"] == config["num_attention_heads"] * config["head_dim"]


def test_seventy_billion_is_llama():
    """The proportions are Llama's, so its size gives its shape."""
    config = llama_config(num_params_b=70)
    assert (config["num_hidden_layers"], config["hidden_size"]) == (80, 8192)
    assert config["intermediate_size"] == 28672


@pytest.fixture(scope="module")
def seven():
    return quick({"num_params_b": "7", "num_gpus": "8"})


def test_both_answers_stand_side_by_side(seven):
    assert seven["rule"]["degrees"] == thumb.recommend(num_params_b=7, num_gpus=8)
    same, best = seven["rule_plan"]["plan"], seven["plans"][0]["plan"]
    assert (same["tp"], same["pp"], same["dp"]) == (1, 2, 4)
    assert best["pp"] == 1, "the full model needs no pipeline for a 7B on 8 GPUs"
    assert seven["rule_plan"]["step_time_s"] >= seven["plans"][0]["step_time_s"]
    rows = {row["code"]: row for row in seven["beside"]}
    assert rows["memory"]["rule"] == 7e9 * 16 / 2
    assert rows["bubble"]["rule"] == thumb.bubble_fraction(
        pp=2, num_micro_batches=same["num_micro_batches"]
    )
    assert rows["speedup"]["rule"] == 8
    assert rows["speedup"]["best"] < 8


def test_it_says_why_they_differ(seven):
    codes = [item["code"] for item in seven["differences"]]
    assert codes[0] in ("never_fsdp", "never_zero"), "the rule does not know sharded states"
    assert "into_a_pipeline" in codes
    assert "activations_uncounted" in codes


def test_where_the_rule_gives_up_the_model_still_answers():
    found = quick({"num_params_b": "70", "num_gpus": "8"})
    assert found["rule"]["degrees"] is None
    assert found["rule"]["problem"]["code"] == "thumb_nothing_fits"
    assert found["rule"]["problem"]["numbers"]["least_gb"] == 70 * 16 / 8
    assert found["rule_plan"] is None
    assert found["plans"], "FSDP and offload fit it on eight H100"


def test_the_memory_stated_counts_for_rule_and_model():
    """A 7B model fits eight GPUs of 80 GB in more ways than eight of 24 GB."""
    large, small = (
        quick({"num_params_b": "7", "num_gpus": "8", "gpu_memory_gb": gb}) for gb in ("80", "24")
    )
    kept = (
        large["plans"][0]["memory"]["capacity_bytes"] - large["plans"][0]["memory"]["usable_bytes"]
    )
    for found, gb in ((large, 80), (small, 24)):
        (best,) = found["plans"]
        assert best["memory"]["capacity_bytes"] == gb * 2**30
        assert best["memory"]["peak_bytes"] <= best["memory"]["usable_bytes"]
        assert best["memory"]["usable_bytes"] == gb * 2**30 - kept
    assert small["plans"][0]["step_time_s"] > large["plans"][0]["step_time_s"]
    with pytest.raises(UserError) as caught:
        quick({"num_params_b": "7", "num_gpus": "8", "gpu_memory_gb": "1"})
    assert [problem.code for problem in caught.value.problems] == ["no_memory_left"]


def test_a_device_without_bf16_trains_in_fp16():
    found = quick({"num_params_b": "1", "num_gpus": "8", "device": "V100-32GB"})
    assert found["stand_in"]["precision"] == "fp16"
    assert found["given"]["gpu_memory_gb"] == 32


@pytest.mark.parametrize("num_gpus", [3, 12, 100])
def test_the_batch_can_be_shared_by_an_odd_number_of_gpus(num_gpus):
    found = quick({"num_params_b": "1", "num_gpus": str(num_gpus)})
    assert found["stand_in"]["global_batch"] % num_gpus == 0
    assert found["rule_plan"], "a billion parameters fit one H100 at any degree"


def test_all_that_is_wrong_is_said():
    with pytest.raises(UserError) as caught:
        quick({"num_params_b": "many", "num_gpus": "0", "gpu_memory_gb": "-1", "colour": "red"})
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_difference_has_its_sentence(lang):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    function = next(
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "_differences"
    )
    codes = [
        value.value
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "add"
        for value in ast.walk(node.args[0])
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]
    assert len(codes) >= 8
    assert [code for code in codes if not has(f"diff.{code}", lang)] == []


def test_too_few_gpus_are_answered_with_how_many_it_takes(seven, capsys):
    found = quick({"num_params_b": "70", "num_gpus": "2"})
    assert found["plans"] == []
    more = found["more_gpus"]
    assert more > 2
    assert quick({"num_params_b": "70", "num_gpus": str(more)})["plans"]
    assert run(["quick", "70", "--gpus", "2"]) == 1
    assert f"a plan on {more} GPUs" in " ".join(capsys.readouterr().out.split())
    assert seven["more_gpus"] is None


def test_a_stand_in_of_another_size_is_said(capsys):
    assert run(["quick", "0.0001", "--gpus", "8"]) == 0
    assert "another size, 33.78M" in " ".join(capsys.readouterr().out.split())
    assert run(["quick", "7", "--gpus", "8"]) == 0
    assert "another size" not in capsys.readouterr().out
