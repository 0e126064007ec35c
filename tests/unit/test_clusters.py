"""Clusters: the shorthand, its stated defaults, part-filled nodes, levels spelled out."""

from __future__ import annotations

from typing import Any

import pytest

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.load.cluster import MOST_GPUS, parse_cluster
from meshplan.inputs.load.cluster_mapping import dump_cluster, read_cluster
from meshplan.inputs.load.network import parse_network
from meshplan.inputs.load.nodes import node_names
from meshplan.inputs.load.presets import device_names
from meshplan.inputs.load.profile import cluster_profile_names


def read(data: Any) -> Cluster:
    problems = ProblemList()
    cluster = read_cluster(data, problems=problems)
    problems.raise_if_any()
    assert cluster is not None
    return cluster


def problems_of(data: Any) -> list[tuple[str, str]]:
    with pytest.raises(UserError) as caught:
        read(data)
    return [(problem.code, problem.where) for problem in caught.value.problems]


def check(cluster: Cluster) -> None:
    """What the cost model takes for granted."""
    sizes = [tier.num_gpus for tier in cluster.tiers]
    assert sizes == sorted(set(sizes)), "levels grow strictly"
    assert sizes[-1] == cluster.num_gpus, "the outermost level spans the cluster"
    assert 1 <= cluster.gpus_per_node <= cluster.num_gpus
    assert cluster.host_memory_bytes > 0 and cluster.host_link_bytes_per_s > 0
    for tier in cluster.tiers:
        assert tier.bandwidth_bytes_per_s > 0 and tier.latency_s > 0 and tier.oversubscription >= 1


def test_64xh100_is_eight_dgx() -> None:
    cluster = parse_cluster("64xH100")
    check(cluster)
    assert (cluster.num_gpus, cluster.gpus_per_node, cluster.num_nodes) == (64, 8, 8)
    inner, outer = cluster.tiers
    assert (inner.fabric, inner.num_gpus, inner.bandwidth_bytes_per_s) == ("nvlink", 8, 450e9)
    # DGX H100: eight 400 Gb/s cards per node, one per GPU: 50 GB/s per GPU and direction
    assert (outer.fabric, outer.num_gpus, outer.bandwidth_bytes_per_s) == ("infiniband", 64, 50e9)
    assert outer.nics_per_node == 8
    assert dict(cluster.assumptions) == {
        "cluster_node": "dgx-h100",
        "cluster_gpus_per_node": "8",
        "cluster_scale_up": "NVLink 450 GB/s",
        "cluster_network": "8 x 400 Gb/s InfiniBand",
        "cluster_host_memory": "1863 GiB",
    }


@pytest.mark.parametrize(
    "text", ["64xH100", "64*H100", "64 x h100", "64XH100", "64×H100", "64 H100"]
)
def test_ways_to_write_it(text: str) -> None:
    cluster = parse_cluster(text)
    assert (cluster.num_gpus, cluster.device.name) == (64, "H100")


@pytest.mark.parametrize("num_gpus", [1, 2, 3, 6, 7, 8, 12, 24, 100, 257, 1000, 16384, MOST_GPUS])
@pytest.mark.parametrize("device", ["H100", "RTX-4090", "GB200", "MI250X", "TPU-v5e", "GH200"])
def test_any_count(num_gpus: int, device: str) -> None:
    cluster = parse_cluster(f"{num_gpus}x{device}")
    check(cluster)
    assert cluster.num_gpus == num_gpus


@pytest.mark.parametrize("name", device_names())
def test_every_device_makes_a_cluster(name: str) -> None:
    for num_gpus in (1, 8, 12, 4096):
        check(parse_cluster(f"{num_gpus}x{name}"))


@pytest.mark.parametrize("name", node_names())
def test_every_machine_makes_a_cluster(name: str) -> None:
    check(parse_cluster(name))
    two = parse_cluster(f"2 x {name}")
    check(two)
    assert two.num_gpus == 2 * parse_cluster(name).num_gpus


