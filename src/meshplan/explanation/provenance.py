"""Which constants stand behind a prediction, and where each comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshplan.cost.surfaces import constants
from meshplan.inputs.cluster import Device
from meshplan.inputs.load.framework import memory_behaviour
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.scenario import Scenario
from meshplan.provenance import Kind, Sourced
from meshplan.record import record

__all__ = ["Constant", "constants_of"]

_DEVICE_FIGURES = (
    ("memory_bytes", "bytes"),
    ("usable_bytes", "bytes"),
    ("memory_bandwidth_bytes_per_s", "bytes/s"),
    ("num_sms", ""),
    ("usd_per_hour", "USD/h"),
)


@record
class Constant:
    """A number that is neither the user's nor worked out.

    Attributes:
        area: what it belongs to: ``device``, ``network``, ``memory``, ``time`` or ``profile``.
        name: what it is.
        value: the number.
        unit: its unit; empty for a count or a ratio.
        kind: how it came to be.
        source: where it can be looked up.
    """

    area: str
    name: str
    value: float
    unit: str
    kind: Kind
    source: str


def constants_of(scenario: Scenario, framework: str) -> tuple[Constant, ...]:
    """List the constants that a prediction for one framework rests on.

    Args:
        scenario: model, cluster, job and profile.
        framework: name of the framework, such as ``megatron``.
    """
    profile = profile_of(scenario, framework)
    memory = memory_behaviour(framework, scenario.variant)
    return (
        *_device(scenario.cluster.device, scenario.job.precision),
        *_network(scenario),
        *(_constant("memory", name, sourced) for name, sourced in sorted(memory.sources.items())),
        *(_constant("time", name, sourced) for name, sourced in sorted(constants().items())),
        *(
            _constant("profile", name, sourced)
            for record in (profile.framework, profile.cluster)
            for name, sourced in sorted(record.sources.items())
        ),
    )


def _constant(area: str, name: str, sourced: Sourced) -> Constant:
    return Constant(
        area=area,
        name=name,
        value=float(sourced.value),
        unit=sourced.unit,
        kind=sourced.kind,
        source=sourced.source,
    )


def _device(device: Device, precision: str) -> Iterator[Constant]:
    figures = [(name, unit, getattr(device, name)) for name, unit in _DEVICE_FIGURES]
    peak = device.peak_flop_per_s.get(precision)
    figures.append((f"peak_flop_per_s.{precision}", "flop/s", peak))
    for name, unit, value in figures:
        if value is None:
            continue
        source = device.sources.get(name) or device.sources.get(name.partition(".")[0])
        yield Constant(
            area="device",
            name=name,
            value=float(value),
            unit=unit,
            kind=_kind_in(source),
            source=source or "scenario",
        )


def _kind_in(source: str | None) -> Kind:
    """The kind that a device's source ends in; derived when it joins several."""
    kinds = re.findall(r"\((published|measured|fitted|derived|assumed)\)", source or "")
    if len(kinds) == 1:
        kind: Kind = kinds[0]
        return kind
    return "derived" if kinds else "assumed"


def _network(scenario: Scenario) -> Iterator[Constant]:
    for tier in scenario.cluster.tiers:
        for name, unit in (("bandwidth_bytes_per_s", "bytes/s"), ("latency_s", "s")):
            yield Constant(
                area="network",
                name=f"{tier.name}.{name}",
                value=float(getattr(tier, name)),
                unit=unit,
                kind="assumed" if scenario.cluster.assumptions else "published",
                source="scenario.assumptions" if scenario.cluster.assumptions else "scenario",
            )
