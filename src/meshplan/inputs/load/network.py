"""The short way to say what joins the nodes: ``8x400Gb/s-ib``, ``25GbE``, ``gigabit``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, cast

import yaml

from meshplan.errors import UserError
from meshplan.inputs.cluster import Fabric
from meshplan.inputs.load.bounds import check_bounds
from meshplan.inputs.load.presets import PRESETS, Loader
from meshplan.inputs.load.quantity import parse_bandwidth, parse_duration
from meshplan.inputs.vocabulary import shown, squeeze, unknown
from meshplan.record import record

__all__ = [
    "Network",
    "fabric_label",
    "fabric_latency_s",
    "parse_network",
    "pcie_bytes_per_s",
    "read_fabric",
    "switch_hop_s",
]

_FORM = re.compile(
    r"""\s*(?:(?P<nics>[1-9][0-9]{0,3})\s*[x*×]\s*)?
        (?:(?P<gbe>[0-9]+(?:\.[0-9]+)?)\s*GbE|(?P<rate>[0-9.]+\s*[kKMGT]?i?[bB](?:its?|ytes?)?(?:/s|ps)))
        (?:\s*[-\s,]\s*(?P<fabric>[A-Za-z_-]+[0-9]?))?\s*""",
    re.VERBOSE,
)
_WORDS = {"gigabit": "1GbE", "gigabit ethernet": "1GbE", "gigabitethernet": "1GbE"}
_EXAMPLES = ("8x400Gb/s-ib", "4x100Gb/s-efa", "25GbE", "gigabit")


@record
class Network:
    """Network cards of one node.

    Attributes:
        nics_per_node: how many.
        nic_bytes_per_s: rate of one, one direction [bytes/s].
        fabric: the technology; None where the text leaves it open.
    """

    nics_per_node: int
    nic_bytes_per_s: float
    fabric: Fabric | None


def parse_network(text: str, *, where: str = "cluster.network") -> Network:
    """Read ``[NICS x] RATE [-FABRIC]``: network cards per node, the rate of one, the technology.

    ``25GbE`` is one 25 Gb/s Ethernet card per node, ``gigabit`` one of 1 Gb/s.

    Raises:
        UserError: ``bad_network``.
    """
    match = _FORM.fullmatch(_WORDS.get(text.strip().lower(), text))
    fabric = None
    rate = 0.0
    if match is not None:
        try:
            rate = parse_bandwidth(match["rate"] or f"{match['gbe']} Gb/s")
        except ValueError:
            match = None
    if match is not None and match["fabric"]:
        fabric = read_fabric(match["fabric"], where=where)
    if match is None or rate <= 0:
        raise UserError.of("bad_network", where=where, value=shown(text), allowed=_EXAMPLES)
    nics = int(match["nics"] or 1)
    for figure in (rate, nics * rate):
        check_bounds("link", figure, where=where, value=text)
    if match["gbe"] and fabric is None:
        fabric = "ethernet"
    return Network(nics_per_node=nics, nic_bytes_per_s=rate, fabric=fabric)


def read_fabric(text: str, *, where: str) -> Fabric:
    """Return the fabric that a word means.

    Raises:
        UserError: ``unknown_name``.
    """
    key = squeeze(text)
    for name, words in _data()["words"].items():
        if key == name or key in words:
            return cast(Fabric, name)
    raise unknown("unknown_name", where=where, value=text, names=_data()["words"])


def fabric_label(fabric: str) -> str:
    """How a fabric is written, such as ``NVLink``; empty for one without a name."""
    label: str = _data()["labels"][fabric]
    return label


def fabric_latency_s(fabric: str) -> float:
    """One-way latency of a small message on a fabric [s]; see ``presets/fabrics.yaml``."""
    return parse_duration(_data()["latency"][fabric]["value"])


def pcie_bytes_per_s(generation: int) -> float:
    """One direction of an x16 slot [bytes/s]; see ``presets/fabrics.yaml``."""
    return parse_bandwidth(_data()["pcie"][generation]["value"])


def switch_hop_s() -> float:
    """What one more switch adds to the latency [s]; see ``presets/fabrics.yaml``."""
    return parse_duration(_data()["switch_hop"]["value"])


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    data: dict[str, Any] = yaml.load((PRESETS / "fabrics.yaml").read_text("utf-8"), Loader)
    return data
