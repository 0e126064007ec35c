"""The walk over the product finds exactly the legal plans and counts exactly the others."""

from collections import Counter

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshplan.space.axes import axes_of
from meshplan.space.complete import complete_plan
from meshplan.space.enumerate import enumerate_parts
from meshplan.space.facts import facts_of
from meshplan.space.habits import HABITS, habits_of
from meshplan.space.plan import Framework, Plan, PlanGrid
from meshplan.space.rules import check_plan, rules_of
from meshplan.space.rules.check import idle_fields
from space_scenarios import (
    attention,
    dense_model,
    enumerate_plans,
    mamba,
    mixer_model,
    moe_model,
    scenario,
)

NUM_GPUS = st.sampled_from([1, 2, 4, 6, 7, 8, 12, 16, 24, 36, 48, 64, 96, 100, 128])
FRAMEWORKS = st.sampled_from([f.name.lower() for f in Framework])


@st.composite
def models(draw):
    num_layers = draw(st.integers(1, 24))
    heads = draw(st.sampled_from([1, 6, 8, 12, 28, 32, 40, 96]))
    kv_heads = draw(st.sampled_from([d for d in range(1, heads + 1) if heads % d == 0]))
    kind = draw(st.sampled_from(["dense", "moe", "mamba", "window"]))
    if kind == "moe":
        return moe_model(num_layers=num_layers, num_experts=draw(st.sampled_from([8, 12, 60])))
    if kind == "mamba":
        return mixer_model(mamba(heads=draw(st.sampled_from([8, 24]))), num_layers=num_layers)
    if kind == "window":
        mixer = attention(heads=heads, kv_heads=kv_heads)
        return mixer_model(mixer, num_layers=num_layers)
    return dense_model(num_layers=num_layers, heads=heads, kv_heads=kv_heads)


@st.composite
def scenarios(draw, *, pins: bool = False):
    axes = {}
    if pins:
        axes = {
            "vpp": (1, 2),
            "micro_batch": (1, 2),
            "recompute": ("none", "full", "full:1"),
            "tp": draw(st.sampled_from([(1, 2), (1, 3, 4), (2,)])),
            "cp": draw(st.sampled_from([(1,), (1, 2)])),
        }
    return scenario(
        draw(models()),
        num_gpus=draw(st.sampled_from([1, 2, 4, 6]) if pins else NUM_GPUS),
        gpus_per_node=draw(st.sampled_from([1, 4, 8])),
        seq_len=draw(st.sampled_from([1024, 2048, 4098, 8192])),
        global_batch=draw(st.sampled_from([1, 2, 12, 60, 64, 256])),
        frameworks=(draw(FRAMEWORKS),),
        axes=axes,
    )


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_rejected_and_legal_add_up_to_the_product(there):
    found = enumerate_plans(there)
    assert sum(r.count for r in found.rejected.values()) + found.num_legal == found.num_candidates
    assert all(r.count > 0 for r in found.rejected.values())


