"""Read the memory behaviour of frameworks from its preset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, get_type_hints

import yaml

from meshplan.inputs.framework import (
    FrameworkMemory,
    LowPrecision,
    MemoryConstants,
    OptimizerState,
)
from meshplan.inputs.load.presets import PRESETS
from meshplan.inputs.variants import split_variant
from meshplan.provenance import Sourced

__all__ = [
    "framework_memory_names",
    "load_framework_memory",
    "load_memory_constants",
    "memory_behaviour",
]

_NOT_FIGURES = ("name", "low_precision", "sources")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@lru_cache(maxsize=1)
def _preset() -> dict[str, Any]:
    file = PRESETS / "framework_memory.yaml"
    content: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    return content


def framework_memory_names() -> tuple[str, ...]:
    """All behaviours in the preset: the frameworks and their named variants."""
    return tuple(_preset()["frameworks"])


@lru_cache(maxsize=32)
def load_framework_memory(name: str, settings: tuple[str, ...] = ()) -> FrameworkMemory:
    """Load the behaviour of a framework or of a variant such as ``megatron-2022``.

    A variant names what it ``extends`` and lists only what differs; so does a setting.
    """
    figures: dict[str, Sourced] = {}
    low: dict[str, LowPrecision] = {}
    changes = [_preset()["settings"][setting] for setting in settings]
    for entry in [*_inheritance(name), *changes]:
        figures |= _figures(entry.get("figures", ()))
        for key, blocks in entry.get("low_precision", {}).items():
            values = {part: figure.value for part, figure in _figures(blocks).items()}
            known = low.get(key)
            low[key] = (
                LowPrecision(name=key, **values) if known is None else _changed(known, values)
            )
    types = get_type_hints(FrameworkMemory)
    expected = {f.name for f in fields(FrameworkMemory)} - set(_NOT_FIGURES)
    assert figures.keys() == expected, (name, expected ^ figures.keys())
    converted: dict[str, Any] = {key: types[key](s.value) for key, s in figures.items()}
    return FrameworkMemory(name=name, low_precision=low, sources=figures, **converted)


def _changed(known: LowPrecision, values: Mapping[str, float]) -> LowPrecision:
    """A number format with what a setting says of it."""
    return LowPrecision(
        name=known.name,
        input_bytes=values.get("input_bytes", known.input_bytes),
        weight_copy_bytes=values.get("weight_copy_bytes", known.weight_copy_bytes),
    )


def memory_behaviour(framework: str, variant: str = "") -> FrameworkMemory:
    """Pick the behaviour of a framework, or of the variant that a scenario names.

    A variant of another framework, or one without a memory behaviour of its own, changes nothing.

    Args:
        framework: name of the framework in lower case.
        variant: ``Scenario.variant``, which may name settings of the job.
    """
    preset = _preset()
    named, switched = split_variant(variant)
    known = preset["settings"]
    # in the order of the preset, whatever the order in which they are named
    settings = tuple(s for s in known if s in switched and known[s]["framework"] == framework)
    entry = preset["variants"].get(named, named)
    if entry in preset["frameworks"] and framework in _ancestors(entry):
        return load_framework_memory(entry, settings)
    return load_framework_memory(framework, settings)


@lru_cache(maxsize=1)
def load_memory_constants() -> MemoryConstants:
    """Load what holds for every framework: optimizers, adapters, 4-bit weights."""
    content = _preset()
    optimizers = {}
    for name, blocks in content["optimizers"].items():
        values = {key: figure.value for key, figure in _figures(blocks).items()}
        optimizers[name] = OptimizerState(name=name, **values)
    common = {key: figure.value for key, figure in _figures(content["constants"]).items()}
    return MemoryConstants(optimizers=optimizers, **common)


def _inheritance(name: str) -> list[Mapping[str, Any]]:
    """Entries from the oldest ancestor down to the one that is named."""
    entry = _preset()["frameworks"][name]
    parent = entry.get("extends")
    return [*(_inheritance(parent) if parent else []), entry]


def _ancestors(name: str) -> tuple[str, ...]:
    """The entry itself, what it extends, and the framework that it stands for."""
    entry = _preset()["frameworks"][name]
    parent = entry.get("extends")
    own = (name, entry.get("framework", name))
    return own if parent is None or "framework" in entry else own + _ancestors(parent)


def _figures(blocks: Iterable[Mapping[str, Any]]) -> dict[str, Sourced]:
    """Figures of a list of blocks; each block names the source of all its figures."""
    sources = _preset()["sources"]
    figures = {}
    for block in blocks:
        source, kind = sources[block["source"]], block["kind"]
        for key, value in block.items():
            if key not in ("source", "kind"):
                figures[key] = Sourced(
                    value=float(value), unit=_unit(key), source=source, kind=kind
                )
    return figures


def _unit(name: str) -> str:
    if not name.endswith("_bytes"):
        return "1"
    whole = ("workspace_bytes", "communicator_bytes", "norm_stat_bytes")
    return "bytes" if name in whole else "bytes per element"
