"""Work of the memory model grows with distinct combinations, not with plans."""

from collections import Counter
from dataclasses import replace

import pytest

from cost_scenarios import scenario
from meshplan.cost.memory import Verdict, evaluator, peak_memory, screen_memory, standing_rows
from meshplan.cost.memory import rows as memory_rows
from meshplan.space.plan import PlanGrid
from space_scenarios import enumerate_plans


def _whole(model, **job):
    """A scenario whose space is walked without a habit."""
    return replace(scenario(model, **job), axes={"sp": (False, True)})


ONCE = {
    "layer_activations": memory_rows,
    "head_activations": memory_rows,
    "BlockCounts": memory_rows,
    "StateTable": standing_rows,
    "event_lines": evaluator,
}


@pytest.fixture
def scene():
    return _whole("llama-3.1-8b", cluster="64xH100", seq_len=8192, global_batch=512)


@pytest.fixture
def calls(monkeypatch):
    found: Counter[str] = Counter()

    def counted(name, inner):
        def outer(*args, **kwargs):
            found[name] += 1
            return inner(*args, **kwargs)

        return outer

    for name, module in ONCE.items():
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return found


def test_formulas_run_once_whatever_the_layouts(scene, calls):
    plans = enumerate_plans(scene).grid
    assert len(plans) > 10_000
    assert len(scene.model.layer_kinds) == 1
    peak_memory(scene, plans)
    assert calls == dict.fromkeys(ONCE, 1)


def test_most_plans_are_judged_by_a_bound_of_what_they_share(monkeypatch):
    scene = _whole("llama-3.1-70b", cluster="64xH100", seq_len=8192, global_batch=1024)
    (plans,) = enumerate_plans(scene).crossed
    assert len(plans) > 100_000
    assert len(plans.rows) * 6 < len(plans)
    looked_at = []
    inner = evaluator.Evaluator.peaks

    def seen(self, own):
        looked_at.append(len(own))
        return inner(self, own)

    monkeypatch.setattr(evaluator.Evaluator, "peaks", seen)
    found = screen_memory(scene, plans)
    (rows,) = looked_at
    some = ((found.verdict != Verdict.OOM) & plans.legal).any(axis=1)
    assert some.sum() <= rows <= 1.1 * some.sum()
    assert rows * 2.5 < len(plans.rows)


def test_twice_the_plans_need_no_more_rows(scene, monkeypatch):
    plans = enumerate_plans(scene).grid
    sizes = []
    inner = evaluator.event_lines

    def seen(standing, moving):
        sizes.append((len(standing.workspace), len(moving.forward)))
        return inner(standing, moving)

    monkeypatch.setattr(evaluator, "event_lines", seen)
    peak_memory(scene, plans)
    peak_memory(scene, PlanGrid.concatenate([plans, plans]))
    once, twice = sizes
    assert once == twice
    states, activations = once
    assert states * 100 < len(plans)
    assert activations < len(plans)
