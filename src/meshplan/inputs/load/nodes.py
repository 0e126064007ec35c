"""Kinds of machine by name: what one host holds and how hosts are joined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

import yaml

from meshplan.inputs.cluster import Fabric
from meshplan.inputs.load.network import pcie_bytes_per_s, read_fabric
from meshplan.inputs.load.presets import PRESETS, Loader, device_preset
from meshplan.inputs.load.quantity import parse_bandwidth, parse_memory
from meshplan.inputs.vocabulary import squeeze, unknown
from meshplan.provenance import Sourced
from meshplan.record import record

__all__ = ["Node", "find_node", "load_node", "node_names"]

_BLOCK = re.compile(r"^  (\S[^:\n]*):\n((?:    .*\n|\n)+)", re.MULTILINE)


_INNER_FABRIC: Mapping[str, Fabric] = {"nvidia": "nvlink", "amd": "xgmi", "google": "ici"}


@record
class Node:
    """One kind of machine.

    Attributes:
        name: preset name, such as ``dgx-h100``.
        aliases: other names it goes by.
        device: name of its device.
        unit_gpus: devices in one of what the name stands for: a host, a rack, a pod, a system.
        gpus_per_node: devices of one host.
        domain_gpus: devices that the scale-up links join; 1 for none.
        domain_bytes_per_s: those links, one device, one direction [bytes/s].
        domain_fabric: technology of those links.
        in_network_reduction: their switches add all-reduce contributions.
        node_bytes_per_s: one device to the rest of its host beyond the domain [bytes/s]; 0 where
            the domain covers the host.
        node_fabric: technology of that level.
        socket_gpus: devices at one processor socket of a host with two or more; 0 where the level
            above joins all devices of the host alike.
        socket_bytes_per_s: what all devices of a socket together reach across it, one direction
            [bytes/s].
        nics_per_node: network cards of one host.
        nic_bytes_per_s: rate of one card, one direction [bytes/s].
        fabric: technology of the network between hosts.
        leaf_gpus: devices that one layer of switches joins.
        host_memory_bytes: memory of one host [bytes].
        host_link_bytes_per_s: one device to its host, one direction [bytes/s].
        host_time_factor: host time per launch over that of the usual x86 processor.
        profile: name of the measured cluster profile, ``default`` where there is none.
        figures: every number with its source, by name; words stand in the same blocks.
    """

    name: str
    aliases: tuple[str, ...]
    device: str
    unit_gpus: int
    gpus_per_node: int
    domain_gpus: int
    domain_bytes_per_s: float
    domain_fabric: Fabric
    in_network_reduction: bool
    node_bytes_per_s: float
    node_fabric: Fabric
    socket_gpus: int
    socket_bytes_per_s: float
    nics_per_node: int
    nic_bytes_per_s: float
    fabric: Fabric
    leaf_gpus: int
    host_memory_bytes: float
    host_link_bytes_per_s: float
    host_time_factor: float
    profile: str
    figures: Mapping[str, Sourced]


def node_names() -> tuple[str, ...]:
    """Names of all kinds of machine, in the order of the list."""
    return tuple(_blocks())


def find_node(name: str, *, device: str = "") -> Node | None:
    """Return the kind of machine that a name means, None when there is none.

    Args:
        name: its name or an alias.
        device: name of a device that stands in it instead of its own.
    """
    found = _index().get(squeeze(name))
    return None if found is None else _node(found, device)


def load_node(name: str, *, device: str = "", where: str = "cluster.node") -> Node:
    """Return the kind of machine that a name means, with another device in it if one is named.

    Raises:
        UserError: ``unknown_node`` with the names that come close.
    """
    node = find_node(name, device=device)
    if node is None:
        raise unknown("unknown_node", where=where, value=name, names=node_names())
    return node


@lru_cache(maxsize=1)
def _file() -> tuple[dict[str, str], str]:
    text = (PRESETS / "nodes.yaml").read_text("utf-8")
    head, _, body = text.partition("\nnodes:\n")
    return yaml.load(head, Loader)["sources"], body


@lru_cache(maxsize=1)
def _blocks() -> dict[str, str]:
    return {match[1]: match[0] for match in _BLOCK.finditer(_file()[1])}


@lru_cache(maxsize=1)
def _index() -> dict[str, str]:
    index: dict[str, str] = {}
    for name, block in _blocks().items():
        for alias in (name, *_aliases(block)):
            assert index.get(squeeze(alias), name) == name, f"{alias} names two machines"
            index[squeeze(alias)] = name
    return index


def _aliases(block: str) -> tuple[str, ...]:
    match = re.search(r"^    aliases: \[(.*)\]$", block, re.MULTILINE)
    return tuple(alias.strip() for alias in match[1].split(",")) if match else ()


@cache
def _node(name: str, device: str) -> Node:
    block = _blocks()[name]
    data = yaml.load(block, Loader)[name]
    figures = _figures(data["figures"])
    value = {key: figure.value for key, figure in figures.items()}
    (fabric,) = {part["fabric"] for part in data["figures"] if "fabric" in part}
    preset = device_preset(device or data["device"])
    slot = pcie_bytes_per_s(preset.pcie_generation)
    gpus, domain = int(value["gpus_per_node"]), int(value["domain_gpus"])
    if not preset.link_bytes_per_s:
        domain = 1
    inner: Fabric = _INNER_FABRIC.get(preset.device.vendor, "other")
    return Node(
        name=name,
        aliases=_aliases(block),
        device=preset.device.name,
        unit_gpus=int(value.get("unit_gpus", gpus)),
        gpus_per_node=gpus,
        domain_gpus=domain,
        domain_bytes_per_s=preset.link_bytes_per_s if domain > 1 else 0.0,
        domain_fabric=inner,
        in_network_reduction=bool(value.get("in_network_reduction", 0.0)),
        node_bytes_per_s=value.get("node_link", slot) if domain < gpus else 0.0,
        node_fabric=inner if "node_link" in value else "pcie",
        socket_gpus=int(value.get("socket_gpus", 0)),
        socket_bytes_per_s=value.get("socket_link", 0.0),
        nics_per_node=int(value["nics_per_node"]),
        nic_bytes_per_s=value["nic"],
        fabric=read_fabric(fabric, where=f"nodes.{name}"),
        leaf_gpus=int(value["leaf_gpus"]),
        host_memory_bytes=value["host_memory"],
        host_link_bytes_per_s=value.get("host_link", slot),
        host_time_factor=value.get("host_time_factor", 1.0),
        profile=data.get("profile", "default"),
        figures=figures,
    )


def _figures(parts: Iterable[Mapping[str, Any]]) -> dict[str, Sourced]:
    """Figures of a list of blocks; each block names the source of all its figures."""
    sources = _file()[0]
    figures: dict[str, Sourced] = {}
    for part in parts:
        for key, given in part.items():
            if key not in ("source", "kind", "fabric"):
                number, unit = _value(key, given)
                figures[key] = Sourced(
                    value=number, unit=unit, source=sources[part["source"]], kind=part["kind"]
                )
    return figures


def _value(key: str, given: Any) -> tuple[float, str]:
    if key in ("nic", "host_link", "node_link", "socket_link"):
        return parse_bandwidth(given), "bytes/s"
    if key == "host_memory":
        return parse_memory(given), "bytes"
    return float(given), "1" if key == "host_time_factor" else "count"
