"""Read the measured runs that a profile file holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.profile import MOST_WEIGHT, SIZES, MeasuredRun, Residuals
from meshplan.inputs.vocabulary import FRAMEWORKS, RECOMPUTES

__all__ = [
    "LAYOUT",
    "check_residuals",
    "is_number",
    "layout_of",
    "may_be",
    "parse_residuals",
    "plain_layout",
]

LAYOUT = ("framework", *SIZES, "sp", "recompute", "zero")
"""What a file says of the layout of a run."""
_KEYS = (*LAYOUT, "weight")
_OWN_KEYS = ("reach", "runs")


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
        wrong = [key for key in _KEYS if not may_be(key, own.get(key))]
        wrong += [str(key) for key in own if key not in _KEYS]
        if wrong:
            at = f"{where}.runs[{place}].{wrong[0]}"
            raise UserError.of("bad_residuals", where=at, value=own.get(wrong[0]), allowed=_KEYS)


def parse_residuals(residuals: Mapping[str, Any] | None) -> Residuals | None:
    """Read the measured runs of a checked profile file."""
    if residuals is None:
        return None
    runs = tuple(layout_of(run, weight=float(run["weight"])) for run in residuals["runs"])
    return Residuals(reach=float(residuals["reach"]), runs=runs)


def layout_of(run: Mapping[str, Any], *, weight: float = 0.0) -> MeasuredRun:
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


def is_number(value: Any) -> bool:
    """Whether a value read from a file is a number, which a switch is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def may_be(key: str, value: Any) -> bool:
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
