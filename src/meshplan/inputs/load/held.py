"""Read and write the runs that a profile file was fitted to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.load.residuals import LAYOUT, is_number, layout_of, may_be, plain_layout
from meshplan.inputs.profile import HeldRun

__all__ = ["check_held", "parse_held", "plain_held"]

_NUMBERS = {
    "step_time_s": (1e-9, 1e30),
    "error": (-1e2, 1e2),
    "per_wait": (0.0, 1e30),
    "parts_share": (0.0, 1e3),
}
"""Least and most of each number of a run."""
_KEYS = ("run", "job", "layout", *_NUMBERS, "slopes")
_JOB = re.compile(r"[0-9a-f]{16}")
_NUM_SLOPES, _MOST_SLOPE = 7, 1e2


def check_held(runs: Any, *, where: str) -> None:
    """Check the runs that a profile file says it was fitted to; it may name none.

    Raises:
        UserError: ``bad_runs`` at the first value that is none of a run.
    """
    if runs is None:
        return
    if not isinstance(runs, list):
        raise UserError.of("bad_runs", where=where, value=runs, allowed=_KEYS)
    for place, run in enumerate(runs):
        at = f"{where}[{place}]"
        _check_keys(run, _KEYS, _may_be, where=at)
        _check_keys(run["layout"], LAYOUT, may_be, where=f"{at}.layout")


def _check_keys(
    given: Any, keys: tuple[str, ...], may_be: Callable[[str, Any], bool], *, where: str
) -> None:
    own = given if isinstance(given, dict) else {}
    wrong = [key for key in keys if not may_be(key, own.get(key))]
    wrong += [str(key) for key in own if key not in keys]
    if wrong:
        at = f"{where}.{wrong[0]}"
        raise UserError.of("bad_runs", where=at, value=own.get(wrong[0]), allowed=keys)


def parse_held(runs: list[Mapping[str, Any]] | None) -> tuple[HeldRun, ...]:
    """Read the runs of a checked profile file."""
    return tuple(
        HeldRun(
            name=run["run"],
            job=run["job"],
            layout=layout_of(run["layout"]),
            slopes=tuple(map(float, run["slopes"])),
            **{key: float(run[key]) for key in _NUMBERS},
        )
        for run in runs or ()
    )


def plain_held(run: HeldRun) -> dict[str, Any]:
    """A run as a profile file holds it."""
    return {
        "run": run.name,
        "job": run.job,
        "step_time_s": run.step_time_s,
        "layout": plain_layout(run.layout),
        "error": round(run.error, 6),
        "per_wait": float(f"{run.per_wait:.4g}"),
        "parts_share": round(run.parts_share, 6),
        "slopes": [round(slope, 4) for slope in run.slopes],
    }


def _may_be(key: str, value: Any) -> bool:
    """Whether a run may have a value."""
    if key in _NUMBERS:
        least, most = _NUMBERS[key]
        return is_number(value) and least <= value <= most
    match key:
        case "run":
            return isinstance(value, str)
        case "job":
            return isinstance(value, str) and _JOB.fullmatch(value) is not None
        case "slopes":
            return (
                isinstance(value, list)
                and len(value) == _NUM_SLOPES
                and all(is_number(each) and abs(each) <= _MOST_SLOPE for each in value)
            )
    return isinstance(value, dict)  # the layout, whose keys are checked by themselves
