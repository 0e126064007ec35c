"""Collectives: closed forms on easy networks, measured ceilings, published figures."""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_scenarios import grid, plan, scenario
from meshplan.cost.collectives import (
    Collective,
    all_to_all_time,
    collective_time,
    in_network_all_reduce_time,
    ring_time,
    route,
    send_time,
    tree_all_reduce_time,
)
from meshplan.cost.communication import Network
from meshplan.cost.tuning import Tuning
from meshplan.inputs.cluster import Cluster, Tier
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.presets import load_device
from meshplan.inputs.model import Moe
from meshplan.space.placement import AxisGroup

GB = 1e9
MIB = 2.0**20
# Bus bandwidth of 512 MiB in one node [GB/s] (facts on peers, section 7).
MEASURED = {
    "A100-80GB": {"all_reduce": (193, 217, 222), "all_gather": (None, None, 205),
                  "reduce_scatter": (None, None, 213), "all_to_all": (None, None, 203)},
    "H100": {"all_reduce": (318, 350, 445), "all_gather": (None, None, 335),
             "reduce_scatter": (None, None, 336), "all_to_all": (None, None, 315)},
    "H200": {"all_reduce": (315, 348, 461), "all_gather": (None, None, 337),
             "reduce_scatter": (None, None, 337), "all_to_all": (None, None, 311)},
    "B200": {"all_reduce": (534, 634, 704), "all_gather": (None, None, 617),
             "reduce_scatter": (None, None, 613), "all_to_all": (None, None, 563)},
}  # fmt: skip


def bus_bandwidth(cluster: Cluster, kind: Collective, *, size: int, message: float) -> float:
    members = np.full((len(cluster.tiers), 1), float(size))
    seconds = collective_time(cluster, kind, message_bytes=np.array([message]), members=members)
    passes = 2.0 if kind is Collective.ALL_REDUCE else 1.0
    return float(passes * message * (size - 1) / size / seconds[0])


@pytest.mark.parametrize("device", list(MEASURED))
def test_bandwidth_in_a_node_is_the_measured_one(device: str) -> None:
    cluster = parse_cluster(f"8x{device}")
    for name, figures in MEASURED[device].items():
        for size, figure in zip((2, 4, 8), figures, strict=True):
            if figure is None:
                continue
            bus = bus_bandwidth(cluster, Collective(name), size=size, message=512 * MIB) / GB
            assert bus == pytest.approx(figure, rel=0.05), (name, size)


@pytest.mark.parametrize("device", ["A100-80GB", "H100", "B200", "GB200", "V100-32GB", "MI300X"])
def test_no_collective_beats_its_links(device: str) -> None:
    cluster = parse_cluster(f"512x{device}")
    link = cluster.tiers[0].bandwidth_bytes_per_s
    for kind in Collective:
        for message in (1e3, 1e6, 1e9, 1e11):
            size = min(8, cluster.tiers[0].num_gpus)
            assert bus_bandwidth(cluster, kind, size=size, message=message) < 1.1 * link


def flat(*, num_nodes: int, nics: int = 8, oversubscription: float = 1.0) -> Cluster:
    """Nodes of eight H100 on one network level."""
    cluster = parse_cluster("64xH100")
    network = Tier(
        name="network",
        fabric="infiniband",
        num_gpus=8 * num_nodes,
        bandwidth_bytes_per_s=50e9 * nics / 8,
        latency_s=2.7e-6,
        oversubscription=oversubscription,
        nics_per_node=nics,
    )
    return replace(cluster, num_gpus=8 * num_nodes, tiers=(cluster.tiers[0], network))


def members(inside: float, size: float) -> np.ndarray:
    return np.array([[inside], [size]], dtype=np.float64)


