"""What to set to get from one plan to another, in the framework's own words."""

from dataclasses import replace

import pytest

from meshplan.emit.records import Order
from meshplan.emit.settings import differences
from meshplan.inputs.load.scenario import load_scenario
from meshplan.space.complete import complete_plan
from meshplan.space.plan import Framework, Recompute


def changed(framework, before, after, *, batch=64):
    """Settings that differ between two plans, as ``(option, before, after)``."""
    scenario = load_scenario(
        {
            "model": "llama-3.1-8b",
            "cluster": "8xH100",
            "job": {"global_batch": batch, "seq_len": 8192},
        }
    )
    scenario = replace(scenario, frameworks=(framework,))
    kind = Framework[framework.upper()]
    orders = [
        Order(scenario=scenario, plan=complete_plan(scenario, framework=kind, **fields))
        for fields in (before, after)
    ]
    return {d.option: (d.before, d.after) for d in differences(*orders)}


def test_a_plan_has_no_difference_to_itself():
    assert changed("megatron", {"tp": 2}, {"tp": 2}) == {}


def test_recompute_is_taken_out_flag_by_flag():
    again = {"zero": 1, "recompute": Recompute.FULL}
    assert changed("megatron", again, {"zero": 1}) == {
        "--recompute-granularity": ("full", None),
        "--recompute-method": ("uniform", None),
        "--recompute-num-layers": ("1", None),
    }


@pytest.mark.parametrize(
    ("framework", "option", "before", "after"),
    [
        ("torchtitan", "parallelism.fsdp_reshard_after_forward", '"always"', '"never"'),
        ("deepspeed", "zero_optimization.stage", "3", "2"),
        ("accelerate", "fsdp_config.fsdp_reshard_after_forward", "true", "false"),
        ("megatron", "--data-parallel-sharding-strategy", "optim_grads_params", "optim_grads"),
    ],
)
def test_the_stage_of_sharding_in_the_words_of_each_framework(framework, option, before, after):
    assert changed(framework, {"zero": 3}, {"zero": 2}) == {option: (before, after)}
