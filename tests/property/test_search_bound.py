"""Branch and bound returns what an exhaustive exact search returns, on made-up numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.search.bound import select
from meshplan.search.objective import rank_keys


def exhaustive(exact, parts, field, family, top):
    """Evaluate everything, sort by key, take the first plan of each family."""
    finite = np.flatnonzero(np.isfinite(exact))
    if not len(finite):
        return []
    best = exact[finite].min()
    keys = rank_keys(exact, parts=parts, field=field, best=best)
    picked, seen = [], set()
    for i in sorted(finite.tolist(), key=keys.at):
        if family[i] not in seen:
            seen.add(family[i])
            picked.append(i)
    return picked[:top]


@st.composite
def spaces(draw):
    n = draw(st.integers(1, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.001, 0.02, 0.5, 5.0]))
    gap = draw(st.sampled_from([0.0, 0.001, 0.3]))
    bound = 1.0 + spread * rng.random(n)
    if draw(st.booleans()):  # many equal values
        bound = np.round(bound, 2)
    exact = bound * (1.0 + gap * rng.random(n))
    exact[rng.random(n) < draw(st.sampled_from([0.0, 0.2]))] = np.inf
    parts = rng.integers(0, draw(st.integers(1, 6)), n)
    family = rng.integers(0, draw(st.integers(1, 30)), n)
    field = rng.permutation(n)
    return bound, exact, parts, field, family, draw(st.integers(1, 8))


@settings(max_examples=300, deadline=None)
@given(spaces())
def test_pruned_equals_exhaustive(space):
    bound, exact, parts, field, family, top = space
    found = select(
        bound=bound, parts=parts, field=field, family=family, top=top, evaluate=lambda i: exact[i]
    )
    assert found.index.tolist() == exhaustive(exact, parts, field, family, top)
    assert np.array_equal(found.value, exact[found.index])
    assert found.num_exact <= len(bound)


def test_pruning_leaves_most_plans_alone():
    rng = np.random.default_rng(1)
    bound = 1.0 + rng.random(100_000)
    found = select(
        bound=bound,
        parts=np.zeros(len(bound), dtype=np.int64),
        field=np.arange(len(bound)),
        family=rng.integers(0, 500, len(bound)),
        top=5,
        evaluate=lambda i: bound[i] * 1.001,
    )
    assert found.num_exact < 2_000


def test_fewer_families_than_asked_for_end_the_search_too():
    rng = np.random.default_rng(3)
    bound = 1.0 + rng.random(100_000)
    asked: list[int] = []

    def evaluate(index):
        asked.extend(index.tolist())
        return bound[index]

    found = select(
        bound=bound,
        parts=np.zeros(len(bound), dtype=np.int64),
        field=np.arange(len(bound)),
        family=np.arange(len(bound)) % 2,
        top=5,
        evaluate=evaluate,
    )
    assert len(found.index) == 2
    assert len(asked) < 500


def test_a_bound_above_the_exact_value_is_our_own_mistake():
    one = np.array([1.0])
    zero = np.array([0])
    with pytest.raises(AssertionError, match="bound lies above"):
        select(bound=one, parts=zero, field=zero, family=zero, top=1, evaluate=lambda i: one * 0.9)


def test_nothing_fits_gives_an_empty_selection():
    inf = np.full(3, np.inf)
    zero = np.zeros(3, dtype=np.int64)
    found = select(
        bound=np.ones(3), parts=zero, field=np.arange(3), family=zero, top=2, evaluate=lambda i: inf
    )
    assert len(found.index) == 0
