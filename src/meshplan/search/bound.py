"""Branch and bound: the same answer as an exhaustive exact search, from few exact evaluations.

Each plan has a lower bound of its value. A few plans with low bounds are evaluated exactly; what
they reach rules out all plans whose quick bound is too high. The rest get the closed form and are
evaluated exactly in its order; a plan whose bound cannot beat what is already known is never
evaluated. That bounds hold is asserted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.search.objective import TIE, rank_keys
from meshplan.search.prospects import Values

__all__ = ["Selection", "select"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_FIRST_BATCH = 8  # a call costs as much as the simulation of some plans
_LARGEST_BATCH = 256
_FEW_PLANS = 64
_SEEDS_PER_FAMILY = 4
_SLACK = 1e-9
_Key = tuple[int, int, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    parts: IntArray,
    field: IntArray,
    family: IntArray,
    top: int,
) -> Selection:
    """Pick the best plan of each of the ``top`` best families.

    Args:
        values: what is known of each plan's value; it learns what is worked out.
        among: positions of the plans that compete.
        parts: moving parts of each plan, see :func:`~meshplan.search.objective.complexity`.
        field: order of the plans by their fields.
        family: family of each plan.
        top: how many families to return.

    Returns:
        The selection, equal to that of an exhaustive evaluation of those that compete.
    """
    wanted = min(top, int(np.count_nonzero(np.bincount(family[among]))))
    open_ = _open(values, among, family=family, wanted=wanted)
    values.tighten(open_)
    best = _best_value(values, open_[np.lexsort((field[open_], values.bound[open_]))])
    if not np.isfinite(best):
        empty = np.empty(0, dtype=np.int64)
        return Selection(index=empty, value=np.empty(0))
    lower = rank_keys(values.bound[open_], parts=parts[open_], field=field[open_], best=best)
    leaders: dict[int, tuple[_Key, int]] = {}
    order = lower.order()
    start, batch = 0, _FIRST_BATCH
    while start < len(order):
        worst = _worst_kept(leaders, wanted)
        chosen = order[start : start + batch]
        if worst is not None and lower.at(int(chosen[0])) >= worst:
            break
        able = [
            int(open_[i])
            for i in chosen.tolist()
            if _can_enter(lower.at(i), int(family[open_[i]]), leaders, worst)
        ]
        index = np.array(able, dtype=np.int64)
        values.learn(index)
        _update(leaders, index, values=values, parts=parts, field=field, family=family, best=best)
        start, batch = start + batch, min(2 * batch, _LARGEST_BATCH)
    index = np.array([i for _, i in sorted(leaders.values())[:top]], dtype=np.int64)
    return Selection(index=index, value=values.exact[index])


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
    seeds: list[IntArray] = []
    for one in np.argsort(least, kind="stable")[: 2 * wanted].tolist():
        members = among[family[among] == one]
        few = min(_SEEDS_PER_FAMILY, len(members))
        if few:
            seeds.append(members[np.argpartition(values.bound[members], few - 1)[:few]])
    values.tighten(np.concatenate(seeds))
    leaders = [members[np.argmin(values.bound[members])] for members in seeds]
    leaders.sort(key=lambda i: float(values.bound[i]))
    limit = float(values.learn(np.array(leaders[:wanted])).max())
    return among[values.bound[among] <= limit * (1.0 + TIE) * (1.0 + _SLACK)]


def _best_value(values: Values, order: IntArray) -> float:
    """The smallest exact value of all plans, found in the order of their bounds."""
    best = np.inf
    bound = values.bound[order]
    start, batch = 0, _FIRST_BATCH
    while start < len(order) and bound[start] < best:
        chosen = order[start : start + batch][bound[start : start + batch] < best]
        best = min(best, float(values.learn(chosen).min()))
        start, batch = start + batch, min(2 * batch, _LARGEST_BATCH)
    return best


def _worst_kept(leaders: dict[int, tuple[_Key, int]], top: int) -> _Key | None:
    """The key that a new family must beat; None while there is still room."""
    if len(leaders) < top:
        return None
    return sorted(key for key, _ in leaders.values())[top - 1]


def _can_enter(
    lower: _Key, family: int, leaders: dict[int, tuple[_Key, int]], worst: _Key | None
) -> bool:
    """Whether a plan could still lead its family, and its family still enter."""
    leader = leaders.get(family)
    return (leader is None or lower < leader[0]) and (worst is None or lower < worst)


def _update(
    leaders: dict[int, tuple[_Key, int]],
    index: IntArray,
    *,
    values: Values,
    parts: IntArray,
    field: IntArray,
    family: IntArray,
    best: float,
) -> None:
    """Let evaluated plans take the lead of their families."""
    index = index[np.isfinite(values.exact[index])]
    keys = rank_keys(values.exact[index], parts=parts[index], field=field[index], best=best)
    for position, i in enumerate(index.tolist()):
        key, group = keys.at(position), int(family[i])
        if group not in leaders or key < leaders[group][0]:
            leaders[group] = (key, i)