def test_a_ring_moves_all_but_one_part_over_the_narrowest_level() -> None:
    """One member per node: 48 GB through one card of 46 GB/s, and eight hops."""
    cluster = flat(num_nodes=8)
    path = route(cluster, members=members(1, 8))
    assert path.domains[0] == 8
    assert path.outer_bytes_per_s[0] == pytest.approx(0.92 * 50e9)
    seconds = ring_time(path, message_bytes=np.array([48e9 * 8 / 7]), protocol="simple")
    hops = 8 * 5.19 * 2.7e-6
    assert seconds[0] == pytest.approx(48e9 / 46e9 + 1.5e6 / 46e9 + hops, rel=1e-6)


def test_a_full_node_drives_all_its_cards() -> None:
    cluster = flat(num_nodes=8)
    lone, full = route(cluster, members=members(1, 8)), route(cluster, members=members(8, 64))
    assert full.outer_bytes_per_s[0] == pytest.approx(8 * lone.outer_bytes_per_s[0])
    assert full.inner_bytes_per_s[0] == pytest.approx(335e9, rel=0.02)


def test_groups_share_the_cards_of_a_node() -> None:
    """With one card per node eight groups of lone members get an eighth of it each."""
    cluster = flat(num_nodes=8, nics=1)
    shared = route(cluster, members=members(1, 8))
    alone = route(cluster, members=members(1, 8), busy_share=1 / 8)
    assert alone.outer_bytes_per_s[0] == pytest.approx(8 * shared.outer_bytes_per_s[0])
    beyond = route(cluster, members=members(1, 8), busy_share=1 / 64)
    assert beyond.outer_bytes_per_s[0] == pytest.approx(alone.outer_bytes_per_s[0])


def test_oversubscription_divides_the_bandwidth() -> None:
    one, four = flat(num_nodes=8), flat(num_nodes=8, oversubscription=4.0)
    ratio = route(one, members=members(8, 64)).outer_bytes_per_s
    ratio = ratio / route(four, members=members(8, 64)).outer_bytes_per_s
    assert ratio[0] == pytest.approx(4.0)


def test_a_tree_beats_a_ring_when_small_and_far() -> None:
    path = route(flat(num_nodes=64), members=members(8, 512))
    small, large = np.array([1e6]), np.array([4e9])

    def pair(message: np.ndarray) -> tuple[float, float]:
        ring = 2 * ring_time(path, message_bytes=message, protocol="simple")
        tree = tree_all_reduce_time(path, message_bytes=message, protocol="simple")
        return float(ring[0]), float(tree[0])

    assert pair(small)[1] < 0.5 * pair(small)[0]
    assert pair(large)[1] == pytest.approx(pair(large)[0], rel=0.25)


def test_switches_that_add_halve_the_traffic() -> None:
    cluster = flat(num_nodes=8)
    path = route(cluster, members=members(1, 8))
    message = np.array([10e9])
    assert not path.reduces[0]
    ring = 2 * ring_time(path, message_bytes=message, protocol="simple")
    network = in_network_all_reduce_time(path, message_bytes=message)
    assert ring[0] / network[0] == pytest.approx(2 * 7 / 8, rel=0.01)
    network_tier = replace(cluster.tiers[1], in_network_reduction=True)
    sharp = replace(cluster, tiers=(cluster.tiers[0], network_tier))
    assert route(sharp, members=members(1, 8)).reduces[0]
    kind = Collective.ALL_REDUCE
    plain, fast = (
        collective_time(c, kind, message_bytes=message, members=members(1, 8))[0]
        for c in (cluster, sharp)
    )
    assert fast < 0.65 * plain


def test_an_all_to_all_is_bound_by_one_card_per_device() -> None:
    """EP 64 on H100: 56/64 of the tokens leave the node through 46 GB/s; measured 9.164 ms [1]_.

    References:
        .. [1] arXiv:2603.07685, table 7.
    """
    path = route(flat(num_nodes=8), members=members(8, 64))
    message = np.array([4096 * 8 * 7168 * 2.0])
    seconds = all_to_all_time(path, message_bytes=message)
    assert seconds[0] == pytest.approx(9.164e-3, rel=0.05)


