"""Levels of a network, spelled out: size, bandwidth in one of three forms, latency."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.cluster import Tier
from meshplan.inputs.load.bounds import bounded, check_bounds
from meshplan.inputs.load.cluster import MOST_GPUS, cut_tiers
from meshplan.inputs.load.fields import (
    BANDWIDTH,
    DURATION,
    FLAG,
    TEXT,
    Field,
    Kind,
    count,
    number,
    read_fields,
)
from meshplan.inputs.load.network import fabric_latency_s, read_fabric
from meshplan.inputs.load.quantity import bandwidth_text, duration_text
from meshplan.inputs.vocabulary import shown

__all__ = ["TIER_FIELDS", "dump_tier", "read_tiers"]

_FABRIC = Kind(
    read=lambda value, where: read_fabric(TEXT.read(value, where), where=where),
    schema={"type": "string", "examples": ["nvlink", "infiniband", "roce", "ethernet", "pcie"]},
)


def _read_factor(value: Any, where: str) -> float:
    factor: float = number(most=1e4).read(value, where)
    if factor < 1:
        raise UserError.of("oversubscription_below_one", where=where, value=shown(value))
    return factor


_LINK = bounded(BANDWIDTH, "link")
TIER_FIELDS = (
    Field(name="name", kind=TEXT),
    Field(name="fabric", kind=_FABRIC, required=True),
    Field(name="gpus", kind=count(most=MOST_GPUS)),
    Field(name="bandwidth_per_gpu", kind=_LINK),
    Field(name="bandwidth_per_nic", kind=_LINK),
    Field(name="bandwidth_per_node", kind=_LINK),
    Field(name="nics_per_node", kind=count(least=0, most=100_000)),
    Field(name="latency", kind=bounded(DURATION, "latency")),
    Field(
        name="oversubscription",
        kind=Kind(read=_read_factor, schema={"type": "number", "minimum": 1}),
    ),
    Field(name="in_network_reduction", kind=FLAG),
)
_RATES = ("bandwidth_per_gpu", "bandwidth_per_nic", "bandwidth_per_node")
_SCALE_UP = ("nvlink", "xgmi", "pcie", "ici", "socket")


def read_tiers(
    items: Sequence[Any],
    *,
    num_gpus: int,
    gpus_per_node: int,
    problems: ProblemList,
    where: str = "cluster.tiers",
) -> tuple[Tier, ...]:
    """Read the levels from the inside out; ``gpus`` of the outermost one may be left out.

    Rates are of one direction. ``bandwidth_per_nic`` and ``bandwidth_per_node`` are shared by
    the GPUs of a node.
    """
    tiers = []
    for index, item in enumerate(items):
        last = index == len(items) - 1
        place = f"{where}.{index}"
        noted = ProblemList()
        given = read_fields(item, TIER_FIELDS, where=place, problems=noted)
        if not noted:
            tier = _tier(given, last=last, per_node=gpus_per_node, problems=noted, where=place)
            if tier is not None:
                tiers.append(tier)
        if noted:
            _hand_over(noted, problems)
    if len(tiers) < len(items):
        return ()
    try:
        _check_sizes(
            [tier.num_gpus for tier in tiers],
            num_gpus=num_gpus,
            gpus_per_node=gpus_per_node,
            where=where,
        )
    except UserError as error:
        problems.extend(error)
        return ()
    return cut_tiers(tiers, num_gpus=num_gpus)


def _check_sizes(sizes: Sequence[int], *, num_gpus: int, gpus_per_node: int, where: str) -> None:
    """Levels grow, hold whole machines and whole inner levels, and the last spans the cluster.

    Raises:
        UserError: with the first that is wrong; what follows from it is no news.
    """
    for index, (inner, outer) in enumerate(pairwise(sizes), start=1):
        if outer <= inner:
            place = f"{where}.{index}.gpus"
            raise UserError.of("tiers_do_not_grow", where=place, value=outer, inner=inner)
    for index, size in enumerate(sizes):
        unit = _cut_in_two(size, [gpus_per_node, *sizes[:index]], least=gpus_per_node)
        if unit and size < num_gpus:
            place, least = f"{where}.{index}.gpus", size // unit * unit
            whole = (least, least + unit)
            raise UserError.of(
                "tiers_not_nested", where=place, value=size, inner=unit, allowed=whole
            )
    if sizes[-1] < num_gpus:
        place = f"{where}.{len(sizes) - 1}.gpus"
        raise UserError.of("tiers_too_small", where=place, value=sizes[-1], gpus=num_gpus)


def _cut_in_two(size: int, units: Sequence[int], *, least: int) -> int:
    """The largest unit that a level of a size would cut in two, 0 where it holds whole ones.

    Units smaller than ``least``, a machine, may be cut: a machine may be half full.
    """
    return max((unit for unit in units if least <= unit < size and size % unit), default=0)


def _hand_over(noted: ProblemList, problems: ProblemList) -> None:
    try:
        noted.raise_if_any()
    except UserError as error:
        problems.extend(error)


def _tier(
    given: dict[str, Any], *, last: bool, per_node: int, problems: ProblemList, where: str
) -> Tier | None:
    rates = [name for name in _RATES if name in given]
    if len(rates) != 1:
        problems.add("one_bandwidth", where=where, value=", ".join(rates), allowed=_RATES)
    if "gpus" not in given and not last:
        problems.add("missing_key", where=f"{where}.gpus")
    fabric = given["fabric"]
    # a rate per GPU speaks of one card for each, a rate per node of a single card
    cards = per_node if "bandwidth_per_gpu" in given else 1
    nics = given.get("nics_per_node", 0 if fabric in _SCALE_UP else cards)
    if "bandwidth_per_nic" in given and "nics_per_node" not in given:
        problems.add("missing_key", where=f"{where}.nics_per_node")
    if problems:
        return None
    try:
        rate = _rate(rates[0], given[rates[0]], nics=nics, per_node=per_node, where=where)
    except UserError as error:
        problems.extend(error)
        return None
    return Tier(
        name=given.get("name", fabric),
        fabric=fabric,
        num_gpus=given.get("gpus", MOST_GPUS),
        bandwidth_bytes_per_s=rate,
        latency_s=given.get("latency", fabric_latency_s(fabric)),
        oversubscription=given.get("oversubscription", 1.0),
        in_network_reduction=given.get("in_network_reduction", False),
        nics_per_node=nics,
    )


def _rate(form: str, rate: float, *, nics: int, per_node: int, where: str) -> float:
    """Rate of one GPU [bytes/s], from the form in which it is stated."""
    if form == "bandwidth_per_nic":
        rate = rate * nics / per_node
    elif form == "bandwidth_per_node":
        rate = rate / per_node
    if rate <= 0:
        place = f"{where}.nics_per_node"
        raise UserError.of("bad_count", where=place, value=nics, least=1, example=8)
    said = f"{bandwidth_text(rate)} / GPU"
    check_bounds("link", rate, where=f"{where}.{form}", value=said)
    return rate


def dump_tier(tier: Tier) -> dict[str, Any]:
    """A mapping that ``read_tiers`` reads back the same."""
    return {
        "name": tier.name,
        "fabric": tier.fabric,
        "gpus": tier.num_gpus,
        "bandwidth_per_gpu": bandwidth_text(tier.bandwidth_bytes_per_s),
        "nics_per_node": tier.nics_per_node,
        "latency": duration_text(tier.latency_s),
        "oversubscription": tier.oversubscription,
        "in_network_reduction": tier.in_network_reduction,
    }
