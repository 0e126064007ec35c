"""Clusters as mappings: a base with changes, or every level spelled out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.cluster import Cluster, Device, Tier
from meshplan.inputs.load.bounds import bounded
from meshplan.inputs.load.cluster import (
    MOST_GPUS,
    Draft,
    draft_cluster,
    draft_of_device,
    parse_cluster,
)
from meshplan.inputs.load.device_mapping import DEVICE, dump_device
from meshplan.inputs.load.documents import read_yaml
from meshplan.inputs.load.fields import (
    BANDWIDTH,
    MEMORY,
    TEXT,
    Field,
    Kind,
    count,
    located,
    number,
    object_schema,
    read_fields,
)
from meshplan.inputs.load.network import Network, parse_network
from meshplan.inputs.load.nodes import load_node
from meshplan.inputs.load.presets import device_preset
from meshplan.inputs.load.quantity import bandwidth_text, memory_text
from meshplan.inputs.load.settings import without_replaced
from meshplan.inputs.load.tiers import TIER_FIELDS, dump_tier, read_tiers
from meshplan.inputs.vocabulary import shown

__all__ = ["CLUSTER_FIELDS", "dump_cluster", "read_cluster"]

_FILES = (".yaml", ".yml")
_DECISIVE = frozenset({"base", "node", "device", "gpus", "nodes"})
_CONFLICTS = (("base", "node"), ("network", "tiers"), ("usd_per_gpu_hour", "usd_per_hour"))


def _read_pairs(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(x, str) for x in pair)
        for pair in value
    ):
        raise UserError.of("not_a_list", where=where, value=shown(value))
    return tuple((code, said) for code, said in value)


def _read_list(value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple) or not value:
        raise UserError.of("not_a_list", where=where, value=shown(value))
    return value


_TIERS = Kind(read=_read_list, schema={"type": "array", "items": object_schema(TIER_FIELDS)})
_PAIRS = Kind(read=_read_pairs, schema={"type": "array", "items": {"type": "array"}})

CLUSTER_FIELDS = (
    Field(name="base", kind=TEXT),
    Field(name="name", kind=TEXT),
    Field(name="device", kind=DEVICE),
    Field(name="node", kind=TEXT),
    Field(name="gpus", kind=count(most=MOST_GPUS)),
    Field(name="nodes", kind=count(most=MOST_GPUS)),
    Field(name="gpus_per_node", kind=count(most=100_000)),
    Field(name="network", kind=TEXT),
    Field(name="tiers", kind=_TIERS),
    Field(name="host_memory", kind=bounded(MEMORY, "host_memory")),
    Field(name="host_link", kind=bounded(BANDWIDTH, "link")),
    Field(name="host_time_factor", kind=number(most=100.0)),
    Field(name="usd_per_gpu_hour", kind=number(most=1e6)),
    Field(name="usd_per_hour", kind=number(most=1e6)),
    Field(name="profile", kind=TEXT),
    Field(name="assumptions", kind=_PAIRS),
)


def read_cluster(data: Any, *, problems: ProblemList, where: str = "cluster") -> Cluster | None:
    """Read a cluster: shorthand, the path of a YAML file, or a mapping.

    Returns:
        The cluster, or None with the reasons in ``problems``.
    """
    try:
        data = _with_file(data, where=where)
        if isinstance(data, str):
            return parse_cluster(data, where=where)
    except UserError as error:
        problems.extend(error)
        return None
    whole = _with_device_of_base(data) if isinstance(data, Mapping) else data
    given = read_fields(whole, CLUSTER_FIELDS, where=where, problems=problems)
    if not isinstance(data, Mapping):
        return None
    failed = {key for key, value in data.items() if value is not None} - given.keys()
    try:
        return _Reading(given, failed=failed, own_device=whole is not data, where=where).cluster()
    except UserError as error:
        problems.extend(_with_lines(error, data, where=where))
        return None


def _with_device_of_base(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let ``device:`` change the device of ``base:`` where it names none of its own."""
    device = data.get("device")
    if not isinstance(device, Mapping) or "base" not in data or {"base", "name"} & device.keys():
        return data
    try:
        draft = draft_cluster(str(data["base"]), where="base")
    except UserError:
        return data  # said when the base is read
    named, changed = _copied(data), _copied(device)
    changed["base"] = draft.node.device
    named["device"] = changed
    return named