# Dispatch of 4096 tokens of 7168 channels to 8 of 256 experts [us], NCCL and HybridEP.
DISPATCH = {
    "64xH100": {8: (1265, 661), 16: (5774, 1485), 32: (8059, 3064), 64: (9164, 4626)},
    "72xGB200": {8: (735, 391), 16: (743, 578), 32: (769, 612), 64: (930, 675)},
}


@pytest.mark.parametrize("text", list(DISPATCH))
def test_dispatch_of_tokens(text: str) -> None:
    """Every copy by NCCL, and once per node and device by HybridEP [1]_.

    References:
        .. [1] arXiv:2603.07685, table 7.
    """
    cluster = parse_cluster(text)
    sizes = np.array(list(DISPATCH[text]))
    group = AxisGroup(size=sizes, stride=np.ones(4, dtype=np.int64))
    message = np.full(4, 4096 * 8 * 7168 * 2.0)
    network = Network(cluster=cluster, tuning=Tuning())
    every = network.collective(Collective.ALL_TO_ALL, group, message).seconds
    moe = load_model("deepseek-v3").layers[-1].ffn
    assert isinstance(moe, Moe) and (moe.num_groups, moe.top_groups) == (8, 4)
    once = network.deduplicated_exchange(group, message, moe=moe).seconds
    measured = np.array(list(DISPATCH[text].values())) * 1e-6
    assert np.all(np.abs(every / measured[:, 0] - 1.0) < 0.25)
    assert np.all(np.abs(once / measured[:, 1] - 1.0) < 0.17)
    # without the groups more than the line carries would have been sent to four and eight nodes
    free = network.deduplicated_exchange(
        group, message, moe=replace(moe, num_groups=1, top_groups=1)
    )
    if text == "64xH100":
        assert np.all(free.seconds[2:] > 1.15 * once[2:])


def test_sends() -> None:
    """Two GPUs on two nodes: 812 us for 32 MiB each way, twice (NVIDIA/nccl-tests issue 232)."""
    cluster = flat(num_nodes=2)
    seconds = send_time(cluster, message_bytes=np.full(2, 32 * MIB), tier_index=np.array([0, 1]))
    assert seconds[1] == pytest.approx(812e-6, rel=0.08)
    assert seconds[0] < 0.25 * seconds[1]


def test_published_figures_between_nodes() -> None:
    """Mean error of InfiniBand rows; the tool prints every row, EFA's misses included."""
    tool = _tool()
    rows = [r for r in tool.published_rows() if r["fabric"] == "infiniband"]
    errors = [abs(tool.predict(row) / float(row["seconds"]) - 1.0) for row in rows]
    assert len(errors) == 13
    assert float(np.mean(errors)) < 0.13


