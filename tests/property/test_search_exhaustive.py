"""On small spaces the pruned search returns what an exhaustive exact evaluation returns."""

from __future__ import annotations

import numpy as np
import pytest

from meshplan.cost.memory import Verdict, peak_memory
from meshplan.cost.step import step_time
from meshplan.inputs.load.scenario import load_scenario
from meshplan.search.family import family_ids
from meshplan.search.objective import complexity, crowding, field_order, rank_keys
from meshplan.search.pareto import memory_steps
from meshplan.search.rank import pareto_plans, rank_plans
from space_scenarios import enumerate_plans

FEW = {"cp": [1], "micro_batch": [1, 2], "offload": ["none"]}
SPACES = [
    ("llama-3.1-8b", "8xH100", 8192, 32, ("megatron",), FEW),
    ("llama-3.1-8b", "8xH100", 8192, 32, ("torchtitan",), {"micro_batch": [1], "cp": [1]}),
    ("llama-3.1-8b", "16xA100-80GB", 4096, 64, ("megatron",), {**FEW, "recompute": ["none"]}),
    ("llama-3.1-8b", "6xA100-80GB", 4096, 12, ("megatron",), {}),
    ("llama-3.1-8b", "7xH100", 4096, 14, ("megatron", "torchtitan"), {"micro_batch": [1]}),
    ("llama-3.1-8b", "12xH100", 4096, 48, ("megatron",), FEW),
    ("llama-3.1-8b", "8xV100", 2048, 16, ("megatron",), {"recompute": ["full"]}),
    ("llama-3.1-70b", "32xH100", 4096, 32, ("megatron",), {**FEW, "recompute": ["none", "full"]}),
    (
        "llama-3.1-70b",
        "32xH100",
        8192,
        32,
        ("torchtitan",),
        {"micro_batch": [1], "tp": [4], "cp": [1]},
    ),
    ("llama-3.1-70b", "64xA100-80GB", 4096, 64, ("megatron",), {**FEW, "tp": [8], "pp": [4]}),
    ("llama-3.1-70b", "24xH200", 4096, 24, ("megatron",), {**FEW, "tp": [4, 8]}),
    ("gpt3-175b", "64xA100-80GB", 2048, 64, ("megatron",), {**FEW, "recompute": ["full"]}),
    ("gpt3-175b", "128xA100-80GB", 2048, 128, ("megatron",), {**FEW, "tp": [8], "pp": [8]}),
    ("llama-3.1-8b", "2xB200", 8192, 8, ("megatron",), {}),
    ("llama-3.1-8b", "1xB200", 4096, 4, ("megatron", "torchtitan"), {}),
    ("llama-3.1-8b", "16xH200", 8192, 32, ("accelerate",), {}),
    ("llama-3.1-8b", "10xH100", 4096, 20, ("megatron",), {"cp": [1]}),
    ("llama-3.1-8b", "8xH100", 32768, 8, ("megatron",), {"tp": [1, 2], "pp": [1]}),
    ("llama-3.1-8b", "8xH100", 8192, 32, ("deepspeed",), {"micro_batch": [1, 2]}),
    ("llama-3.1-8b", "16xH100", 8192, 32, ("nanotron",), {"micro_batch": [1, 2]}),
]


MEASURED = """\
fitted: {gemm: 0.9}
residuals:
  reach: 2.62
  runs:
"""
RUN = (
    "  - {{framework: {}, tp: {}, pp: {}, vpp: 1, cp: 1, ep: 1, tokens: 8192, hidden: 4096,"
    " sp: false, recompute: {}, zero: {}, weight: {}}}\n"
)
RUNS = (  # plans like some took far longer than the model says, like others far less
    ("megatron", 8, 1, "core_attention", 1, 2.5),
    ("megatron", 1, 2, "none", 1, 2.0),
    ("megatron", 2, 1, "full", 1, -0.8),
    ("torchtitan", 2, 1, "none", 3, -1.2),
    ("nanotron", 1, 1, "full", 0, -1.5),
)


