"""Read a profile file: what ``meshplan calibrate`` wrote, or a person.

A profile is named by the path of its file or is the text of one itself, as a scenario file may
hold it and a page sends it. All that a file may hold is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from meshplan.errors import UserError, os_reason
from meshplan.inputs.blocks import KINDS
from meshplan.inputs.load.documents import parse_yaml, write_yaml
from meshplan.inputs.load.opening import is_there, read_bytes
from meshplan.inputs.load.presets import PRESETS
from meshplan.inputs.profile import ClusterProfile
from meshplan.inputs.vocabulary import unknown

__all__ = [
    "NUMBERS_OF_CLUSTER",
    "dump_profile",
    "is_number",
    "is_text",
    "profile_presets",
    "profile_text",
    "read_profile",
]

NUMBERS_OF_CLUSTER = tuple(
    f.name for f in fields(ClusterProfile) if f.name not in ("name", "sources")
)
"""What ``fitted`` may hold."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_BYTES, _MOST_VALUES = 16_000_000, 1_000_000
_OF_FILE = ("fitted", "fitted_by", "start", "covers", "band", "residuals", "runs")
_SPEEDS = ("gemm", "low_precision", "attention", "memory_bound", "scale_up", "scale_out")
_LEAST_SPEED, _MOST = 1e-6, 1e6
_MOST_WIDTH, _MOST_BAND_BYTES = 1e3, 1e12
"""Half widths of bands beyond which they say nothing: of a step in steps, of memory."""


@lru_cache(maxsize=1)
def profile_presets() -> dict[str, Any]:
    """The shipped profiles."""
    text = (PRESETS / "profiles.yaml").read_text("utf-8")
    presets: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return presets


def is_text(profile: str) -> bool:
    """Whether a profile is not named but given: the text of a profile file has lines."""
    return "\n" in profile


def read_profile(profile: str) -> Mapping[str, Any]:
    """Read a profile that is none of the shipped ones; a file may have changed since it was read.

    Args:
        profile: the path of a file, or the text of one.

    Raises:
        UserError: ``unknown_profile`` when there is no such file; ``profile_unreadable`` when it
            is no text, and as :func:`~meshplan.inputs.load.documents.parse_yaml` when it is no
            YAML; ``no_profile``, ``unknown_key``, ``bad_profile``, ``bad_band``,
            ``bad_coverage``, ``bad_residuals`` or ``bad_runs`` when it is not a profile.
    """
    if is_text(profile):
        return _parsed(profile.encode("utf-8", "replace"), where="profile")
    path = Path(profile)
    if not is_there(path) or path.is_dir():
        known = tuple(profile_presets()["clusters"])
        raise UserError.of("unknown_profile", where="profile", value=profile, allowed=known)
    try:
        data = read_bytes(path, most_bytes=_MOST_BYTES)
    except OSError as error:
        raise _unreadable(profile, os_reason(error)) from error
    return _parsed(data, where=profile)


def dump_profile(entry: Mapping[str, Any]) -> str:
    """Write what a profile file holds: a line for each run, where it fits on one."""
    return write_yaml(_plain(entry), leaves_in_line=True)


def profile_text(given: str | Mapping[str, Any]) -> str:
    """The text of a profile that is given itself, in the one way in which we write it.

    Raises:
        UserError: as :func:`read_profile`.
    """
    entry = read_profile(given.strip() + "\n" if isinstance(given, str) else dump_profile(given))
    return dump_profile(entry)


def _plain(value: Any) -> Any:
    """Values without what their mappings know of the file that they come from."""
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    return [_plain(own) for own in value] if isinstance(value, list) else value


def _unreadable(where: str, reason: str) -> UserError:
    return UserError.of("profile_unreadable", where=where, os_reason=reason)


@lru_cache(maxsize=16)
def _parsed(data: bytes, *, where: str) -> Mapping[str, Any]:
    """Read what a profile file holds and check its keys and numbers."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(where, os_reason(error)) from error
    limits = {"most_bytes": _MOST_BYTES, "most_values": _MOST_VALUES}
    entry = _plain(parse_yaml(text, origin=where, **limits))
    fitted = entry.get("fitted") if isinstance(entry, dict) else None
    if not isinstance(fitted, dict):
        raise UserError.of("no_profile", where=where)
    for key in entry:
        if key not in _OF_FILE:
            raise unknown("unknown_key", where=f"{where}: {key}", value=str(key), names=_OF_FILE)
    for key, value in fitted.items():
        _check_number(key, value, where=f"{where}: fitted.{key}")
    _check_start(entry.get("start"), where=f"{where}: start")
    _check_band(entry.get("band"), where=f"{where}: band")
    _check_covers(entry.get("covers"), where=f"{where}: covers")
    if entry.get("residuals") is not None or entry.get("runs") is not None:
        _check_runs(entry, where=where)
    checked: Mapping[str, Any] = entry
    return checked


def is_number(value: Any) -> bool:
    """Whether a value read from a file is a number, which a switch is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_runs(entry: Mapping[str, Any], *, where: str) -> None:
    """Check what a profile file says of measured runs, which shipped profiles have none of."""
    from meshplan.inputs.load.residuals import check_held, check_residuals

    check_residuals(entry.get("residuals"), where=f"{where}: residuals")
    check_held(entry.get("runs"), where=f"{where}: runs")


def _check_number(key: Any, value: Any, *, where: str) -> None:
    if key not in NUMBERS_OF_CLUSTER:
        raise unknown("unknown_key", where=where, value=str(key), names=NUMBERS_OF_CLUSTER)
    least = _LEAST_SPEED if key in _SPEEDS else 0.0
    most = 1.0 if key == "stall_share" else _MOST
    if not is_number(value) or not least <= value <= most:
        raise UserError.of("bad_profile", where=where, value=value, least=least, most=most)


def _check_start(start: Any, *, where: str) -> None:
    """Check which shipped profile a calibration began from, where a file says so."""
    known = tuple(profile_presets()["clusters"])
    if start is not None and start not in known:
        raise UserError.of("unknown_profile", where=where, value=start, allowed=known)


def _check_band(band: Any, *, where: str) -> None:
    """Check the band of a profile file, which may have none."""
    if band is None:
        return
    allowed = tuple(profile_presets()["defaults"]["band"])
    if not isinstance(band, dict):
        raise UserError.of("bad_band", where=where, value=band, allowed=allowed)
    for key, value in band.items():
        most = _MOST_BAND_BYTES if key == "memory_fixed_bytes" else _MOST_WIDTH
        if key not in allowed or not is_number(value) or not 0 <= value <= most:
            raise UserError.of("bad_band", where=f"{where}.{key}", value=value, allowed=allowed)


def _check_covers(covers: Any, *, where: str) -> None:
    """Check which kinds of block the runs of a profile file had, by chip family."""
    if covers is None:
        return
    if not isinstance(covers, dict):
        raise UserError.of("bad_coverage", where=where, value=covers, allowed=KINDS)
    for family, kinds in covers.items():
        wrong = (
            [kind for kind in kinds if kind not in KINDS] if isinstance(kinds, list) else [kinds]
        )
        if wrong:
            at = f"{where}.{family}"
            raise UserError.of("bad_coverage", where=at, value=wrong[0], allowed=KINDS)
