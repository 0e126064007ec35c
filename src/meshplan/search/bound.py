"""Branch and bound: the same answer as an exhaustive exact search, from few exact evaluations.

Each plan has a lower bound of its value. Plans are evaluated exactly in the order of their bound;
a plan whose bound cannot beat what is already known is never evaluated. The known value of an
evaluated plan is at least its bound, which is asserted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.search.objective import rank_keys

__all__ = ["Selection", "select"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Evaluate = Callable[[IntArray], FloatArray]

_FIRST_BATCH = 16  # a call costs as much as the simulation of some tens of plans
_LARGEST_BATCH = 256
_ROUNDING = 1e-9
_Key = tuple[int, int, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the search picked.

    Attributes:
        index: the best plan of each of the best families, best first.
        value: their exact values.
        num_exact: how many plans were evaluated exactly.
    """

    index: IntArray
    value: FloatArray
    num_exact: int


class _Known:
    """Exact values so far; NaN where a plan was not evaluated."""

    def __init__(self, bound: FloatArray, evaluate: Evaluate) -> None:
        self.bound = bound
        self.value = np.full(len(bound), np.nan)
        self.num_exact = 0
        self._evaluate = evaluate

    def learn(self, index: IntArray) -> None:
        """Evaluate the plans among ``index`` that are not known yet."""
        new = index[np.isnan(self.value[index])]
        if not len(new):
            return
        value = self._evaluate(new)
        slack = _ROUNDING * np.abs(value)
        assert np.all(value >= self.bound[new] - slack), "a bound lies above the exact value"
        self.value[new] = value
        self.num_exact += len(new)


def _best_value(known: _Known, order: IntArray) -> float:
    """The smallest exact value of all plans, found in the order of their bounds."""
    best = np.inf
    start, batch = 0, _FIRST_BATCH
    while start < len(order) and known.bound[order[start]] < best:
        chosen = order[start : start + batch]
        chosen = chosen[known.bound[chosen] < best]
        known.learn(chosen)
        best = min(best, float(known.value[chosen].min()))
        start, batch = start + batch, min(2 * batch, _LARGEST_BATCH)
    return best


def select(
    *,
    bound: FloatArray,
    parts: IntArray,
    field: IntArray,
    family: IntArray,
    top: int,
    evaluate: Evaluate,
) -> Selection:
    """Pick the best plan of each of the ``top`` best families.

    Args:
        bound: lower bound of each plan's value, shape ``(num_plans,)``.
        parts: moving parts of each plan, see :func:`~meshplan.search.objective.complexity`.
        field: order of the plans by their fields.
        family: family of each plan.
        top: how many families to return.
        evaluate: gives the exact values of the plans at some positions. A plan may turn out to
            be impossible: its value is then infinite.

    Returns:
        The selection, equal to that of an exhaustive evaluation.
    """
    known = _Known(bound, evaluate)
    best = _best_value(known, np.lexsort((field, bound))) if len(bound) else np.inf
    if not np.isfinite(best):
        empty = np.empty(0, dtype=np.int64)
        return Selection(index=empty, value=np.empty(0), num_exact=known.num_exact)
    lower = rank_keys(bound, parts=parts, field=field, best=best)
    wanted = min(top, len(np.unique(family)))
    leaders: dict[int, tuple[_Key, int]] = {}
    order = lower.order()
    start, batch = 0, _FIRST_BATCH
    while start < len(order):
        worst = _worst_kept(leaders, wanted)
        chosen = order[start : start + batch]
        if worst is not None and lower.at(int(chosen[0])) >= worst:
            break
        open_ = [
            i for i in chosen.tolist() if _can_enter(lower.at(i), int(family[i]), leaders, worst)
        ]
        known.learn(np.array(open_, dtype=np.int64))
        _update(leaders, open_, known=known, parts=parts, field=field, family=family, best=best)
        start, batch = start + batch, min(2 * batch, _LARGEST_BATCH)
    winners = sorted(leaders.values())[:top]
    index = np.array([i for _, i in winners], dtype=np.int64)
    return Selection(index=index, value=known.value[index], num_exact=known.num_exact)


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
    evaluated: list[int],
    *,
    known: _Known,
    parts: IntArray,
    field: IntArray,
    family: IntArray,
    best: float,
) -> None:
    """Let evaluated plans take the lead of their families."""
    index = np.array(evaluated, dtype=np.int64)
    index = index[np.isfinite(known.value[index])]
    keys = rank_keys(known.value[index], parts=parts[index], field=field[index], best=best)
    for position, i in enumerate(index.tolist()):
        key, group = keys.at(position), int(family[i])
        if group not in leaders or key < leaders[group][0]:
            leaders[group] = (key, i)