def _copied(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of one level, with the lines of the file that it came from."""
    return data.copy() if isinstance(data, dict) else dict(data)


def _with_lines(error: UserError, data: Mapping[str, Any], *, where: str) -> UserError:
    """Put the line of a key in front of problems that came up when keys were put together."""
    placed = []
    for problem in error.problems:
        key = problem.where.removeprefix(f"{where}.").partition(".")[0]
        inside = problem.where.startswith(f"{where}.")
        placed.append(
            replace(problem, where=located(data, key, problem.where)) if inside else problem
        )
    return UserError(*placed)


def _with_file(data: Any, *, where: str) -> Any:
    """Put in what a file holds, where a path stands for the cluster or for its base."""
    if isinstance(data, str) and data.strip().endswith(_FILES):
        return _of_file(data.strip())
    base = data.get("base") if isinstance(data, Mapping) else None
    if not isinstance(base, str) or not base.strip().endswith(_FILES):
        return data
    held = _of_file(base.strip())
    changes = {key: value for key, value in data.items() if key != "base"}
    if not isinstance(held, Mapping):
        return {**changes, "base": held}
    return without_replaced({**held, **changes}, changes.keys(), "cluster")


def _of_file(path: str) -> Any:
    """What a cluster file holds, with or without a ``cluster:`` above it."""
    data = read_yaml(path)
    if isinstance(data, Mapping) and set(data) == {"cluster"}:
        data = data["cluster"]
    if not isinstance(data, Mapping | str):
        raise UserError.of("not_a_mapping", where=path, value=shown(data))
    return data


class _Reading:
    """Puts together what a mapping states with what its base or its device usually has."""

    def __init__(
        self, given: dict[str, Any], *, failed: set[str], own_device: bool, where: str
    ) -> None:
        self.given = given
        self.failed = failed
        self.own_device = own_device
        self.where = where
        self.problems = ProblemList()

    def cluster(self) -> Cluster | None:
        """The cluster; None where a key that decides everything could not be read."""
        self._check_conflicts()
        draft = self._draft()
        if draft is None:
            self._network()
            self._tiers(num_gpus=1, gpus_per_node=self.given.get("gpus_per_node", 1))
        self.problems.raise_if_any()
        if draft is None:
            return None
        draft = self._resized(self._changed(draft))
        node = draft.node
        tiers = self._tiers(num_gpus=draft.num_gpus, gpus_per_node=node.gpus_per_node)
        self.problems.raise_if_any()
        cluster = draft.build()
        if tiers:
            # the levels were stated, so they and the machine they replace are no assumption
            stated = ("cluster_scale_up", "cluster_network", "cluster_node")
            left = tuple(pair for pair in cluster.assumptions if pair[0] not in stated)
            cluster = replace(cluster, tiers=tiers, assumptions=left, of_size=None)
        return self._finished(cluster)

    def _check_conflicts(self) -> None:
        """Keys that say the same thing twice are refused rather than one of them ignored."""
        for first, second in _CONFLICTS:
            if first in self.given and second in self.given:
                where = f"{self.where}.{second}"
                self.problems.add("keys_conflict", where=where, value=first)
        device = None if self.own_device else self.given.get("device")
        if "base" in self.given and device is not None and _listed(device):
            self.problems.add("keys_conflict", where=f"{self.where}.device", value="base")

    def _draft(self) -> Draft | None:
        if self.failed & _DECISIVE:
            return None  # what follows from it is no news
        try:
            return self._base()
        except UserError as error:
            self.problems.extend(error)
            return None

    def _base(self) -> Draft:
        given, where = self.given, self.where
        device: Device | None = given.get("device")
        if "base" in given:
            draft = draft_cluster(given["base"], where=f"{where}.base")
            return replace(draft, device=device) if device else draft
        if "node" in given:
            node = load_node(given["node"], where=f"{where}.node")
            if device and _listed(device):
                node = load_node(given["node"], device=device.name, where=f"{where}.node")
            said = frozenset({"node", "device"})
            return Draft(name="", node=node, num_gpus=node.unit_gpus, said=said, device=device)
        if device is None:
            raise UserError.of("missing_key", where=f"{where}.device")
        if "gpus" not in given and "nodes" not in given:
            raise UserError.of("missing_key", where=f"{where}.gpus")
        if _listed(device):
            draft = draft_of_device(device.name, num_gpus=1, name="", where=where)
            return replace(draft, device=device)
        # a device of its own kind sits in a plain PCIe box unless more is said
        node = load_node("pcie5-box")
        return Draft(name="", node=node, num_gpus=1, said=frozenset({"device"}), device=device)

    def _changed(self, draft: Draft) -> Draft:
        given = self.given
        if "gpus_per_node" in given:
            draft = draft.with_gpus_per_node(given["gpus_per_node"])
        network = self._network()
        if network is not None:
            draft = draft.with_network(network)
        node, said = draft.node, draft.said
        if "host_memory" in given:
            node, said = (
                replace(node, host_memory_bytes=given["host_memory"]),
                said | {"host_memory"},
            )
        if "host_link" in given:
            node = replace(node, host_link_bytes_per_s=given["host_link"])
        if "host_time_factor" in given:
            node = replace(node, host_time_factor=given["host_time_factor"])
        return replace(draft, node=node, said=said)

    def _network(self) -> Network | None:
        try:
            text = self.given.get("network")
            return text and parse_network(text, where=f"{self.where}.network")
        except UserError as error:
            self.problems.extend(error)
            return None

    def _resized(self, draft: Draft) -> Draft:
        gpus, nodes = self.given.get("gpus"), self.given.get("nodes")
        per_node = draft.node.gpus_per_node
        if nodes is not None:
            most = nodes * per_node
            if gpus is not None and not most - per_node < gpus <= most:
                self.problems.add(
                    "gpus_and_nodes_disagree",
                    where=f"{self.where}.gpus",
                    value=gpus,
                    nodes=nodes,
                    gpus_per_node=per_node,
                )
            gpus = gpus or min(most, MOST_GPUS)
        if gpus is None:
            return draft
        return replace(draft, num_gpus=gpus, name="")

    def _tiers(self, *, num_gpus: int, gpus_per_node: int) -> tuple[Tier, ...]:
        if "tiers" not in self.given:
            return ()
        return read_tiers(
            self.given["tiers"],
            num_gpus=num_gpus,
            gpus_per_node=gpus_per_node,
            problems=self.problems,
            where=f"{self.where}.tiers",
        )

    def _finished(self, cluster: Cluster) -> Cluster:
        given = self.given
        price = given.get("usd_per_gpu_hour", given.get("usd_per_hour"))
        device = cluster.device if price is None else replace(cluster.device, usd_per_hour=price)
        # another size, network or device needs another name; another network or device was not
        # measured either
        changed = {"network", "tiers", "device"} & given.keys()
        renamed = changed or {"gpus", "nodes", "node"} & given.keys()
        name = given.get("name") or ("" if renamed else cluster.name)
        return replace(
            cluster,
            name=name or f"{cluster.num_gpus}x{device.name}",
            device=device,
            profile=given.get("profile", "default" if changed else cluster.profile),
            assumptions=given.get("assumptions", cluster.assumptions),
        )


def _listed(device: Device) -> bool:
    try:
        return device_preset(device.name).device.name == device.name
    except UserError:
        return False


def dump_cluster(cluster: Cluster) -> str | dict[str, Any]:
    """The shorthand where that is all, or a mapping that reads back the same."""
    price = cluster.device.usd_per_hour
    plain = replace(cluster, device=replace(cluster.device, usd_per_hour=None))
    named = _named(cluster.name)
    if named is not None and replace(named, profile=plain.profile) == plain:
        made: dict[str, Any] = {"base": cluster.name}
        usual = named.profile
    else:
        made, usual = _spelled_out(cluster), "default"
    if price is not None:
        made["usd_per_gpu_hour"] = price
    if cluster.profile != usual:
        made["profile"] = cluster.profile
    return cluster.name if made == {"base": cluster.name} else made


def _named(name: str) -> Cluster | None:
    try:
        return None if name.endswith(_FILES) else parse_cluster(name)
    except UserError:
        return None


def _spelled_out(cluster: Cluster) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "device": dump_device(cluster.device),
        "gpus": cluster.num_gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "tiers": [dump_tier(tier) for tier in cluster.tiers],
        "host_memory": memory_text(cluster.host_memory_bytes),
        "host_link": bandwidth_text(cluster.host_link_bytes_per_s),
        "host_time_factor": cluster.host_time_factor,
        "assumptions": [list(pair) for pair in cluster.assumptions],
    }
