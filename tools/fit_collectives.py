"""Condense measured collectives into the tables that meshplan ships, and check the network model.

    python tools/fit_collectives.py --report      # print errors, change nothing
    python tools/fit_collectives.py --write       # write the tables

Inside a node the tables are medians over library versions, made monotone in the message. Between
nodes the model follows NCCL's own (ring, tree and in-network reduction under three protocols);
``--report`` holds it against published figures.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np

from meshplan.cost.collectives import Collective, collective_time
from meshplan.inputs.cluster import Cluster, Device, Tier

ROOT = Path(__file__).resolve().parents[1]
SURFACES = ROOT / "src" / "meshplan" / "cost" / "surfaces"
PUBLISHED = ROOT / "tests" / "golden" / "published_collectives.csv"
SOURCE = (
    "aiconfigurator-core 0.12.0 (Apache-2.0, NVIDIA CORPORATION & AFFILIATES), nccl-tests in one "
    "node, median over library versions; condensed by tools/fit_collectives.py"
)
NAMES = {"alltoall": "all_to_all"}
# That machine has no peer-to-peer path: 20 GB/s between 2 GPUs, 5 among 4, 1.5 among 8. It says
# nothing of other boxes with PCIe, for which the RTX PRO 6000 server stands.
LEFT_OUT = {"l40s"}
# Data-sheet bandwidth of one GPU in one direction on the fabric of each table [bytes/s].
BANDWIDTH = {
    "a100_sxm": 300e9,
    "h100_sxm": 450e9,
    "h200_sxm": 450e9,
    "b200_sxm": 900e9,
    "b300_sxm": 900e9,
    "gb200": 900e9,
    "gb300": 900e9,
    "rtx_pro_6000_server": 63e9,
}


def shared_folder() -> Path:
    """Folder of measured data."""
    named = os.environ.get("MESHPLAN_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        raise SystemExit("measured data is absent: set MESHPLAN_SHARED or put it at ../shared")
    return folder / "data"


def read_tables() -> dict[tuple[str, str, int], dict[int, list[float]]]:
    """Seconds of every version by device, collective, group size and message."""
    tables: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with (shared_folder() / "kernels" / "nccl.csv").open() as file:
        for row in csv.DictReader(file):
            name = NAMES.get(row["collective"], row["collective"])
            key = (row["gpu"], name, int(row["num_gpus"]))
            tables[key][int(row["message_bytes"])].append(float(row["latency_ms"]) * 1e-3)
    return tables


def write() -> None:
    """Write the condensed tables."""
    devices: dict[str, dict[str, object]] = {}
    sizes: list[int] = []
    for (gpu, name, count), table in sorted(read_tables().items()):
        if gpu in LEFT_OUT:
            continue
        sizes = sorted(table)
        curve = np.maximum.accumulate([float(np.median(table[size])) for size in sizes])
        entry = devices.setdefault(gpu, {"bandwidth_bytes_per_s": BANDWIDTH[gpu], "seconds": {}})
        seconds = entry["seconds"]
        assert isinstance(seconds, dict)
        seconds.setdefault(name, {})[str(count)] = [float(f"{t:.4g}") for t in curve]
    document = {
        "source": SOURCE,
        "kind": "measured",
        "unit": "s",
        "message_bytes": sizes,
        "devices": devices,
    }
    path = SURFACES / "collectives.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


def report() -> None:
    """Print held-out errors inside a node and errors against published figures between nodes."""
    print("inside a node: every second message size held out and interpolated")
    for (gpu, name, count), table in sorted(read_tables().items()):
        if gpu in LEFT_OUT:
            continue
        sizes = np.array(sorted(table), float)
        curve = np.array([np.median(table[int(size)]) for size in sizes])
        kept = slice(0, None, 2)
        guess = np.exp(np.interp(np.log(sizes), np.log(sizes[kept]), np.log(curve[kept])))
        errors = np.abs(guess[1::2] / curve[1::2] - 1.0)
        large = sizes[1::2] >= 2**20
        print(
            f"  {gpu:20} {name:15} x{count}  mean {errors.mean():5.1%}"
            f"  1 MiB and more {errors[large].mean():5.1%}"
        )
    print("between nodes: model against published figures")
    groups: dict[str, list[float]] = defaultdict(list)
    for row in published():
        ratio = predict(row) / float(row["seconds"])
        groups[row["fabric"]].append(ratio - 1.0)
        print(
            f"  {row['fabric']:11} {row['device']:9} {row['collective']:15}"
            f" {row['nodes']:>3} x {row['gpus_per_node']:<2} {float(row['bytes']) / 2**20:6.0f} MiB"
            f"  predicted / measured {ratio:5.2f}   {row['source']}"
        )
    for fabric, errors in groups.items():
        size = np.abs(errors)
        print(f"  {fabric}: mean {size.mean():.1%}, median {np.median(size):.1%}, n {len(size)}")


def published_rows() -> list[dict[str, str]]:
    """Published figures that the repository keeps, each with its source."""
    with PUBLISHED.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if not row["seconds"]:
            row["seconds"] = str(_seconds_of_bus_bandwidth(row))
    return rows


def published() -> list[dict[str, str]]:
    """The same and those of the shared data."""
    rows = published_rows()
    names = {
        "AllReduce": "all_reduce",
        "AllGather": "all_gather",
        "ReduceScatter": "reduce_scatter",
    }
    with (shared_folder() / "measured" / "ultrascale_comm_bandwidth.csv").open() as file:
        for entry in csv.DictReader(file):
            row = {
                "fabric": "efa",
                "device": "H100",
                "collective": names[entry["collective"]],
                "nodes": entry["nodes"],
                "gpus_per_node": "8",
                "members_per_node": "8",
                "bytes": str(int(entry["size_mb"]) * 2**20),
                "nic_gb_s": "50",
                "nics": "8",
                "bus_gb_s": entry["bandwidth_gb_s"],
                "source": "hf-ultrascale, median of many placements",
            }
            row["seconds"] = str(_seconds_of_bus_bandwidth(row))
            rows.append(row)
    return rows


def _seconds_of_bus_bandwidth(row: dict[str, str]) -> float:
    size = int(row["nodes"]) * int(row["members_per_node"])
    passes = 2.0 if row["collective"] == "all_reduce" else 1.0
    moved = passes * (size - 1) / size * float(row["bytes"])
    return moved / (float(row["bus_gb_s"]) * 1e9)


def predict(row: dict[str, str]) -> float:
    """Seconds of one published row by the model."""
    cluster = cluster_of(row)
    inside, nodes = int(row["members_per_node"]), int(row["nodes"])
    members = np.array([[float(inside)], [float(inside * nodes)]])
    seconds = collective_time(
        cluster,
        Collective(row["collective"]),
        message_bytes=np.array([float(row["bytes"])]),
        members=members,
    )
    return float(seconds[0])


def cluster_of(row: dict[str, str]) -> Cluster:
    """A cluster with the network of one published row."""
    tables = {"H100": ("h100_sxm", "hopper", 450e9), "A100": ("a100_sxm", "ampere", 300e9)}
    table, architecture, link = tables[row["device"]]
    device = Device(
        name=row["device"],
        vendor="nvidia",
        architecture=architecture,
        memory_bytes=80e9,
        usable_bytes=80e9,
        memory_bandwidth_bytes_per_s=2e12,
        peak_flop_per_s={"bf16": 1e15},
        num_sms=108,
        kernel_table=table,
    )
    latency = {"infiniband": 2.7e-6, "roce": 3.7e-6, "efa": 15.5e-6, "ethernet": 25e-6}
    per_node, nodes, nics = int(row["gpus_per_node"]), int(row["nodes"]), int(row["nics"])
    bandwidth = float(row["nic_gb_s"]) * 1e9 * nics / per_node
    node = Tier(
        name="node",
        fabric="nvlink",
        num_gpus=per_node,
        bandwidth_bytes_per_s=link,
        latency_s=0.6e-6,
        in_network_reduction=architecture == "hopper",
    )
    network = Tier(
        name="network",
        fabric=row["fabric"],  # type: ignore[arg-type]
        num_gpus=per_node * nodes,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=latency[row["fabric"]],
        nics_per_node=nics,
    )
    return Cluster(
        name="published",
        device=device,
        num_gpus=per_node * nodes,
        gpus_per_node=per_node,
        tiers=(node, network),
        host_memory_bytes=1e12,
        host_link_bytes_per_s=25e9,
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="print errors")
    parser.add_argument("--write", action="store_true", help="write the tables")
    arguments = parser.parse_args()
    if arguments.write:
        write()
    if arguments.report:
        report()


if __name__ == "__main__":
    main()
