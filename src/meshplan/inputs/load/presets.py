"""Devices by name.

The figures stand in ``presets/devices_*.yaml``, each in a block that names its source. Only the
block of the device that is asked for is parsed, so that a plan does not pay for the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_args

import yaml

from meshplan.inputs.cluster import Device
from meshplan.inputs.job import Precision
from meshplan.inputs.load.quantity import parse_bandwidth, parse_memory
from meshplan.inputs.vocabulary import squeeze, unknown
from meshplan.provenance import Sourced
from meshplan.record import record
from meshplan.units import GIB

__all__ = ["DevicePreset", "device_names", "device_preset", "load_device"]

_FILES = ("devices_nvidia.yaml", "devices_other.yaml")
_BLOCK = re.compile(r"^  (\S[^:\n]*):\n((?:    .*\n|\n)+)", re.MULTILINE)
_PRECISIONS = (*get_args(Precision), "tf32", "fp32")
_VENDOR_WORDS = (
    "nvidia",
    "amdinstinct",
    "instinct",
    "amd",
    "geforce",
    "tesla",
    "google",
    "huawei",
    "intel",
)
_MEMORY_SIZE = re.compile(r"\b(\d+)\s*G(?:i)?B\b", re.IGNORECASE)
_MEMORY_WORDS = re.compile(r"\b(?:\d+\s*G(?:i)?B|HBM\d\w*|GDDR\d\w*)\b", re.IGNORECASE)

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PRESETS = Path(__file__).parents[1] / "presets"


@record
class DevicePreset:
    """A device of the list with what only the list knows.

    Attributes:
        device: the record that the cost model reads.
        aliases: other names it goes by.
        node: kind of machine that ``64x<name>`` builds.
        link_bytes_per_s: scale-up links of one device, one direction [bytes/s]; 0 for none.
        pcie_generation: generation of its x16 slot.
        total_memory_bytes: what the driver reports as total [bytes].
        context_bytes: what the runtime takes before the first tensor [bytes].
        figures: every figure with its source, by name.
    """

    device: Device
    aliases: tuple[str, ...]
    node: str
    link_bytes_per_s: float
    pcie_generation: int
    total_memory_bytes: float
    context_bytes: float
    figures: Mapping[str, Sourced]


def load_device(name: str, *, where: str = "cluster.device") -> Device:
    """Return the device that a name means, in any case and under any of its aliases.

    Raises:
        UserError: ``unknown_device`` with the names that come close.
    """
    return device_preset(name, where=where).device


def device_names() -> tuple[str, ...]:
    """Names of all devices, in the order of the list."""
    return tuple(_blocks())


def device_preset(name: str, *, where: str = "cluster.device") -> DevicePreset:
    """Return a device with the figures behind it.

    Raises:
        UserError: ``unknown_device`` with the names that come close.
    """
    found = _resolve(name)
    if found is None:
        raise unknown(
            "unknown_device",
            where=where,
            value=name,
            names=device_names(),
            near_to=_index_names(),
        )
    return _preset(found)


def _resolve(name: str) -> str | None:
    index = _index()
    for key in _without_vendor(name):
        if key in index:
            return index[key]
    sizes = [int(size) for size in _MEMORY_SIZE.findall(name)]
    for key in _without_vendor(_MEMORY_WORDS.sub("", name)):
        if key in index and _agrees(index[key], sizes):
            return index[key]
    return None


def _without_vendor(name: str) -> Iterator[str]:
    key = squeeze(name)
    yield key
    for word in _VENDOR_WORDS:
        if key.startswith(word):
            yield key.removeprefix(word)


def _agrees(name: str, sizes: list[int]) -> bool:
    """Whether the memory that was named is the device's, give or take the label's rounding."""
    memory_gib = _preset(name).device.memory_bytes / GIB
    return all(abs(size - memory_gib) <= 0.05 * memory_gib for size in sizes)


@lru_cache(maxsize=1)
def _blocks() -> dict[str, tuple[str, str]]:
    """Name of each device to its YAML text and the file it stands in."""
    blocks = {}
    for file in _FILES:
        for match in _BLOCK.finditer(_device_part(file)):
            blocks[match[1]] = (match[0], file)
    return blocks


@lru_cache(maxsize=len(_FILES))
def _text(file: str) -> str:
    return (PRESETS / file).read_text(encoding="utf-8")


def _device_part(file: str) -> str:
    return _text(file).partition("\ndevices:\n")[2]


@lru_cache(maxsize=len(_FILES))
def _sources(file: str) -> dict[str, str]:
    part = _text(file).partition("\ndevices:\n")[0]
    sources: dict[str, str] = yaml.load(part, Loader)["sources"]
    return sources


@lru_cache(maxsize=1)
def _index() -> dict[str, str]:
    """Squeezed names and aliases to the name."""
    index: dict[str, str] = {}
    for name, (block, _) in _blocks().items():
        for alias in (name, *_aliases(block)):
            assert index.get(squeeze(alias), name) == name, f"{alias} names two devices"
            index[squeeze(alias)] = name
    return index


def _index_names() -> tuple[str, ...]:
    return tuple(
        alias for name, (block, _) in _blocks().items() for alias in (name, *_aliases(block))
    )


def _aliases(block: str) -> tuple[str, ...]:
    match = re.search(r"^    aliases: (\[.*\])$", block, re.MULTILINE)
    return tuple(str(alias) for alias in yaml.load(match[1], Loader)) if match else ()


@cache
def _preset(name: str) -> DevicePreset:
    block, file = _blocks()[name]
    data = yaml.load(block, Loader)[name]
    figures = dict(_figures(data["figures"], _sources(file)))
    value = {key: figure.value for key, figure in figures.items()}
    usable = value["total_memory"] - value["context"]
    device = Device(
        name=name,
        vendor=data.get("vendor", "nvidia"),
        architecture=data["architecture"],
        memory_bytes=value["memory"],
        usable_bytes=usable,
        memory_bandwidth_bytes_per_s=value["bandwidth"],
        peak_flop_per_s={p: value[p] for p in _PRECISIONS if p in value},
        num_sms=int(value["sms"]),
        kernel_table=data.get("kernel_table"),
        sources=_device_sources(figures),
    )
    return DevicePreset(
        device=device,
        aliases=_aliases(block),
        node=data["node"],
        link_bytes_per_s=value.get("link", 0.0),
        pcie_generation=int(value["pcie"]),
        total_memory_bytes=value["total_memory"],
        context_bytes=value["context"],
        figures=figures,
    )


_UNITS = {
    "memory": "bytes",
    "total_memory": "bytes",
    "context": "bytes",
    "bandwidth": "bytes/s",
    "link": "bytes/s",
    "sms": "count",
    "pcie": "generation",
}


def _figures(
    blocks: list[dict[str, Any]], sources: Mapping[str, str]
) -> Iterator[tuple[str, Sourced]]:
    for block in blocks:
        source = sources[block["source"]]
        for key, raw in block.items():
            if key in ("source", "kind"):
                continue
            unit = _UNITS.get(key, "flop/s")
            yield (
                key,
                Sourced(value=_value(raw, unit), unit=unit, source=source, kind=block["kind"]),
            )


def _value(raw: Any, unit: str) -> float:
    if unit == "bytes":
        return parse_memory(raw)
    if unit == "bytes/s":
        return parse_bandwidth(raw)
    # through text, so that 66.9 becomes 66.9e12 and not its neighbour
    return float(f"{raw}e12") if unit == "flop/s" else float(raw)


def _device_sources(figures: Mapping[str, Sourced]) -> dict[str, str]:
    """Attribute of the device to where it comes from, with how it came to be."""
    names = {
        "memory_bytes": "memory",
        "memory_bandwidth_bytes_per_s": "bandwidth",
        "num_sms": "sms",
        **{f"peak_flop_per_s.{p}": p for p in _PRECISIONS if p in figures},
    }
    said = {name: f"{figures[key].source} ({figures[key].kind})" for name, key in names.items()}
    total, context = figures["total_memory"], figures["context"]
    said["usable_bytes"] = (
        f"total memory: {total.source} ({total.kind}); "
        f"less the runtime's own: {context.source} ({context.kind})"
    )
    return said
