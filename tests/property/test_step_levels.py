"""A quick bound is never above the closed form, and some plans of a grid are timed as all are."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from meshplan.cost.step import StepModel, step_time
from meshplan.inputs.load.scenario import load_scenario
from space_scenarios import enumerate_plans

SPACES = [
    ("llama-3.1-8b", "16xH100", 4096, 64, ["megatron"], {}),
    ("llama-3.1-8b", "16xH100", 4096, 64, ["torchtitan"], {}),
    ("llama-3.1-8b", "12xA100-80GB", 4096, 24, ["megatron", "torchtitan", "nanotron"], {}),
    ("llama-3.1-8b", "16xH100", 4096, 64, ["deepspeed", "accelerate"], {}),
    ("mixtral-8x7b", "32xH100", 4096, 64, ["megatron"], {"cp": [1]}),
    ("gpt3-175b", "64xA100-80GB", 2048, 64, ["megatron"], {"cp": [1], "micro_batch": [1, 2]}),
    ("gemma-2-9b", "16xH100", 4096, 32, ["megatron"], {}),  # tied, with sliding windows
    ("deepseek-v3", "64xH100", 4096, 64, ["megatron"], {"cp": [1], "micro_batch": [1]}),
]


def space(index):
    model, cluster, seq_len, batch, frameworks, axes = SPACES[index]
    job = {"seq_len": seq_len, "global_batch": batch}
    scenario = load_scenario(
        {"model": model, "cluster": cluster, "job": job, "frameworks": frameworks, "axes": axes}
    )
    grid = enumerate_plans(scenario).grid
    some = np.random.default_rng(index).permutation(len(grid))[:8000]
    return scenario, grid.take(np.sort(some))


@pytest.mark.parametrize("index", range(len(SPACES)))
def test_the_quick_bound_is_below_the_closed_form_and_close(index):
    scenario, grid = space(index)
    closed = step_time(scenario, grid).high_s
    quick = StepModel(scenario, grid).least_high()
    assert np.all(quick <= closed)
    assert np.all(quick > 0)
    fastest = np.argsort(closed)[: len(closed) // 100 + 1]
    assert np.median(quick[fastest] / closed[fastest]) > 0.7


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("index", [1, 2, 3, 4])
def test_some_plans_of_a_grid_get_the_same_times_bit_for_bit(index, exact):
    scenario, grid = space(index)
    model = StepModel(scenario, grid)
    some = np.random.default_rng(9).permutation(len(grid))[:70]
    expected = step_time(scenario, grid.take(some), exact=exact)
    found = model.times(some, exact=exact)
    found = model.sends_apart(found, some) if exact else found
    for field in fields(expected):
        assert np.array_equal(getattr(found, field.name), getattr(expected, field.name)), field.name
    assert np.array_equal(model.least_high(some)[:40], model.least_high(some[:40]))
