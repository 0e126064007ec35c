"""Read the measured runs that a profile file holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.load.profile_file import is_number
from meshplan.inputs.profile import MOST_WEIGHT, SIZES, HeldRun, MeasuredRun, Residuals
from meshplan.inputs.vocabulary import FRAMEWORKS, RECOMPUTES

__all__ = [
    "LAYOUT",
    "check_held",
    "check_residuals",
    "parse_held",
    "parse_residuals",
    "plain_held",
    "plain_layout",
]

LAYOUT = ("framework", *SIZES, "sp", "recompute", "zero")
"""What a file says of the layout of a run."""
_KEYS = (*LAYOUT, "weight")
_OWN_KEYS = ("reach", "runs")
_NUMBERS = {
    "step_time_s": (1e-9, 1e30),
    "error": (-1e2, 1e2),
    "per_wait": (0.0, 1e30),
    "parts_share": (0.0, 1e3),
}
"""Least and most of each number of a run."""
_OF_RUN = ("run", "job", "layout", *_NUMBERS, "slopes")
_JOB = re.compile(r"[0-9a-f]{16}")
_NUM_SLOPES, _MOST_SLOPE = 7, 1e2


def check_residuals(residuals: Any, *, where: str) -> None:
    """Check the measured runs of a profile file, which may have none.

    Raises:
        UserError: ``bad_residuals`` at the first value that is none of a run.
    """
    if residuals is None:
        return
    given = residuals if isinstance(residuals, dict) else {}
    for key in given:
        if key not in _OWN_KEYS:
            at = f"{where}.{key}"
            raise UserError.of("bad_residuals", where=at, value=given[key], allowed=_OWN_KEYS)
    reach: Any = given.get("reach")
    runs = given.get("runs")
    if not is_number(reach) or not 0 < reach < 1e3:
        raise UserError.of("bad_residuals", where=f"{where}.reach", value=reach, allowed=("> 0",))
    if not isinstance(runs, list):
        raise UserError.of("bad_residuals", where=f"{where}.runs", value=runs, allowed=_KEYS)
    for place, run in enumerate(runs):
        own = run if isinstance(run, dict) else {}
        wrong = [key for key in _KEYS if not _may_be(key, own.get(key))]
        wrong += [str(key) for key in own if key not in _KEYS]
        if wrong:
            at = f"{where}.runs[{place}].{wrong[0]}"
            raise UserError.of("bad_residuals", where=at, value=own.get(wrong[0]), allowed=_KEYS)


def parse_residuals(residuals: Mapping[str, Any] | None) -> Residuals | None:
    """Read the measured runs of a checked profile file."""
    if residuals is None:
        return None
    runs = tuple(_layout_of(run, weight=float(run["weight"])) for run in residuals["runs"])
    return Residuals(reach=float(residuals["reach"]), runs=runs)


def _layout_of(run: Mapping[str, Any], *, weight: float = 0.0) -> MeasuredRun:
    """Read the layout of a checked run."""
    return MeasuredRun(
        framework=run["framework"],
        sizes=tuple(float(run[size]) for size in SIZES),
        sp=run["sp"],
        recompute=run["recompute"],
        zero=run["zero"],
        weight=weight,
    )


def plain_layout(run: MeasuredRun) -> dict[str, Any]:
    """The layout of a run as a profile file holds it: whole numbers read as such."""
    return {
        "framework": run.framework,
        **{name: int(value) for name, value in zip(SIZES, run.sizes, strict=True)},
        "sp": run.sp,
        "recompute": run.recompute,
        "zero": run.zero,
    }


def _may_be(key: str, value: Any) -> bool:
    """Whether a run may have a value."""
    match key:
        case "framework":
            return isinstance(value, str) and value in FRAMEWORKS
        case "recompute":
            return isinstance(value, str) and all(part in RECOMPUTES for part in value.split("+"))
        case "sp":
            return isinstance(value, bool)
        case "zero":
            return is_number(value) and value in (0, 1, 2, 3)
        case "weight":
            return is_number(value) and bool(abs(value) <= MOST_WEIGHT)
    return is_number(value) and bool(1 <= value < 1e12)


def check_held(runs: Any, *, where: str) -> None:
    """Check the runs that a profile file says it was fitted to; it may name none.

    Raises:
        UserError: ``bad_runs`` at the first value that is none of a run.
    """
    if runs is None:
        return
    if not isinstance(runs, list):
        raise UserError.of("bad_runs", where=where, value=runs, allowed=_OF_RUN)
    for place, run in enumerate(runs):
        at = f"{where}[{place}]"
        _check_keys(run, _OF_RUN, _may_be_held, where=at)
        _check_keys(run["layout"], LAYOUT, _may_be, where=f"{at}.layout")


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
            layout=_layout_of(run["layout"]),
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


def _may_be_held(key: str, value: Any) -> bool:
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
