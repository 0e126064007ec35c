"""Branch and bound returns what an exhaustive exact search returns, on made-up numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.search.bound import select
from meshplan.search.objective import rank_keys
from meshplan.search.prospects import Values


class MadeUp:
    """Values on three levels; counts what is asked for."""

    def __init__(self, exact, closed, quick):
        self._exact, self._closed, self._quick = exact, closed, quick
        self.num_closed = self.num_exact = 0

    def quick(self, index):
        return self._quick[index]

    def closed(self, index):
        self.num_closed += len(index)
        return self._closed[index]

    def exact(self, index):
        self.num_exact += len(index)
        return self._exact[index]


def selected(exact, closed, quick, *, parts, field, family, top):
    """The selection, its values, and where they came from."""
    times = MadeUp(exact, closed, quick)
    values = Values(times, len(exact))
    everyone = np.arange(len(exact))
    found = select(
        values,
        among=everyone,
        ties=lambda index: (parts[index], field[index]),
        family=family,
        top=top,
    )
    return found, times


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
    quick = bound * (1.0 - draw(st.sampled_from([0.0, 0.01, 0.5])) * rng.random(n))
    exact = bound * (1.0 + gap * rng.random(n))
    exact[rng.random(n) < draw(st.sampled_from([0.0, 0.2]))] = np.inf
    parts = rng.integers(0, draw(st.integers(1, 6)), n)
    family = rng.integers(0, draw(st.integers(1, 30)), n)
    field = rng.permutation(n)
    return quick, bound, exact, parts, field, family, draw(st.integers(1, 8))


@settings(max_examples=300, deadline=None)
@given(spaces())
def test_pruned_equals_exhaustive(space):
    quick, bound, exact, parts, field, family, top = space
    found, times = selected(exact, bound, quick, parts=parts, field=field, family=family, top=top)
    assert found.index.tolist() == exhaustive(exact, parts, field, family, top)
    assert np.array_equal(found.value, exact[found.index])
    assert times.num_exact <= len(bound)


def test_pruning_leaves_most_plans_alone():
    rng = np.random.default_rng(1)
    closed = 1.0 + rng.random(100_000)
    _, times = selected(
        closed * 1.001,
        closed,
        closed * 0.98,
        parts=np.zeros(len(closed), dtype=np.int64),
        field=np.arange(len(closed)),
        family=rng.integers(0, 500, len(closed)),
        top=5,
    )
    assert times.num_closed < 10_000
    assert times.num_exact < 2_000


def test_fewer_families_than_asked_for_end_the_search_too():
    rng = np.random.default_rng(3)
    closed = 1.0 + rng.random(100_000)
    found, times = selected(
        closed,
        closed,
        closed,
        parts=np.zeros(len(closed), dtype=np.int64),
        field=np.arange(len(closed)),
        family=np.arange(len(closed)) % 2,
        top=5,
    )
    assert len(found.index) == 2
    assert times.num_exact < 500


@pytest.mark.parametrize("level", ["quick", "closed"])
def test_a_bound_above_the_exact_value_is_our_own_mistake(level):
    one, zero = np.array([1.0]), np.array([0])
    quick = one if level == "quick" else one * 0.8
    with pytest.raises(AssertionError, match="bound lies above"):
        selected(one * 0.9, one, quick, parts=zero, field=zero, family=zero, top=1)


def test_nothing_fits_gives_an_empty_selection():
    inf, one, zero = np.full(3, np.inf), np.ones(3), np.zeros(3, dtype=np.int64)
    found, _ = selected(inf, one, one, parts=zero, field=np.arange(3), family=zero, top=2)
    assert len(found.index) == 0
