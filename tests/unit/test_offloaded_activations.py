"""Activations of the first layers in host memory: what leaves the device, what is waited for."""

from dataclasses import replace

import numpy as np
import pytest

from cost_scenarios import plan, scenario
from meshplan.cost.memory import (
    Event,
    Verdict,
    offloaded_activations,
    peak_memory,
    stage_memory,
)
from meshplan.cost.step import step_time
from meshplan.emit.megatron import flag_groups
from meshplan.emit.records import Order
from meshplan.search.remedy import remedies_for_plan
from meshplan.space.plan import PlanGrid, Recompute
from meshplan.space.rules import check_plan

LAYERS = 80
SCENARIO = scenario(
    "llama-3.1-70b", cluster="64xGB200", seq_len=8192, global_batch=256, precision="fp8"
)
RESIDENT = plan(64, zero=3, micro_batch=2, num_micro_batches=2)


def offloading(num_layers: int):
    return replace(RESIDENT, offload_layers=num_layers)


def activations(chosen) -> float:
    (stage,) = stage_memory(SCENARIO, chosen)
    names = ("attention_norm", "attention", "attention_core", "mlp_norm", "mlp")
    return sum(stage.line(Event.FORWARD, name) for name in names)


@pytest.mark.parametrize("num_layers", [1, 40, 79])
def test_the_layers_that_stay_are_what_the_device_holds(num_layers):
    """``(L - n) T`` of Transformer Engine's DefaultOffloadSynchronizer, to the byte."""
    each = activations(RESIDENT) / LAYERS
    assert activations(offloading(num_layers)) == (LAYERS - num_layers) * each


def test_what_leaves_the_device_is_in_host_memory():
    grid = PlanGrid.of([RESIDENT, offloading(40)])
    memory = peak_memory(SCENARIO, grid)
    moved = offloaded_activations(SCENARIO, grid)
    assert moved.tolist() == [0.0, activations(RESIDENT) / 2]
    assert memory.host_bytes.tolist() == [0.0, 4 * moved[1]]
    (stage,) = stage_memory(SCENARIO, offloading(40))
    assert stage.peak_bytes == memory.peak_bytes[1]
    assert stage.host_bytes == moved[1]


def test_a_plan_costs_the_same_in_any_company():
    grid = PlanGrid.of([RESIDENT, offloading(40), offloading(79)])
    together = step_time(SCENARIO, grid).step_time_s
    alone = [step_time(SCENARIO, PlanGrid.of([p])).step_time_s[0] for p in grid]
    assert together.tolist() == alone


def test_a_fast_link_hides_the_copies_and_a_slow_one_does_not():
    """Once the link sets the pace, time grows by two copies of the activations per micro-batch."""
    grid = PlanGrid.of([offloading(40)])
    usual = step_time(SCENARIO, grid).step_time_s[0]
    assert usual == step_time(SCENARIO, PlanGrid.of([RESIDENT])).step_time_s[0]

    def with_link(bytes_per_s: float) -> float:
        cluster = replace(SCENARIO.cluster, host_link_bytes_per_s=bytes_per_s)
        return float(step_time(replace(SCENARIO, cluster=cluster), grid).step_time_s[0])

    moved = offloaded_activations(SCENARIO, grid)[0]
    slow = with_link(2e9) - with_link(4e9)
    assert slow == pytest.approx(2 * RESIDENT.num_micro_batches * moved * (1 / 2e9 - 1 / 4e9))
    assert with_link(2e9) > usual


def test_only_plans_that_offload_change():
    grid = PlanGrid.of([RESIDENT])
    assert np.all(grid.offload_layers == 0)
    assert check_plan(SCENARIO, offloading(40)) == ()
    refused = replace(offloading(40), recompute=Recompute.FULL)
    assert {v.code for v in check_plan(SCENARIO, refused)} == {"offload_layers_without_recompute"}


def test_megatron_is_told():
    flags = flag_groups(Order(scenario=SCENARIO, plan=offloading(40)))["MEMORY"]
    assert ("--cpu-offloading-num-layers", "40") in flags


def test_a_plan_that_does_not_fit_is_told_to_move_activations():
    """One micro-batch of two sequences more than fits: half of the layers go to the host."""
    found = {remedy.kind: remedy for remedy in remedies_for_plan(SCENARIO, RESIDENT)}
    remedy = found["offload_layers"]
    assert remedy.before == 0
    assert remedy.plan == offloading(int(str(remedy.after)))
    assert remedy.peak_bytes <= remedy.usable_bytes
    fewer = peak_memory(SCENARIO, PlanGrid.of([offloading(int(str(remedy.after)) - 10)]))
    assert fewer.verdict[0] != Verdict.FITS
