"""Figures that no hardware has are refused, those of all that is listed are not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from meshplan.app import service
from meshplan.app.quick import quick
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.cluster import Cluster, Device
from meshplan.inputs.load.bounds import check_bounds
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.cluster_mapping import dump_cluster, read_cluster
from meshplan.inputs.load.nodes import node_names
from meshplan.inputs.load.presets import PRESETS, device_names, load_device
from meshplan.text import LANGUAGES, t

TIER = {"fabric": "infiniband", "bandwidth_per_gpu": "50 GB/s", "gpus": 16}
ABSURD: list[tuple[dict[str, Any], str]] = [
    ({"device": {"base": "H100", "memory": "1e30 GiB"}}, "device.memory"),
    ({"device": {"base": "H100", "memory": "80 kB"}}, "device.memory"),
    ({"device": {"base": "H100", "usable_memory": "1 B"}}, "device.usable_memory"),
    ({"device": {"base": "H100", "memory_bandwidth": "1e30 GB/s"}}, "device.memory_bandwidth"),
    ({"device": {"base": "H100", "memory_bandwidth": "3.35 kB/s"}}, "device.memory_bandwidth"),
    ({"device": {"base": "H100", "peaks": {"bf16": "989e9 TFLOP/s"}}}, "device.peaks.bf16"),
    ({"device": {"base": "H100", "peaks": {"bf16": "989 FLOP/s"}}}, "device.peaks.bf16"),
    ({"host_memory": "2e9 TB"}, "host_memory"),
    ({"host_link": "64e12 GB/s"}, "host_link"),
    ({"network": "8x400000000Gb/s-ib"}, "network"),
    ({"network": "9999x1000000000Mb/s"}, "network"),
    ({"network": "0.00001Mb/s"}, "network"),
    ({"tiers": [{**TIER, "bandwidth_per_gpu": "1e20 GB/s"}]}, "tiers.0.bandwidth_per_gpu"),
    ({"tiers": [{**TIER, "latency": "5000 s"}]}, "tiers.0.latency"),
    ({"tiers": [{**TIER, "latency": "0.0001 ns"}]}, "tiers.0.latency"),
    (
        {
            "tiers": [
                {
                    "fabric": "roce",
                    "gpus": 16,
                    "bandwidth_per_nic": "900 TB/s",
                    "nics_per_node": 90000,
                }
            ]
        },
        "tiers.0.bandwidth_per_nic",
    ),
]


@pytest.mark.parametrize(("given", "place"), ABSURD, ids=lambda v: v if isinstance(v, str) else "")
def test_what_no_hardware_has_is_refused(given: dict[str, Any], place: str) -> None:
    problems = ProblemList()
    data = {"base": "16xH100", **given}
    if "device" in given:
        data = {"gpus": 16, **given}
    read_cluster(data, problems=problems)
    with pytest.raises(UserError) as refused:
        problems.raise_if_any()
    (problem,) = refused.value.problems
    assert problem.code == "beyond_hardware"
    assert problem.where == f"cluster.{place}"
    for lang in LANGUAGES:
        assert t(
            "error.beyond_hardware",
            lang,
            where=problem.where,
            value=problem.value,
            **problem.numbers,
        )


def _figures_hold(cluster: Cluster) -> None:
    device: Device = cluster.device
    found = [("host_memory", cluster.host_memory_bytes), ("link", cluster.host_link_bytes_per_s)]
    found += [("device_memory", b) for b in (device.memory_bytes, device.usable_bytes)]
    found += [("memory_bandwidth", device.memory_bandwidth_bytes_per_s)]
    found += [("peak", peak) for peak in device.peak_flop_per_s.values()]
    for tier in cluster.tiers:
        found += [("link", tier.bandwidth_bytes_per_s), ("latency", tier.latency_s)]
    for figure, size in found:
        check_bounds(figure, size, where=figure, value=size)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*device_names(), *node_names()])
def test_all_that_is_listed_reads_back(name: str) -> None:
    cluster = parse_cluster(f"4x{name}")
    _figures_hold(cluster)
    problems = ProblemList()
    assert read_cluster(dump_cluster(cluster), problems=problems) is not None
    problems.raise_if_any()


def test_bounds_leave_room_beyond_what_there_is() -> None:
    """Each names the hardware that comes closest, and none of the list is within a factor of 4."""
    bounds = yaml.safe_load((PRESETS / "bounds.yaml").read_text("utf-8"))["bounds"]
    for bound in bounds.values():
        assert bound["least"]["source"] and bound["most"]["source"]
    for name in device_names():
        device = load_device(name)
        check_bounds("device_memory", 4 * device.memory_bytes, where="", value="")
        check_bounds("device_memory", device.usable_bytes / 4, where="", value="")
        for peak in device.peak_flop_per_s.values():
            check_bounds("peak", 4 * peak, where="", value="")
            check_bounds("peak", peak / 4, where="", value="")


def test_the_rule_of_thumb_takes_no_other_memory() -> None:
    with pytest.raises(UserError, match="beyond_hardware"):
        quick({"num_params_b": 7, "num_gpus": 8, "gpu_memory_gb": 1e9})
    with pytest.raises(UserError, match="beyond_hardware"):
        service.estimate(
            {
                "model": "llama-3.1-8b",
                "cluster": {"base": "8xH100", "device": {"memory": "1e30 GiB"}},
                "job": {"seq_len": 4096, "global_batch": 8},
                "plan": {},
            }
        )
