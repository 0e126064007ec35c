"""Checks on the numbers a person gives to a rule of thumb."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshplan.errors import ProblemList, UserError

__all__ = ["check_numbers", "check_times"]


def check_numbers(
    *,
    positive: dict[str, float] | None = None,
    not_negative: dict[str, float] | None = None,
    counts: dict[str, float] | None = None,
) -> None:
    """Refuse what is no finite number in range, all at once.

    Args:
        positive: numbers that must be above 0, by argument name.
        not_negative: numbers that must be at least 0.
        counts: whole numbers that must be at least 1.

    Raises:
        UserError: one problem for each number out of range.
    """
    problems = ProblemList()
    for name, value in (positive or {}).items():
        if not (math.isfinite(value) and value > 0):
            problems.add("number_not_positive", where=name, value=value)
    for name, value in (not_negative or {}).items():
        if not (math.isfinite(value) and value >= 0):
            problems.add("number_negative", where=name, value=value)
    for name, value in (counts or {}).items():
        if not (math.isfinite(value) and value >= 1 and value == int(value)):
            problems.add("number_not_a_count", where=name, value=value)
    problems.raise_if_any()


def check_times(*, where: str, times_s: Sequence[float]) -> None:
    """Refuse an empty list of times, and times that are not positive.

    Raises:
        UserError: when there is nothing to compare, or for each time out of range.
    """
    if not len(times_s):
        raise UserError.of("list_empty", where=where)
    check_numbers(positive={f"{where}[{i}]": float(time) for i, time in enumerate(times_s)})
