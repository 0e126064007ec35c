"""The memory model on every real configuration, with plans of its own space."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_scenarios import plan, scenario
from meshplan.cost.memory import Event, peak_memory, stage_memory
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import load_model
from meshplan.space.plan import Framework, PlanGrid, Recompute, Schedule
from shared_data import find_shared
from space_scenarios import enumerate_plans

SHARED = find_shared()
CONFIGS = sorted((SHARED / "data" / "hf_configs").glob("[!_]*.json")) if SHARED else []


@pytest.mark.skipif(not CONFIGS, reason="measured data is absent: set MESHPLAN_SHARED")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_has_a_finite_peak(path):
    try:
        model = load_model(str(path))
    except UserError:
        pytest.skip("refused with the key that it lacks")
    scene = scenario(model, cluster="16xH100", seq_len=1024, global_batch=64)
    found = enumerate_plans(scene).grid
    if not len(found):
        pytest.skip("no legal plan on 16 devices")
    rng = np.random.default_rng(0)
    plans = found.take(rng.choice(len(found), size=min(5, len(found)), replace=False))
    peaks = peak_memory(scene, plans)
    assert np.isfinite(peaks.peak_bytes).all()
    for index in range(len(plans)):
        stages = stage_memory(scene, plans.plan(index))
        assert max(stage.peak_bytes for stage in stages) == peaks.peak_bytes[index]
        assert all(stage.line(Event.OPTIMIZER, "weights") >= 0 for stage in stages)
        assert sum(stage.num_layers for stage in stages) == model.num_layers


@settings(max_examples=60, deadline=None)
@given(
    framework=st.sampled_from(list(Framework)),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2]),
    zero=st.integers(0, 3),
    micro_batch=st.sampled_from([1, 2, 4]),
    num_micro_batches=st.integers(1, 40),
    recompute=st.sampled_from([0, 1, 2, 4, 8, 15, 128, 256]),
    schedule=st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZB_1P]),
)
def test_breakdown_equals_grid_for_any_degrees(schedule, recompute, framework, **degrees):
    assume(degrees["tp"] * degrees["pp"] * degrees["cp"] <= 64)
    scene = scenario("llama-3.1-8b", seq_len=4096, global_batch=64)
    chosen = plan(
        64,
        framework=framework,
        schedule=schedule,
        recompute=Recompute(recompute),
        sp=degrees["tp"] > 1,
        **degrees,
    )
    stages = stage_memory(scene, chosen)
    found = peak_memory(scene, PlanGrid.of([chosen]))
    assert max(stage.peak_bytes for stage in stages) == found.peak_bytes[0]
    assert found.allocated_bytes[0] <= found.reserved_bytes[0]
    assert found.required_bytes[0] <= found.peak_bytes[0]