def test_machines_that_people_name() -> None:
    wanted = """
        dgx-h100 dgx-a100 hgx-h200 dgx-b200 gb200-nvl72 aws-p4d aws-p4de aws-p5 aws-p5e azure-ndv4
        azure-ndv5 gcp-a3 4090-box dgx-1-v100 dgx-2 selene jean-zay-a100 juwels-booster mi300x-box
        tpu-v5e-pod
    """
    assert set(wanted.split()) <= set(node_names())


# bandwidth of one GPU across nodes, one direction: cards x rate / GPUs [GB/s]
ACROSS = {"aws-p4d": 6.25, "aws-p5": 50, "gcp-a3": 12.5, "azure-ndv4": 25, "jean-zay-v100": 12.5,
          "dgx-1-v100": 6.25, "dgx-2": 6.25, "selene": 25, "4090-box": 0.15625}  # fmt: skip


@pytest.mark.parametrize(("name", "gb_per_s"), ACROSS.items())
def test_cards_of_a_node_are_shared_by_its_gpus(name: str, gb_per_s: float) -> None:
    assert parse_cluster(f"2x{name}").tiers[-1].bandwidth_bytes_per_s == pytest.approx(
        gb_per_s * 1e9
    )


def test_nvl72_spans_trays_of_four() -> None:
    rack = parse_cluster("gb200-nvl72")
    assert (rack.num_gpus, rack.gpus_per_node, len(rack.tiers)) == (72, 4, 1)
    assert rack.tiers[0].bandwidth_bytes_per_s == 900e9
    two = parse_cluster("144xGB200")
    assert [tier.num_gpus for tier in two.tiers] == [72, 144]
    assert two.tiers[1].bandwidth_bytes_per_s == 50e9 and two.tiers[1].nics_per_node == 4


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("128xGB200", 64),
        ("1024xGB300", 64),
        ("288xGB200", 72),
        ("576xGB200", 72),
        ("100xGB200", 72),
        ("64xGB200", 64),
        ("128xH100", 8),
    ],
)
def test_jobs_over_racks_take_a_power_of_two_of_each(text: str, domain: int) -> None:
    """Megatron-Bridge's recipes take 64 of the 72 GPUs of a rack, whole racks are whole."""
    cluster = parse_cluster(text)
    assert cluster.tiers[0].num_gpus == domain
    assert ("cluster_domain" in dict(cluster.assumptions)) == (text in ("128xGB200", "1024xGB300"))


def test_boxes_without_nvlink() -> None:
    box = parse_cluster("8xRTX-3090")
    assert [(tier.name, tier.fabric) for tier in box.tiers] == [("node", "pcie")]
    pairs = parse_cluster("8xH100-NVL")
    assert [(t.fabric, t.num_gpus) for t in pairs.tiers] == [
        ("nvlink", 2),
        ("pcie", 4),
        ("socket", 8),
    ]


def test_sockets_of_a_host_without_nvlink_share_a_link() -> None:
    """NCCL, src/graph/topo.h: 16 GB/s between the sockets of an EPYC host, for all GPUs of one."""
    box = parse_cluster("8xA100-PCIe-80GB")
    assert [(t.name, t.fabric, t.num_gpus) for t in box.tiers] == [
        ("socket", "pcie", 4),
        ("node", "socket", 8),
    ]
    assert box.tiers[1].bandwidth_bytes_per_s == 16e9 / 4
    assert [t.fabric for t in parse_cluster("4xA100-PCIe-80GB").tiers] == ["pcie"]


def test_large_clusters_have_a_spine() -> None:
    cluster = parse_cluster("1024xH100")
    assert [tier.name for tier in cluster.tiers] == ["nvlink", "leaf", "spine"]
    assert [tier.num_gpus for tier in cluster.tiers] == [8, 256, 1024]


