"""Branch and bound: the same answer as an exhaustive exact search, from few exact evaluations.

Each plan has a lower bound of its value. A few plans with low bounds are evaluated exactly; what
they reach rules out all plans whose quick bound is too high. The rest get the closed form, and
those that could still enter the answer by it are evaluated exactly, some at a time, until none
could. That bounds hold is asserted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from meshplan.record import record
from meshplan.search.objective import TIE, rank_keys
from meshplan.search.prospects import Values

__all__ = ["Selection", "Ties", "select"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_BATCH = 48  # evaluating so many exactly costs twice as much as evaluating one
_FEW_PLANS = 64
_SEEDS_PER_FAMILY = 2
_SLACK = 1e-9

Ties = Callable[[IntArray], tuple[IntArray, IntArray]]
"""Moving parts of the plans at some positions (:func:`~meshplan.search.objective.complexity`), and
their order by their fields."""


@record
class Selection:
    """What the search picked.

    Attributes:
        index: the best plan of each of the best families, best first.
        value: their exact values.
    """

    index: IntArray
    value: FloatArray


def select(
    values: Values,
    *,
    among: IntArray,
    ties: Ties,
    family: IntArray,
    top: int,
) -> Selection:
    """Pick the best plan of each of the ``top`` best families.

    Args:
        values: what is known of each plan's value; it learns what is worked out.
        among: positions of the plans that compete.
        ties: what settles ties.
        family: family of each plan.
        top: how many families to return.

    Returns:
        The selection, equal to that of an exhaustive evaluation of those that compete.
    """
    wanted = min(top, int(np.count_nonzero(np.bincount(family[among]))))
    open_ = _open(values, among, family=family, wanted=wanted)
    values.tighten(open_)
    parts, field = ties(open_)
    race = _Race(values, open_, parts=parts, field=field, family=family[open_])
    while True:
        leaders, able = race.standing(wanted)
        if not len(able):
            index = open_[leaders]
            return Selection(index=index, value=values.exact[index])
        # in parts of about equal size
        num_parts = max(1, round(len(able) / _BATCH))
        values.learn(open_[able[: -(-len(able) // num_parts)]])


def _open(values: Values, among: IntArray, *, family: IntArray, wanted: int) -> IntArray:
    """The plans whose quick bounds leave them a chance.

    Let ``limit`` be the largest exact value of plans from as many families as are wanted. A plan
    that is slower by a tie or more stands behind each of these families, whatever its moving
    parts.
    """
    if len(among) <= _FEW_PLANS:
        return among
    least = np.full(int(family.max()) + 1, np.inf)
    np.minimum.at(least, family[among], values.bound[among])
    likely = np.argsort(least, kind="stable")[: 2 * wanted]
    seeds: list[IntArray] = []
    for members in _members(among, family, likely):
        few = min(_SEEDS_PER_FAMILY, len(members))
        if few:
            lowest = members[np.argpartition(values.bound[members], few - 1)[:few]]
            seeds.append(lowest[np.argsort(values.bound[lowest], kind="stable")])
    leaders = np.array([own[0] for own in seeds])
    rest = np.concatenate([own[1:] for own in seeds])
    rest = rest[np.argsort(values.bound[rest], kind="stable")]
    values.learn(np.concatenate([leaders, rest])[: max(_BATCH, len(leaders))])
    fastest = np.sort([np.nanmin(values.exact[own]) for own in seeds])
    limit = float(fastest[wanted - 1])
    return among[values.bound[among] <= limit * (1.0 + TIE) * (1.0 + _SLACK)]


def _members(among: IntArray, family: IntArray, some: IntArray) -> list[IntArray]:
    """The plans of some families, family by family, each in the order given."""
    code = np.full(int(family.max()) + 1, len(some), dtype=np.uint16)
    code[some] = np.arange(len(some))
    own = code[family[among]]
    ends = np.cumsum(np.bincount(own, minlength=len(some)))[: len(some)]
    return np.split(among[np.argsort(own, kind="stable")], ends)[:-1]


class _Race:
    """Plans that could enter the answer, by what is known of each.

    Args:
        values: what is known.
        index: positions of the plans there; the other arrays are those of these plans.
        parts: moving parts.
        field: order by the fields.
        family: families.
    """

    def __init__(
        self, values: Values, index: IntArray, *, parts: IntArray, field: IntArray, family: IntArray
    ) -> None:
        self._values, self._index = values, index
        self._parts, self._field = parts, field
        _, self._family = np.unique(family, return_inverse=True)

    def standing(self, wanted: int) -> tuple[IntArray, IntArray]:
        """Who leads, and who could still change that, the most promising first.

        A plan whose value is not known stands where its bound would put it, so that it can only
        fall behind.

        Returns:
            Places among the plans: the best plan that is known of each of the best families, best
            first, and those that need their exact value.
        """
        bound, exact = self._values.bound[self._index], self._values.exact[self._index]
        unknown, finite = np.isnan(exact), np.isfinite(exact)
        best = float(np.min(exact, where=finite, initial=np.inf))
        start = best if np.isfinite(best) else 1.0
        keys = rank_keys(bound, parts=self._parts, field=self._field, best=start)
        order = keys.order()
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        leader = np.full(int(self._family.max(initial=-1)) + 1, len(order))
        np.minimum.at(leader, self._family[finite], rank[finite])
        leading = np.sort(leader)[:wanted]
        able = unknown & (rank < leader[self._family]) & (rank < leading[-1])
        # values count from the best one: who could be it comes first, whatever its moving parts
        faster = np.flatnonzero(unknown & (bound < best))
        others = np.flatnonzero(able & ~(bound < best))
        first = faster[np.argsort(bound[faster], kind="stable")]
        then = others[np.argsort(rank[others])]
        return order[leading[leading < len(order)]], np.concatenate([first, then])
