"""Devices that are not in the list, or differ from it: mappings in a scenario file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.cluster import Device
from meshplan.inputs.job import Precision
from meshplan.inputs.load.bounds import bounded
from meshplan.inputs.load.fields import (
    BANDWIDTH,
    FLOP_RATE,
    MEMORY,
    TEXT,
    Field,
    Kind,
    count,
    located,
    object_schema,
    read_fields,
)
from meshplan.inputs.load.presets import device_names, load_device
from meshplan.inputs.load.quantity import (
    bandwidth_text,
    flop_rate_text,
    memory_text,
)
from meshplan.inputs.vocabulary import shown

__all__ = ["DEVICE", "dump_device"]

_PEAKS = tuple(
    Field(name=p, kind=bounded(FLOP_RATE, "peak")) for p in (*get_args(Precision), "tf32", "fp32")
)
_SAID = "scenario (stated by the user)"
# what a device that is built on no other must say
_NEEDED = ("name", "memory", "usable_memory", "memory_bandwidth", "peaks", "num_sms")


def _read_peaks(value: Any, where: str) -> dict[str, float]:
    problems = ProblemList()
    read = read_fields(value, _PEAKS, where=where, problems=problems)
    problems.raise_if_any()
    return read


def _read_sources(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise UserError.of("not_a_mapping", where=where, value=shown(value))
    return {str(k): v for k, v in value.items()}


DEVICE_FIELDS = (
    Field(name="base", kind=TEXT),
    Field(name="name", kind=TEXT),
    Field(name="vendor", kind=TEXT),
    Field(name="architecture", kind=TEXT),
    Field(name="memory", kind=bounded(MEMORY, "device_memory")),
    Field(name="usable_memory", kind=bounded(MEMORY, "device_memory")),
    Field(name="memory_bandwidth", kind=bounded(BANDWIDTH, "memory_bandwidth")),
    Field(name="peaks", kind=Kind(read=_read_peaks, schema=object_schema(_PEAKS))),
    Field(name="num_sms", kind=count(most=100_000)),
    Field(name="kernel_table", kind=TEXT),
    Field(name="sources", kind=Kind(read=_read_sources, schema={"type": "object"})),
)
_RECORD_NAMES = {
    "memory": "memory_bytes",
    "usable_memory": "usable_bytes",
    "memory_bandwidth": "memory_bandwidth_bytes_per_s",
    "peaks": "peak_flop_per_s",
}

_ROOFLINE = ("peak_flop_per_s", "memory_bandwidth_bytes_per_s")


def _read_device(value: Any, where: str) -> Device:
    """Read a preset name, or a mapping that changes one (``base``) or stands alone."""
    if isinstance(value, str):
        return load_device(value, where=where)
    problems = ProblemList()
    given = read_fields(value, DEVICE_FIELDS, where=where, problems=problems)
    base = None
    if "base" in given:
        try:
            base = load_device(given["base"], where=located(value, "base", f"{where}.base"))
        except UserError as error:
            problems.extend(error)
    elif isinstance(value, Mapping):
        for name in _NEEDED:
            if value.get(name) is None:
                problems.add("missing_key", where=f"{where}.{name}")
    if "kernel_table" in given and given["kernel_table"] not in (known := _kernel_tables()):
        at, named = located(value, "kernel_table", f"{where}.kernel_table"), given["kernel_table"]
        problems.add("unknown_choice", where=at, value=named, allowed=known)
    problems.raise_if_any()
    return _checked(_changed(base, given) if base else _alone(given), where=where)


def _kernel_tables() -> tuple[str, ...]:
    """Measured tables of kernels, which are those of the presets."""
    found = {load_device(name).kernel_table for name in device_names()}
    return tuple(sorted(table for table in found if table is not None))


def _changed(base: Device, given: dict[str, Any]) -> Device:
    changes = {_RECORD_NAMES.get(k, k): v for k, v in given.items() if k not in ("base", "sources")}
    if "memory_bytes" in changes and "usable_bytes" not in changes:
        # what driver and runtime keep stays the same
        changes["usable_bytes"] = changes["memory_bytes"] - (base.memory_bytes - base.usable_bytes)
    if "peak_flop_per_s" in changes:
        changes["peak_flop_per_s"] = {**base.peak_flop_per_s, **changes["peak_flop_per_s"]}
    if any(changes.get(name, getattr(base, name)) != getattr(base, name) for name in _ROOFLINE):
        # kernels of another roofline are not those that were measured, but in proportion to them
        changes.setdefault("kernel_table", None)
    stated = {name: _SAID for name in changes if name not in ("name", "peak_flop_per_s")}
    stated |= {f"peak_flop_per_s.{name}": _SAID for name in given.get("peaks", ())}
    sources = given.get("sources") or {**base.sources, **stated}
    return replace(base, **changes, sources=sources)


def _alone(given: dict[str, Any]) -> Device:
    values = {_RECORD_NAMES.get(k, k): v for k, v in given.items()}
    values.setdefault("vendor", "other")
    values.setdefault("architecture", "other")
    values.setdefault("kernel_table", None)
    values.setdefault("sources", {name: _SAID for name in _RECORD_NAMES.values()})
    return Device(**values)


def _checked(device: Device, *, where: str) -> Device:
    if not 0 < device.usable_bytes <= device.memory_bytes:
        raise UserError.of(
            "usable_above_memory",
            where=f"{where}.usable_memory",
            value=memory_text(device.usable_bytes),
            total_memory_bytes=device.memory_bytes,
        )
    if not {"bf16", "fp16"} & set(device.peak_flop_per_s):
        # what is not in the job's precision runs in one of these, attention among it
        raise UserError.of("missing_key", where=f"{where}.peaks.bf16")
    return device


DEVICE = Kind(
    read=_read_device,
    schema={"anyOf": [{"type": "string"}, object_schema(DEVICE_FIELDS)]},
)


def dump_device(device: Device) -> str | dict[str, Any]:
    """The preset's name where it is the preset, or a mapping that reads back the same."""
    plain = replace(device, usd_per_hour=None)
    try:
        if load_device(device.name) == plain:
            return device.name
    except UserError:
        pass
    made: dict[str, Any] = {
        "name": device.name,
        "vendor": device.vendor,
        "architecture": device.architecture,
        "memory": memory_text(device.memory_bytes),
        "usable_memory": memory_text(device.usable_bytes),
        "memory_bandwidth": bandwidth_text(device.memory_bandwidth_bytes_per_s),
        "peaks": {name: flop_rate_text(peak) for name, peak in device.peak_flop_per_s.items()},
        "num_sms": device.num_sms,
        "sources": dict(device.sources),
    }
    if device.kernel_table is not None:
        made["kernel_table"] = device.kernel_table
    return made