def scenario_of(space, profile=""):
    model, cluster, seq_len, batch, frameworks, axes = space
    precision = "fp16" if "V100" in cluster else "bf16"
    return load_scenario(
        {
            "model": model,
            "cluster": cluster,
            "job": {"seq_len": seq_len, "global_batch": batch, "precision": precision},
            "frameworks": list(frameworks),
            "axes": axes,
            **({"profile": profile} if profile else {}),
        }
    )


def evaluated(scenario):
    """Every legal plan that fits, simulated exactly."""
    grid = enumerate_plans(scenario).grid
    verdict = peak_memory(scenario, grid).verdict
    fits = verdict == Verdict.FITS
    grid = grid.take(fits if fits.any() else verdict == Verdict.TIGHT)
    return grid, step_time(scenario, grid, exact=True).high_s if len(grid) else np.empty(0)


@pytest.mark.parametrize("space", SPACES, ids=lambda s: f"{s[0]}-{s[1]}-{'+'.join(s[4])}")
def test_pruned_search_equals_exhaustive_search(space):
    check_search(scenario_of(space))


@pytest.mark.parametrize("place", [0, 2, 4, 5, 13, 14, 19])
def test_it_does_where_plans_follow_measured_runs(place, tmp_path):
    path = tmp_path / "profile.yaml"
    path.write_text(MEASURED + "".join(RUN.format(*run) for run in RUNS))
    scenario = scenario_of(SPACES[place], str(path))
    grid, value = evaluated(scenario)
    plain = step_time(scenario_of(SPACES[place]), grid, exact=True).high_s
    assert np.ptp(np.log(value / plain)) > 0.5  # the runs move plans apart
    check_search(scenario)


def check_search(scenario):
    """What the search returns is what an exhaustive one returns."""
    found = rank_plans(scenario, top=5)
    grid, value = evaluated(scenario)
    assert 0 < len(grid) < 40_000
    peaks = peak_memory(scenario, grid).peak_bytes
    parts = complexity(grid) + crowding(peaks, usable_bytes=scenario.cluster.device.usable_bytes)
    keys = rank_keys(value, parts=parts, field=field_order(grid), best=float(value.min()))
    families, expected = family_ids(grid), []
    seen: set[int] = set()
    for i in keys.order().tolist():
        if families[i] not in seen:
            seen.add(int(families[i]))
            expected.append(i)
    missing = set(scenario.frameworks) - {grid.plan(i).framework.name.lower() for i in expected[:5]}
    others = [i for i in expected[5:] if grid.plan(i).framework.name.lower() in missing]
    first = {grid.plan(i).framework: i for i in reversed(others)}
    expected = expected[:5] + sorted(first.values(), key=lambda i: value[i])
    assert list(found.best.grid) == [grid.plan(i) for i in expected]
    assert found.value.tolist() == value[expected].tolist()  # bit for bit
    assert found.counts.num_exact <= len(grid)


@pytest.mark.parametrize("space", SPACES[:6], ids=lambda s: f"{s[0]}-{s[1]}-{'+'.join(s[4])}")
def test_pareto_front_equals_exhaustive_front(space):
    scenario = scenario_of(space)
    found = pareto_plans(scenario)
    grid, value = evaluated(scenario)
    usable = scenario.cluster.device.usable_bytes
    memory = memory_steps(peak_memory(scenario, grid).peak_bytes, usable_bytes=usable)
    points = set(zip(value.tolist(), memory.tolist(), strict=True))
    front = {
        (t, m)
        for t, m in points
        if not any(t2 <= t and m2 <= m and (t2, m2) != (t, m) for t2, m2 in points)
    }
    steps = memory_steps(found.best.memory.peak_bytes, usable_bytes=usable)
    assert set(zip(found.value.tolist(), steps.tolist(), strict=True)) == front
