"""Work of the memory model grows with distinct combinations, not with plans."""

from collections import Counter

import numpy as np

from cost_scenarios import scenario
from meshplan.cost.memory import grid as memory_grid
from meshplan.cost.memory import peak_memory
from meshplan.space.enumerate import enumerate_plans
from meshplan.space.plan import PlanGrid


def test_formulas_run_once_per_kind_of_layer_and_stage(monkeypatch):
    scene = scenario("llama-3.1-8b", cluster="64xH100", seq_len=8192, global_batch=512)
    plans = enumerate_plans(scene).grid
    assert len(plans) > 10_000
    calls: Counter[str] = Counter()

    def counted(name):
        inner = getattr(memory_grid, name)

        def outer(*args, **kwargs):
            calls[name] += 1
            return inner(*args, **kwargs)

        monkeypatch.setattr(memory_grid, name, outer)

    for name in ("layer_activations", "head_activations", "chunk_activations", "event_lines"):
        counted(name)
    peak_memory(scene, plans)
    keys = [plans.pp, plans.vpp, plans.schedule, plans.split]
    layouts = len(np.unique(np.stack(keys), axis=1).T)
    assert calls["layer_activations"] == calls["head_activations"] == 1
    assert calls["chunk_activations"] <= 2 * layouts
    assert calls["event_lines"] <= 4 * layouts


def test_twice_the_plans_need_no_more_formulas(monkeypatch):
    scene = scenario("llama-3.1-8b", cluster="64xH100", seq_len=8192, global_batch=512)
    plans = enumerate_plans(scene).grid
    calls: Counter[str] = Counter()
    inner = memory_grid.event_lines

    def counted(*args, **kwargs):
        calls["event_lines"] += 1
        return inner(*args, **kwargs)

    monkeypatch.setattr(memory_grid, "event_lines", counted)
    peak_memory(scene, plans)
    once = calls["event_lines"]
    peak_memory(scene, PlanGrid.concatenate([plans, plans]))
    assert calls["event_lines"] == 2 * once