@settings(max_examples=100, deadline=None)
@given(scenarios())
def test_every_plan_is_legal_and_every_example_is_not(there):
    found = enumerate_plans(there)
    habits = {habit.code: habit for habit in HABITS}
    picked = range(0, found.num_legal, max(1, found.num_legal // 20))
    for index in picked:
        plan = found.grid.plan(index)
        assert check_plan(there, plan) == ()
        assert not idle_fields(there, plan)
    for code, rejection in found.rejected.items():
        if code == "duplicate_of_simpler":
            assert idle_fields(there, rejection.example)
        elif code in habits:
            assert habits[code].axis not in there.axes
        else:
            broken = _broken(there, rejection.example)
            # a single plan is told more plainly why its layers cannot be dealt
            assert code in broken or (
                code == "layers_are_dealt" and "more_stages_than_layers" in broken
            )


@settings(max_examples=50, deadline=None)
@given(scenarios())
def test_a_space_in_parts_is_the_space(there):
    whole = enumerate_plans(there)
    parts = list(enumerate_parts(there, most_candidates=0))
    assert sum(part.num_candidates for part in parts) == whole.num_candidates
    assert [plan for part in parts for plan in part.grid] == list(whole.grid)
    counts: dict[str, int] = {}
    for part in parts:
        for code, rejection in part.rejected.items():
            counts[code] = counts.get(code, 0) + rejection.count
    assert counts == {code: rejection.count for code, rejection in whole.rejected.items()}


def _broken(there, plan: Plan) -> set[str]:
    """Rules broken by a plan whose derived degrees may be zero, as in an example."""
    raised = {name: max(1, getattr(plan, name)) for name in ("dp", "dp_shard", "num_micro_batches")}
    plan = complete_plan(
        there,
        framework=plan.framework,
        **{name: getattr(plan, name) for name in _FREE},
        **raised,
    )
    return {v.code for v in check_plan(there, plan)}


_FREE = (
    "tp",
    "sp",
    "pp",
    "vpp",
    "schedule",
    "cp",
    "cp_comm",
    "ep",
    "etp",
    "dp_replicate",
    "zero",
    "micro_batch",
    "recompute",
    "recompute_layers",
    "offload",
    "split",
)


def _all_candidates(there, framework: Framework) -> PlanGrid:
    """The full product, built."""
    facts = facts_of(there)
    axes = axes_of(facts, framework=framework, pinned=there.axes)
    places = np.indices([len(axis) for axis in axes.values()]).reshape(len(axes), -1)
    columns = {
        name: np.array(values, dtype=np.int64)[place]
        for axis, place in zip(axes.values(), places, strict=True)
        for name, values in zip(axis.fields, axis.values, strict=True)
    }
    dp = facts.num_gpus // (columns["tp"] * columns["pp"] * columns["cp"])
    per_pass = np.maximum(dp * columns["micro_batch"], 1)
    return PlanGrid(
        framework=np.full(dp.shape, int(framework)),
        dp=dp,
        dp_shard=dp // columns["dp_replicate"],
        num_micro_batches=facts.global_batch // per_pass,
        **columns,
    )


@settings(max_examples=60, deadline=None)
@given(scenarios(pins=True))
def test_equals_brute_force(there):
    """Every rule asked about every candidate of the product, built in full."""
    (framework,) = (Framework[name.upper()] for name in there.frameworks)
    candidates = _all_candidates(there, framework)
    assume(len(candidates) <= 300_000)
    facts = facts_of(there)
    legal = np.ones(len(candidates), dtype=np.bool_)
    for rule in (*rules_of(framework), *habits_of(framework, there.axes)):
        legal &= rule.legal(facts, candidates)
    found = enumerate_plans(there)
    assert found.num_candidates == len(candidates)
    expected = candidates.take(legal)
    assert len(found.grid) == len(expected)
    for name in (*_FREE, "dp", "dp_shard", "num_micro_batches"):
        assert np.array_equal(getattr(found.grid, name), getattr(expected, name)), name


@settings(max_examples=40, deadline=None)
@given(scenarios(pins=True), st.randoms(use_true_random=False))
def test_one_plan_at_a_time_gives_the_same_verdict(there, random):
    (framework,) = (Framework[name.upper()] for name in there.frameworks)
    candidates = _all_candidates(there, framework)
    assume(len(candidates) <= 300_000)
    legal = set(enumerate_plans(there).grid)
    for _ in range(20):
        plan = candidates.plan(random.randrange(len(candidates)))
        usual = all(
            np.all(habit.legal(facts_of(there), PlanGrid.of([plan])))
            for habit in habits_of(framework, there.axes)
        )
        alone = not idle_fields(there, plan) and not check_plan(there, plan) and usual
        assert alone == (plan in legal)


@settings(max_examples=20, deadline=None)
@given(scenarios())
def test_same_order_each_time(there):
    first, again = enumerate_plans(there).grid, enumerate_plans(there).grid
    for name in _FREE:
        assert np.array_equal(getattr(first, name), getattr(again, name))


@settings(max_examples=30, deadline=None)
@given(scenarios())
def test_no_plan_twice(there):
    grid = enumerate_plans(there).grid
    assume(len(grid) <= 20_000)
    assert max(Counter(grid).values(), default=1) == 1
