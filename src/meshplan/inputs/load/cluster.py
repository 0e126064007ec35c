"""Clusters: the ``64xH100`` shorthand, and mappings with any number of levels.

What the user does not say is taken from the kind of machine that the device usually sits in, and
every such thing is listed in ``Cluster.assumptions``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.cluster import Cluster, Device, Tier
from meshplan.inputs.load.network import (
    Network,
    fabric_label,
    fabric_latency_s,
    parse_network,
    switch_hop_s,
)
from meshplan.inputs.load.nodes import Node, find_node, load_node, node_names
from meshplan.inputs.load.presets import device_names, device_preset
from meshplan.inputs.vocabulary import shown, squeeze, unknown
from meshplan.record import record
from meshplan.units import format_bandwidth, format_memory

__all__ = [
    "MOST_GPUS",
    "Draft",
    "build_tiers",
    "cut_tiers",
    "draft_cluster",
    "draft_of_device",
    "parse_cluster",
]

MOST_GPUS = 10_000_000
_COUNTED = re.compile(r"\s*(?P<num>[-+]?[0-9][0-9.]*)\s*(?:[xX*×]\s*|\s)(?P<of>[^@]*?[^@\s])\s*")


def parse_cluster(text: str, *, where: str = "cluster") -> Cluster:
    """Read ``64xH100``, ``8 x dgx-h100``, ``dgx-h100`` or ``48xH100@25GbE``.

    The number counts what is named after it: devices, machines, racks. A name alone is one of
    it. ``@`` says what joins the nodes; see :func:`~meshplan.inputs.load.network.parse_network`.

    Raises:
        UserError: with all that is wrong.
    """
    return draft_cluster(text, where=where).build()


@record
class Draft:
    """A cluster before its levels are laid out.

    Attributes:
        name: what the cluster is called.
        node: the kind of machine.
        num_gpus: devices in all; the last machine may be part filled.
        said: what the user stated and is no assumption: ``device``, ``node``, ``network``,
            ``host_memory``.
        device: the accelerator where it is not the machine's own.
    """

    name: str
    node: Node
    num_gpus: int
    said: frozenset[str]
    device: Device | None = None

    def with_network(self, network: Network) -> Draft:
        """Join the machines by these cards."""
        node = replace(
            self.node,
            nics_per_node=network.nics_per_node,
            nic_bytes_per_s=network.nic_bytes_per_s,
            fabric=network.fabric or self.node.fabric,
        )
        said = self.said | {"network"} if network.fabric else self.said
        return replace(self, node=node, said=said)

    def with_gpus_per_node(self, gpus: int) -> Draft:
        """Put another number of devices into each machine; cards go with them."""
        old = self.node
        if gpus == old.gpus_per_node:
            return replace(self, said=self.said | {"gpus_per_node"})
        domain = gpus if old.domain_gpus == old.gpus_per_node else old.domain_gpus
        node = replace(
            old,
            gpus_per_node=gpus,
            domain_gpus=min(domain, gpus) if old.domain_gpus <= old.gpus_per_node else domain,
            nics_per_node=max(1, round(old.nics_per_node * gpus / old.gpus_per_node)),
        )
        return replace(self, node=node, said=self.said | {"gpus_per_node"})

    def build(self) -> Cluster:
        """Lay out the levels."""
        node = _taken_part(self.node, num_gpus=self.num_gpus)
        return Cluster(
            name=self.name,
            device=self.device or device_preset(node.device).device,
            num_gpus=self.num_gpus,
            gpus_per_node=min(node.gpus_per_node, self.num_gpus),
            tiers=build_tiers(node, num_gpus=self.num_gpus),
            host_memory_bytes=node.host_memory_bytes,
            host_link_bytes_per_s=node.host_link_bytes_per_s,
            host_time_factor=node.host_time_factor,
            profile=node.profile if "node" in self.said else "default",
            assumptions=_assumptions(node, whole=self.node, num_gpus=self.num_gpus, said=self.said),
            of_size=self._build_of_size,
        )

    def _build_of_size(self, num_gpus: int) -> Cluster:
        """Lay out the same kind of cluster with another number of devices."""
        match = _COUNTED.fullmatch(self.name.partition("@")[0])
        name = ""
        if match:
            count, rest = divmod(int(match["num"]) * num_gpus, self.num_gpus)
            name = "" if rest else f"{count}{self.name[match.end('num') :]}"
        return replace(self, num_gpus=num_gpus, name=name).build()


def draft_cluster(text: str, *, where: str) -> Draft:
    """Read the shorthand; see :func:`parse_cluster`."""
    head, at, tail = text.partition("@")
    problems = ProblemList()
    network = None
    draft = None
    try:
        draft = _of_name(head, name=text.strip(), where=where)
    except UserError as error:
        problems.extend(error)
    if at:
        try:
            network = parse_network(tail, where=where)
        except UserError as error:
            problems.extend(error)
    problems.raise_if_any()
    assert draft is not None
    return draft.with_network(network) if network is not None else draft


def _of_name(head: str, *, name: str, where: str) -> Draft:
    node = find_node(head)
    if node is not None:
        said = frozenset({"node"})
        return Draft(name=name, node=node, num_gpus=node.unit_gpus, said=said)
    match = _COUNTED.fullmatch(head)
    number, thing = (match["num"], match["of"]) if match else ("1", head.strip())
    if match is None and not re.search(r"[A-Za-z]", thing):
        allowed = ("64xH100", "8xdgx-h100", "gb200-nvl72")
        raise UserError.of("bad_cluster", where=where, value=shown(name), allowed=allowed)
    count = _count(number, where=where, value=name)
    node = find_node(thing)
    if node is not None:
        num_gpus = _limited(count * node.unit_gpus, where=where)
        return Draft(name=name, node=node, num_gpus=num_gpus, said=frozenset({"node"}))
    return draft_of_device(thing, num_gpus=count, name=name, where=where)


def draft_of_device(device: str, *, num_gpus: int, name: str, where: str) -> Draft:
    """Devices in the kind of machine that they usually sit in.

    Raises:
        UserError: ``unknown_cluster`` when it is neither a device nor a machine.
    """
    try:
        preset = device_preset(device, where=where)
    except UserError:
        names = (*device_names(), *node_names())
        raise unknown("unknown_cluster", where=where, value=device, names=names) from None
    exact = squeeze(device) == squeeze(preset.device.name)
    said = frozenset({"device"} if exact else ())
    node = load_node(preset.node, device=preset.device.name)
    return Draft(name=name, node=node, num_gpus=num_gpus, said=said)


def _count(number: str, *, where: str, value: str) -> int:
    if len(number) > 12:
        raise UserError.of("number_too_large", where=where, value=shown(value), most=MOST_GPUS)
    if not number.lstrip("+").isdecimal() or int(number) < 1:
        raise UserError.of("bad_cluster_count", where=where, value=shown(value))
    return _limited(int(number), where=where)


def _limited(num_gpus: int, *, where: str) -> int:
    if num_gpus > MOST_GPUS:
        raise UserError.of("number_too_large", where=where, value=num_gpus, most=MOST_GPUS)
    return num_gpus


def _taken_part(node: Node, *, num_gpus: int) -> Node:
    """Cut a rack-scale domain to what a job over several racks takes of each.

    Groups of a power of two stay inside a rack where jobs take a power of two of it, such as 16 of
    the 18 trays of an NVL72 [1]_. A job of whole racks takes whole racks.

    References:
        .. [1] NVIDIA, Megatron-Bridge performance recipes: 64 of 72 devices of a rack.
    """
    whole = node.domain_gpus
    part = 1 << (max(whole, 1).bit_length() - 1)
    racks = whole > node.gpus_per_node and num_gpus > whole
    cut = racks and num_gpus % whole != 0 and num_gpus % part == 0
    return replace(node, domain_gpus=part) if cut else node


def build_tiers(node: Node, *, num_gpus: int) -> tuple[Tier, ...]:
    """Levels from the scale-up domain to the spine, cut to the size of the cluster."""
    levels = _scale_up(node)
    per_gpu = node.nics_per_node * node.nic_bytes_per_s / node.gpus_per_node
    latency = fabric_latency_s(node.fabric)
    for name, size, hops in (("leaf", node.leaf_gpus, 0), ("spine", max(MOST_GPUS, num_gpus), 2)):
        levels.append(
            Tier(
                name=name,
                fabric=node.fabric,
                num_gpus=size,
                bandwidth_bytes_per_s=per_gpu,
                latency_s=latency + hops * switch_hop_s(),
                nics_per_node=node.nics_per_node,
            )
        )
    return cut_tiers(levels, num_gpus=num_gpus)


def _scale_up(node: Node) -> list[Tier]:
    levels = []
    if node.domain_gpus > 1:
        levels.append(
            Tier(
                name=str(node.domain_fabric),
                fabric=node.domain_fabric,
                num_gpus=node.domain_gpus,
                bandwidth_bytes_per_s=node.domain_bytes_per_s,
                latency_s=fabric_latency_s(node.domain_fabric),
                in_network_reduction=node.in_network_reduction,
            )
        )
    split = node.domain_gpus <= node.socket_gpus < node.gpus_per_node
    inside = node.socket_gpus if split else node.gpus_per_node
    if node.domain_gpus < inside:
        levels.append(
            Tier(
                name="socket" if split else "node",
                fabric=node.node_fabric,
                num_gpus=inside,
                bandwidth_bytes_per_s=node.node_bytes_per_s,
                latency_s=fabric_latency_s(node.node_fabric),
            )
        )
    if split:
        # the devices of a socket share its link to the other one
        levels.append(
            Tier(
                name="node",
                fabric="socket",
                num_gpus=node.gpus_per_node,
                bandwidth_bytes_per_s=node.socket_bytes_per_s / node.socket_gpus,
                latency_s=fabric_latency_s("socket"),
            )
        )
    return levels


def cut_tiers(levels: Sequence[Tier], *, num_gpus: int) -> tuple[Tier, ...]:
    """Keep the levels that the cluster reaches; the last one spans it, sizes grow strictly."""
    kept: list[Tier] = []
    for tier in levels:
        size = min(tier.num_gpus, num_gpus)
        if not kept or size > kept[-1].num_gpus:
            kept.append(replace(tier, num_gpus=size))
    assert kept[-1].num_gpus == num_gpus, "the outermost level spans the cluster"
    return tuple(kept)


def _assumptions(
    node: Node, *, whole: Node, num_gpus: int, said: frozenset[str]
) -> tuple[tuple[str, str], ...]:
    """What the user did not say and the cost depends on."""
    made = []
    if not said & {"device", "node"}:
        made.append(("cluster_device", node.device))
    if "node" not in said:
        made.append(("cluster_node", node.name))
    if not said & {"node", "gpus_per_node"}:
        made.append(("cluster_gpus_per_node", str(min(node.gpus_per_node, num_gpus))))
    if node.domain_gpus < whole.domain_gpus:
        made.append(("cluster_domain", f"{node.domain_gpus} / {whole.domain_gpus}"))
    for tier in build_tiers(node, num_gpus=num_gpus):
        if not tier.nics_per_node:
            rate = format_bandwidth(tier.bandwidth_bytes_per_s)
            made.append(("cluster_scale_up", f"{fabric_label(tier.fabric)} {rate}"))
    if num_gpus > max(node.domain_gpus, node.gpus_per_node) and "network" not in said:
        rate = f"{node.nic_bytes_per_s * 8 / 1e9:.4g} Gb/s"
        label = fabric_label(node.fabric)
        made.append(("cluster_network", f"{node.nics_per_node} x {rate} {label}".strip()))
    if "host_memory" not in said:
        made.append(("cluster_host_memory", format_memory(node.host_memory_bytes, digits=0)))
    return tuple(made)