@pytest.mark.parametrize(
    ("text", "cards", "gigabits", "fabric"),
    [
        ("gigabit", 1, 1, "ethernet"),
        ("25GbE", 1, 25, "ethernet"),
        ("8x400Gb/s-ib", 8, 400, "infiniband"),
        ("4 x 100 Gbps efa", 4, 100, "efa"),
        ("2x200Gb/s-roce", 2, 200, "roce"),
        ("100Gb/s", 1, 100, None),
        ("50GB/s-ib", 1, 400, "infiniband"),
    ],
)
def test_networks(text: str, cards: int, gigabits: float, fabric: str | None) -> None:
    network = parse_network(text)
    assert network.nics_per_node == cards
    assert network.nic_bytes_per_s == pytest.approx(gigabits * 1e9 / 8)
    assert network.fabric == fabric


def test_slow_network() -> None:
    cluster = parse_cluster("48xH100@gigabit")
    check(cluster)
    outer = cluster.tiers[-1]
    assert outer.bandwidth_bytes_per_s == 1e9 / 8 / 8, "one gigabit card for eight GPUs"
    assert outer.fabric == "ethernet" and outer.nics_per_node == 1
    assert "cluster_network" not in dict(cluster.assumptions), "it was said"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0xH100", "bad_cluster_count"),
        ("-4xH100", "bad_cluster_count"),
        ("1.5xH100", "bad_cluster_count"),
        ("99999999999xH100", "number_too_large"),
        ("9999999999999999xH100", "number_too_large"),
        ("64xH1000", "unknown_cluster"),
        ("64", "bad_cluster"),
        ("", "bad_cluster"),
        ("64xH100@", "bad_network"),
        ("64xH100@400gb/s", "bad_network"),
        ("64xH100@fast", "bad_network"),
        ("zzzz", "unknown_cluster_far"),
    ],
)
def test_mistakes_in_the_shorthand(text: str, code: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_cluster(text)
    assert [problem.code for problem in caught.value.problems] == [code]


def test_both_halves_of_the_shorthand_are_reported() -> None:
    assert problems_of("64xFoo@fast") == [
        ("unknown_cluster_far", "cluster"),
        ("bad_network", "cluster"),
    ]


def test_base_with_changes() -> None:
    cluster = read({"base": "64xH100", "gpus": 100, "network": "25GbE", "usd_per_gpu_hour": 2.5})
    check(cluster)
    assert (cluster.num_gpus, cluster.device.usd_per_hour) == (100, 2.5)
    assert cluster.tiers[-1].bandwidth_bytes_per_s == 25e9 / 8 / 8


def test_measured_systems_bring_their_profile() -> None:
    assert parse_cluster("selene").profile == "selene"
    assert read({"base": "selene", "gpus": 1024}).profile == "selene"
    assert read({"base": "selene", "network": "25GbE"}).profile == "default", (
        "not what was measured"
    )
    assert parse_cluster("64xA100").profile == "default"
    profiles = {parse_cluster(name).profile for name in node_names()}
    assert profiles <= set(cluster_profile_names())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"base": "64xH100"}, {"node": "dgx-a100"}),
        ({"base": "64xH100"}, {"device": "A100"}),
        ({"base": "64xH100", "usd_per_hour": 1}, {"usd_per_gpu_hour": 1}),
        (
            {"base": "64xH100", "network": "25GbE"},
            {"tiers": [{"fabric": "ib", "bandwidth_per_gpu": "50 GB/s"}]},
        ),
    ],
)
def test_nothing_is_ignored(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert "keys_conflict" in [code for code, _ in problems_of({**first, **second})]


def test_the_outermost_level_may_hold_a_part_of_a_machine() -> None:
    """100 GPUs are twelve machines and a half, whatever their size is called."""
    levels = [
        {"fabric": "nvlink", "gpus": 8, "bandwidth_per_gpu": "450 GB/s"},
        {"fabric": "ib", "gpus": 100, "bandwidth_per_gpu": "50 GB/s"},
    ]
    assert read({"device": "H100", "gpus": 100, "tiers": levels}).tiers[-1].num_gpus == 100


def test_four_gpus_of_an_eight_gpu_machine() -> None:
    """One card per GPU stays one card per GPU."""
    cluster = read({"device": "H100", "nodes": 4, "gpus_per_node": 4})
    check(cluster)
    assert [tier.num_gpus for tier in cluster.tiers] == [4, 16]
    assert cluster.tiers[1].bandwidth_bytes_per_s == 50e9 and cluster.tiers[1].nics_per_node == 4


def test_levels_in_three_forms() -> None:
    inner = {"fabric": "nvlink", "gpus": 8, "bandwidth_per_gpu": "450 GB/s"}
    leaf = {"name": "leaf", "fabric": "ib", "gpus": 256}
    leaf |= {"bandwidth_per_nic": "400 Gb/s", "nics_per_node": 4}
    spine = {"name": "spine", "fabric": "ib", "bandwidth_per_node": "1.6 Tb/s"}
    spine |= {"oversubscription": 2, "latency": "5 us"}
    cluster = read({"device": "H100", "gpus": 1024, "tiers": [inner, leaf, spine]})
    check(cluster)
    middle, outer = cluster.tiers[1:]
    assert middle.bandwidth_bytes_per_s == 4 * 50e9 / 8
    assert outer.bandwidth_bytes_per_s == 200e9 / 8
    assert (outer.oversubscription, outer.latency_s, outer.num_gpus) == (2.0, 5e-6, 1024)
    assert "cluster_network" not in dict(cluster.assumptions)


def test_a_device_of_ones_own() -> None:
    device = {"name": "X1", "memory": "64 GiB", "usable_memory": "62 GiB", "num_sms": 100,
              "memory_bandwidth": "2 TB/s", "peaks": {"bf16": "500 TFLOP/s"}}  # fmt: skip
    cluster = read({"device": device, "gpus": 16})
    check(cluster)
    assert cluster.device.peak_flop_per_s == {"bf16": 500e12}
    smaller = read({"device": {"base": "H100", "memory": "64 GiB"}, "gpus": 8}).device
    full = parse_cluster("1xH100").device
    assert full.usable_bytes - smaller.usable_bytes == 16 * 2**30, "what is kept stays the same"


@pytest.mark.parametrize("peaks", [{}, {"fp8": "900 TFLOP/s"}, {"fp32": "30 TFLOP/s"}])
def test_a_device_needs_a_peak_in_16_bits(peaks: dict[str, str]) -> None:
    """Attention runs in 16 bits whatever the job's precision is."""
    device = {"name": "X1", "memory": "64 GiB", "usable_memory": "62 GiB", "num_sms": 100,
              "memory_bandwidth": "2 TB/s", "peaks": peaks}  # fmt: skip
    with pytest.raises(UserError) as caught:
        read({"device": device, "gpus": 8})
    assert [(p.code, p.where) for p in caught.value.problems] == [
        ("missing_key", "cluster.device.peaks.bf16")
    ]


def test_many_mistakes_at_once() -> None:
    found = problems_of(
        {
            "device": "H1000",
            "gpus": 0,
            "tiers": [{"fabric": "nvlink", "bandwidth_per_gpu": "450gb/s"}],
            "host_memory": "2 Tb",
            "speed": 3,
        }
    )
    assert ("unknown_device", "cluster.device") in found
    assert ("bad_count", "cluster.gpus") in found
    assert ("bad_memory", "cluster.host_memory") in found
    assert ("unknown_key_far", "cluster.speed") in found or (
        "unknown_key",
        "cluster.speed",
    ) in found


@pytest.mark.parametrize(
    ("tiers", "code", "where"),
    [
        ([{"fabric": "nvlink", "gpus": 8}], "one_bandwidth", "cluster.tiers.0"),
        (
            [
                {"fabric": "nvlink", "gpus": 8, "bandwidth_per_gpu": "450 GB/s"},
                {"fabric": "ib", "gpus": 8, "bandwidth_per_gpu": "50 GB/s"},
            ],
            "tiers_do_not_grow",
            "cluster.tiers.1.gpus",
        ),
        (
            [
                {"fabric": "nvlink", "gpus": 8, "bandwidth_per_gpu": "450 GB/s"},
                {"fabric": "ib", "gpus": 60, "bandwidth_per_gpu": "50 GB/s"},
                {"fabric": "ib", "bandwidth_per_gpu": "50 GB/s"},
            ],
            "tiers_not_nested",
            "cluster.tiers.1.gpus",
        ),
        (
            [{"fabric": "nvlink", "gpus": 8, "bandwidth_per_gpu": "450 GB/s"}],
            "tiers_too_small",
            "cluster.tiers.0.gpus",
        ),
        (
            [{"fabric": "ib", "bandwidth_per_nic": "400 Gb/s"}],
            "missing_key",
            "cluster.tiers.0.nics_per_node",
        ),
        (
            [{"fabric": "ib", "bandwidth_per_gpu": "50 GB/s", "oversubscription": 0.5}],
            "oversubscription_below_one",
            "cluster.tiers.0.oversubscription",
        ),
    ],
)
def test_mistakes_in_levels(tiers: list[Any], code: str, where: str) -> None:
    assert problems_of({"device": "H100", "gpus": 64, "tiers": tiers}) == [(code, where)]


@pytest.mark.parametrize(
    "data",
    [
        "64xH100",
        "dgx-h100",
        "48xH100@25GbE",
        {"base": "64xH100", "usd_per_gpu_hour": 2},
        {"base": "64xH100", "gpus": 100},
        {"device": "H100", "nodes": 4, "gpus_per_node": 4, "host_memory": "1 TiB"},
        {"node": "dgx-h100", "device": "H200", "gpus": 32},
        {"device": {"base": "H100", "memory": "64 GiB"}, "gpus": 12},
        {"base": "8xMI250X", "profile": "selene"},
    ],
)
def test_clusters_are_written_back(data: Any) -> None:
    cluster = read(data)
    assert read(dump_cluster(cluster)) == cluster


def test_each_problem_of_a_file_names_its_own_line_once(tmp_path):
    """Problems of a mapping in a mapping, of keys put together, and nothing that only follows."""
    file = tmp_path / "own.yaml"
    file.write_text(
        "device:\n  base: H1000\n  memory: 80\ngpus: 64\nnetwork: 400 foo\n"
        "tiers:\n  - {fabric: nvlink, gpus: 8, bandwidth_per_gpu: 450 GB/s, wrong: 1}\n"
    )
    problems = ProblemList()
    assert read_cluster(str(file), problems=problems) is None
    with pytest.raises(UserError) as caught:
        problems.raise_if_any()
    found = [
        (problem.where.removeprefix("own.yaml:"), problem.code) for problem in caught.value.problems
    ]
    assert found == [
        ("3: cluster.device.memory", "bad_memory"),
        ("2: cluster.device.base", "unknown_device"),
        ("6: cluster.tiers", "keys_conflict"),
        ("5: cluster.network", "bad_network"),
        ("7: cluster.tiers.0.wrong", "unknown_key_far"),
    ]


@pytest.mark.parametrize("form", ["8xH100", "dgx-h100", "8xH100@25GbE"])
def test_the_device_of_a_base_may_be_changed(form):
    """As ``--set cluster.device.memory=141GiB`` does to a shorthand."""
    base = read({"base": form})
    changed = read({"base": form, "device": {"memory": "141 GiB"}})
    assert changed.device.memory_bytes == 141 * 2**30
    kept = base.device.memory_bytes - base.device.usable_bytes
    assert changed.device.usable_bytes == 141 * 2**30 - kept
    assert changed.tiers == base.tiers and changed.num_gpus == base.num_gpus


def test_another_device_in_a_base_stays_a_conflict():
    problems = ProblemList()
    read_cluster({"base": "8xH100", "device": "A100"}, problems=problems)
    with pytest.raises(UserError) as caught:
        problems.raise_if_any()
    assert [problem.code for problem in caught.value.problems] == ["keys_conflict"]