def _tool() -> Any:
    path = Path(__file__).resolve().parents[2] / "tools" / "fit_collectives.py"
    spec = importlib.util.spec_from_file_location("fit_collectives", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", list(Collective))
def test_more_bytes_take_longer_and_more_bandwidth_less(kind: Collective) -> None:
    cluster = flat(num_nodes=8)
    message = np.logspace(2, 11, 200)
    for inside, size in ((1, 8), (2, 16), (8, 64), (8, 8), (3, 3), (6, 48)):
        group = np.repeat(members(inside, size), len(message), axis=1)
        seconds = collective_time(cluster, kind, message_bytes=message, members=group)
        assert np.all(np.diff(seconds) >= 0), (inside, size)
        fast = collective_time(
            cluster,
            kind,
            message_bytes=message,
            members=group,
            tuning=Tuning(scale_up=1.5, scale_out=1.5),
        )
        assert np.all(fast <= seconds)


def test_one_device_and_no_bytes_cost_nothing_much() -> None:
    cluster = flat(num_nodes=2)
    alone = collective_time(
        cluster, Collective.ALL_REDUCE, message_bytes=np.array([1e9]), members=members(1, 1)
    )
    assert alone[0] == 0
    none = collective_time(
        cluster, Collective.ALL_REDUCE, message_bytes=np.array([0.0]), members=members(8, 16)
    )
    assert none[0] < 1e-3


def test_a_box_without_nvlink_uses_its_own_fabric() -> None:
    fast, slow = parse_cluster("8xH100"), parse_cluster("8xL40S")
    assert slow.tiers[0].fabric == "pcie"
    kind = Collective.ALL_REDUCE
    ratio = bus_bandwidth(fast, kind, size=8, message=1e8) / bus_bandwidth(
        slow, kind, size=8, message=1e8
    )
    assert 10 < ratio < 100


def test_the_measured_table_of_l40s_is_left_out_for_a_reason(shared: Path) -> None:
    """Its all-reduce falls from 20 GB/s between 2 to under 2 GB/s among 8 GPUs."""
    with (shared / "data" / "kernels" / "nccl.csv").open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["gpu"] == "l40s"
            and row["collective"] == "all_reduce"
            and int(row["message_bytes"]) == 2**29
        ]
    bus = {
        int(r["num_gpus"]): 2 * (int(r["num_gpus"]) - 1) / int(r["num_gpus"]) * 2**29
        / float(r["latency_ms"]) / 1e6
        for r in rows
    }  # fmt: skip
    assert bus[2] > 15 and bus[8] < 2


def test_device_of_every_preset_has_collectives() -> None:
    for name in ("V100-32GB", "A100-80GB-PCIe", "H800", "H20", "MI300X", "L40S", "RTX-4090"):
        load_device(name)
        cluster = parse_cluster(f"8x{name}")
        assert bus_bandwidth(cluster, Collective.ALL_GATHER, size=2, message=1e8) > 1e9


def test_slow_ethernet_is_slow() -> None:
    plans = grid(plan(16, zero=3))
    group = AxisGroup(size=plans.dp, stride=plans.tp)
    seconds = []
    for text in ("16xH100", "16xH100@25GbE"):
        case = scenario(cluster=text)
        network = Network(cluster=case.cluster, tuning=Tuning())
        traffic = network.collective(Collective.ALL_GATHER, group, np.array([1e9]))
        seconds.append(float(traffic.seconds[0]))
    assert seconds[1] > 10 * seconds[0]


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_pipeline_that_leaves_the_node_is_paced_by_the_network(stride: int) -> None:
    """Two or more stages to a node: some hops are inside it, but not all."""
    network = Network(cluster=parse_cluster("32xH100@25GbE"), tuning=Tuning())
    message = np.full(3, 40 * MIB)
    groups = AxisGroup(
        size=np.array([8 // stride, 32 // stride, 4]), stride=np.array([stride, stride, 8])
    )
    inside, leaving, apart = network.send(groups, message).seconds
    assert inside < leaving / 10
    # the node's one card is shared by the GPUs of one stage, not by all eight
    assert leaving == pytest.approx(apart * stride / 8, rel=0.05)


def test_gpus_of_a_socket_share_its_link_to_the_other() -> None:
    """simumax, A100-PCIe: 25 GB/s inside a socket and 14 between both, as NCCL rates EPYC hosts.

    Two groups of four that alternate between the sockets share the link; groups that keep to a
    socket do not meet it.
    """
    box = parse_cluster("8xA100-PCIe-80GB")
    message = np.array([1e9])

    def rate(inside: float, size: float) -> float:
        seconds = collective_time(
            box, Collective.ALL_GATHER, message_bytes=message, members=members(inside, size)
        )
        return float(message[0] * (size - 1) / size / seconds[0])

    assert 14e9 < rate(4, 4) < 31.5e9
    assert rate(4, 8) == pytest.approx(16e9, rel=0.02)
    assert rate(2, 4) == pytest.approx(8e9, rel=0.02)
