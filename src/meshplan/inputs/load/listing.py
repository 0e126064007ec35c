"""What ``meshplan list devices`` and ``list clusters`` show, as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.nodes import load_node, node_names
from meshplan.inputs.load.presets import device_names, device_preset

__all__ = ["list_clusters", "list_devices"]


def list_devices() -> list[dict[str, Any]]:
    """Every device with its figures, each figure with its source."""
    listed = []
    for name in device_names():
        preset = device_preset(name)
        device = preset.device
        listed.append(
            {
                "name": name,
                "aliases": list(preset.aliases),
                "vendor": device.vendor,
                "architecture": device.architecture,
                "memory_bytes": device.memory_bytes,
                "usable_bytes": device.usable_bytes,
                "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
                "peak_flop_per_s": dict(device.peak_flop_per_s),
                "num_sms": device.num_sms,
                "link_bytes_per_s": preset.link_bytes_per_s,
                "pcie_generation": preset.pcie_generation,
                "kernel_table": device.kernel_table,
                "node": preset.node,
                "gpus_per_node": load_node(preset.node).gpus_per_node,
                "figures": {key: asdict(figure) for key, figure in preset.figures.items()},
            }
        )
    return listed


def list_clusters() -> list[dict[str, Any]]:
    """Every kind of machine and system with its levels, each figure with its source.

    A figure that is a word, such as the fabric, stands as its unit.
    """
    listed = []
    for name in node_names():
        node, cluster = load_node(name), parse_cluster(name)
        figures = {key: asdict(figure) for key, figure in node.figures.items()}
        figures["fabric"]["value"] = None
        listed.append(
            {
                "name": name,
                "aliases": list(node.aliases),
                "device": node.device,
                "num_gpus": node.unit_gpus,
                "profile": node.profile,
                "gpus_per_node": node.gpus_per_node,
                "domain_gpus": node.domain_gpus,
                "nics_per_node": node.nics_per_node,
                "nic_bytes_per_s": node.nic_bytes_per_s,
                "fabric": node.fabric,
                "host_memory_bytes": node.host_memory_bytes,
                "host_link_bytes_per_s": node.host_link_bytes_per_s,
                "tiers": [asdict(tier) for tier in cluster.tiers],
                "figures": figures,
            }
        )
    return listed
