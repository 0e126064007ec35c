"""What the names of kernels, annotations and process groups mean.

The patterns stand in ``presets/names.yaml``, each with its source.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from meshplan.diagnose.columns import HostKind
from meshplan.diagnose.records import Axis, CollectiveKind

__all__ = [
    "axis_of_kernel",
    "axis_of_purpose",
    "communicates",
    "copy_way",
    "element_bytes",
    "host_kind",
    "is_optimizer",
    "is_pass_kernel",
    "kind_of",
    "measure_constant",
    "product_precision",
    "rank_in_name",
    "step_name",
]

_FILE = Path(__file__).parent / "presets" / "names.yaml"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def _presets() -> dict[str, Any]:
    return cast(dict[str, Any], yaml.load(_FILE.read_text("utf-8"), Loader=_Loader))


@cache
def _patterns(section: str) -> tuple[tuple[re.Pattern[str], dict[str, str]], ...]:
    entries = _presets()[section]
    return tuple((re.compile(entry["pattern"], re.IGNORECASE), entry) for entry in entries)


def _first(section: str, name: str, key: str) -> str | None:
    for pattern, entry in _patterns(section):
        if pattern.search(name):
            return entry.get(key)
    return None


@cache
def _any_communication() -> re.Pattern[str]:
    parts = (f"(?:{entry['pattern']})" for entry in _presets()["communication"])
    return re.compile("|".join(parts), re.IGNORECASE)


def communicates(kernel: str) -> bool:
    """Whether a kernel moves data between devices, whatever library it is from."""
    return _any_communication().search(kernel) is not None


def axis_of_kernel(kernel: str) -> Axis | None:
    """The axis of a kernel that serves one axis alone; None for all others."""
    return cast("Axis | None", _first("communication", kernel, "axis"))


def kind_of(name: str) -> CollectiveKind:
    """The kind of collective that a kernel, an annotation or a metadata name speaks of."""
    return cast(CollectiveKind, _first("kinds", name, "kind") or "other")


@cache
def product_precision(kernel: str) -> str | None:
    """Number format of the matrix products of a kernel; None where the name states none."""
    return _first("precisions", kernel, "precision")


def copy_way(name: str) -> str:
    """From where to where a copy of this name goes."""
    return _first("copies", name, "way") or "other"


def axis_of_purpose(purpose: str) -> Axis | None:
    """The axis that the description of a process group names; None when it names none."""
    return cast("Axis | None", _first("groups", purpose, "axis"))


def host_kind(name: str) -> HostKind | None:
    """What the host is at in a range of this name; None when the name does not say."""
    return cast("HostKind | None", _first("host", name, "kind"))


def step_name(name: str) -> str | None:
    """The name if it marks a training step, None otherwise."""
    return name if any(p.search(name) for p, _ in _patterns("steps")) else None


def is_optimizer(kernel: str) -> bool:
    """Whether a kernel belongs to an optimizer step."""
    return any(pattern.search(kernel) for pattern, _ in _patterns("optimizer"))


@cache
def is_pass_kernel(kernel: str) -> bool:
    """Whether a kernel multiplies matrices or attends: work of a forward or backward pass."""
    return any(pattern.search(kernel) for pattern, _ in _patterns("passes"))


def rank_in_name(file: str) -> int | None:
    """The rank that the name of a file states; None when it states none."""
    for pattern, _ in _patterns("files"):
        match = pattern.search(file)
        if match is not None:
            return int(match[1])
    return None


@cache
def measure_constant(name: str) -> float:
    """A number of ``presets/measures.yaml``."""
    found = yaml.load((_FILE.parent / "measures.yaml").read_text("utf-8"), Loader=_Loader)
    return float(found[name]["value"])


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element of a type as PyTorch names it; None when it is not known."""
    return cast("int | None", _presets()["element_bytes"]["values"].get(dtype))
