"""Devices: every figure has a source, peaks are dense, memory is what a process can use."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from meshplan.cost.surfaces.tables import gemm_surface
from meshplan.errors import UserError
from meshplan.inputs.cluster import Device
from meshplan.inputs.load.device_mapping import DEVICE
from meshplan.inputs.load.nodes import load_node, node_names
from meshplan.inputs.load.presets import PRESETS, device_names, device_preset, load_device
from meshplan.provenance import Kind
from meshplan.units import GIB, TERA

DEVICE_FILES = ("devices_nvidia.yaml", "devices_other.yaml")

# (device, precision) to the rate with 2:4 sparsity that the vendor prints [TFLOP/s]. Sources: the
# datasheets that devices_nvidia.yaml and devices_other.yaml name, columns "with sparsity".
SPARSE = {
    ("A100-40GB", "bf16"): 624,
    ("A100-80GB", "bf16"): 624,
    ("A100-PCIe-80GB", "bf16"): 624,
    ("A800", "bf16"): 624,
    ("A10", "bf16"): 250,
    ("A10G", "bf16"): 140,
    ("A30", "bf16"): 330,
    ("A40", "bf16"): 299.4,
    ("RTX-A6000", "bf16"): 309.7,
    ("RTX-3090", "bf16"): 142,
    ("L4", "bf16"): 242,
    ("L4", "fp8"): 485,
    ("L40", "bf16"): 362.1,
    ("L40", "fp8"): 724,
    ("L40S", "bf16"): 733,
    ("L40S", "fp8"): 1466,
    ("RTX-6000-Ada", "bf16"): 728.5,
    ("RTX-6000-Ada", "fp8"): 1457,
    ("RTX-4090", "bf16"): 330.4,
    ("RTX-4090", "fp8"): 660.6,
    ("RTX-5090", "bf16"): 419,
    ("RTX-5090", "fp8"): 838,
    ("RTX-5090", "nvfp4"): 3352,
    ("RTX-PRO-6000-Workstation", "bf16"): 1007.6,
    ("RTX-PRO-6000-Workstation", "nvfp4"): 4030.4,
    ("H100", "bf16"): 1978.9,
    ("H100", "fp8"): 3957.8,
    ("H100-PCIe", "bf16"): 1513,
    ("H100-PCIe", "fp8"): 3026,
    ("H100-NVL", "bf16"): 1671,
    ("H100-NVL", "fp8"): 3341,
    ("H800", "bf16"): 1979,
    ("H20", "bf16"): 296,
    ("H20", "fp8"): 592,
    ("H200", "bf16"): 1979,
    ("H200", "fp8"): 3958,
    ("H200-NVL", "bf16"): 1671,
    ("GH200", "bf16"): 1979,
    ("B100", "bf16"): 3500,
    ("B100", "nvfp4"): 14000,
    ("B200", "bf16"): 4500,
    ("B200", "fp8"): 9000,
    ("B200", "nvfp4"): 18000,
    ("B300", "bf16"): 4500,
    ("B300", "fp8"): 9000,
    ("B300", "nvfp4"): 18000,
    ("GB200", "bf16"): 5000,
    ("GB200", "fp8"): 10000,
    ("GB200", "nvfp4"): 20000,
    ("GB300", "bf16"): 5000,
    ("GB300", "fp8"): 10000,
    ("GB300", "nvfp4"): 20000,
    ("MI300X", "bf16"): 2614.9,
    ("MI300X", "fp8"): 5229.8,
    ("MI325X", "bf16"): 2614.9,
    ("MI350X", "bf16"): 4613.7,
    ("MI350X", "fp8"): 9227.5,
    ("MI355X", "bf16"): 5033.2,
    ("MI355X", "fp8"): 10066.3,
}
# fp4 of Blackwell Ultra: sparsity gives it 4/3, not 2 (108 of 144 PFLOPS, 1,080 of 1,440).
SPARSE_GAIN = {("B300", "nvfp4"): 4 / 3, ("GB300", "nvfp4"): 4 / 3}


def blocks(file: str) -> Any:
    return yaml.safe_load((PRESETS / file).read_text("utf-8"))


def test_at_least_35_devices_with_the_kept_names() -> None:
    names = device_names()
    assert len(names) >= 35
    assert {"H100", "A100-80GB"} <= set(names)
    assert {device_preset(name).device.vendor for name in names} == {
        "nvidia",
        "amd",
        "intel",
        "huawei",
        "google",
    }


@pytest.mark.parametrize("file", [*DEVICE_FILES, "nodes.yaml"])
def test_every_figure_has_a_source_and_a_kind(file: str) -> None:
    data = blocks(file)
    used = set()
    for name, entry in data["devices" if "devices" in data else "nodes"].items():
        for block in entry["figures"]:
            assert block.get("source") in data["sources"], f"{name}: a figure without a source"
            assert block.get("kind") in get_args(Kind), f"{name}: {block}"
            assert set(block) - {"source", "kind"}, f"{name}: a source without a figure"
            used.add(block["source"])
        outside = set(entry) - {
            "figures", "aliases", "node", "vendor", "architecture", "kernel_table", "device",
            "profile",
        }  # fmt: skip
        assert not outside, f"{name}: {outside} stand outside a sourced block"
    assert used == set(data["sources"]), f"unused: {set(data['sources']) - used}"


def test_every_fabric_figure_has_a_source() -> None:
    data = blocks("fabrics.yaml")
    figures = [*data["latency"].values(), *data["pcie"].values(), data["switch_hop"]]
    for figure in figures:
        assert set(figure) == {"value", "source", "kind"}
        assert figure["source"] in data["sources"] and figure["kind"] in get_args(Kind)
    assert {figure["source"] for figure in figures} == set(data["sources"])


@pytest.mark.parametrize("name", device_names())
def test_every_attribute_of_a_device_says_where_it_comes_from(name: str) -> None:
    device = load_device(name)
    stated = set(device.sources)
    peaks = {f"peak_flop_per_s.{precision}" for precision in device.peak_flop_per_s}
    plain = {"memory_bytes", "usable_bytes", "memory_bandwidth_bytes_per_s", "num_sms"}
    assert stated == peaks | plain
    assert all(text.strip() for text in device.sources.values())


@pytest.mark.parametrize(("device", "precision"), SPARSE)
def test_peaks_are_dense(device: str, precision: str) -> None:
    gain = SPARSE_GAIN.get((device, precision), 2)
    dense = load_device(device).peak_flop_per_s[precision] / TERA
    assert dense == pytest.approx(SPARSE[device, precision] / gain, rel=0.015)


@pytest.mark.parametrize("name", device_names())
def test_no_peak_is_anybodys_sparse_peak(name: str) -> None:
    """Narrower formats are at most twice as fast per halving of their width."""
    peaks = load_device(name).peak_flop_per_s
    half = peaks.get("bf16", peaks.get("fp16"))
    assert half is not None, "every device multiplies matrices in 16 bits"
    for device, precision in SPARSE:
        if device == name and SPARSE_GAIN.get((device, precision), 2) == 2:
            assert peaks[precision] < 0.6 * SPARSE[device, precision] * TERA
    if "fp8" in peaks:
        assert half <= peaks["fp8"] <= 2.03 * half
    if "mxfp8" in peaks:
        assert peaks["mxfp8"] == peaks["fp8"]
    if "nvfp4" in peaks:
        # Blackwell Ultra and GeForce Blackwell run fp4 at three and four times fp8
        assert 1.99 * peaks["fp8"] <= peaks["nvfp4"] <= 4.01 * peaks["fp8"]


@pytest.mark.parametrize("name", device_names())
def test_memory_that_can_be_used_is_less_than_the_label(name: str) -> None:
    preset = device_preset(name)
    device = preset.device
    assert device.usable_bytes == preset.total_memory_bytes - preset.context_bytes
    assert 0.87 * device.memory_bytes < device.usable_bytes < device.memory_bytes
    assert device.num_sms > 0 and device.memory_bandwidth_bytes_per_s > 1e11


# total_memory as PyTorch prints it, from logs that name the device: torchtitan's "CUDA capacity",
# out-of-memory messages of single devices, and nvidia-smi less what the driver keeps (0.4 to 0.7).
REPORTED_GIB = {
    "H100": (79.1, 79.21),
    "A100-80GB": (79.1, 79.33),
    "A100-40GB": (39.38, 39.6),
    "V100-32GB": (31.73, 31.75),
    "H200": (139.7, 139.82),
    "B200": (178.35, 178.37),
    "GB200": (184.3, 184.32),
    "B300": (267.6, 267.7),
    "MI300X": (191.6, 192.0),
    "RTX-4090": (23.5, 23.66),
}


@pytest.mark.parametrize(("name", "between"), REPORTED_GIB.items())
def test_total_memory_is_what_the_driver_reports(name: str, between: tuple[float, float]) -> None:
    low, high = between
    assert low <= device_preset(name).total_memory_bytes / GIB <= high


def test_devices_without_bf16() -> None:
    without = {name for name in device_names() if "bf16" not in load_device(name).peak_flop_per_s}
    assert without == {name for name in device_names() if name.startswith(("V100", "T4", "TITAN"))}


# scale-up bandwidth of one GPU in one direction, half of what NVIDIA prints [GB/s]
LINKS = {"V100-32GB": 150, "A100-80GB": 300, "A800": 200, "H100": 450, "H800": 200, "H20": 450,
         "H200": 450, "B200": 900, "GB200": 900, "GB300": 900, "MI300X": 448}  # fmt: skip


@pytest.mark.parametrize(("name", "gb_per_s"), LINKS.items())
def test_links_count_one_direction(name: str, gb_per_s: float) -> None:
    assert device_preset(name).link_bytes_per_s == gb_per_s * 1e9


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100", "H100"),
        ("H100-SXM", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h100_pcie", "H100-PCIe"),
        ("A100", "A100-80GB"),
        ("nvidia a100-sxm4-40gb", "A100-40GB"),
        ("4090", "RTX-4090"),
        ("GeForce RTX 4090", "RTX-4090"),
        ("AMD Instinct MI300X 192GB HBM3", "MI300X"),
        ("tpu v5p", "TPU-v5p"),
        ("Ascend910B3", "Ascend-910B"),
    ],
)
def test_aliases(written: str, name: str) -> None:
    assert load_device(written).name == name


@pytest.mark.parametrize("written", ["A100 16GB", "H100 64GB", "H100-SXMM", "", "gpu", "H1000"])
def test_unknown_devices_are_refused(written: str) -> None:
    with pytest.raises(UserError) as caught:
        load_device(written)
    problem = caught.value.problems[0]
    assert problem.code in ("unknown_device", "unknown_device_far")
    assert "H100" in problem.allowed


def test_close_names_are_suggested() -> None:
    with pytest.raises(UserError) as caught:
        load_device("H100-PCI")
    assert str(caught.value.problems[0].numbers["nearest"]).startswith("H100-PCIe")


def test_each_device_has_a_machine_that_exists() -> None:
    for name in device_names():
        assert load_node(device_preset(name).node, device=name).device == name
    assert len(node_names()) >= 12


def test_kernel_tables_exist_in_the_measured_data(shared: Path) -> None:
    with (shared / "data/kernels/gemm.csv").open() as file:
        measured = {row["gpu"] for row in csv.DictReader(file)}
    tables = {load_device(name).kernel_table for name in device_names()} - {None}
    assert measured == tables, "a measured device that no preset uses"


def test_kernel_surfaces_were_fitted_with_the_peaks_of_the_presets() -> None:
    """Otherwise a device would be scaled against its own measurements."""
    text = (PRESETS.parents[1] / "cost/surfaces/siblings.json").read_text("utf-8")
    tables = json.loads(text)["tables"]
    devices = {load_device(name).kernel_table: load_device(name) for name in device_names()[::-1]}
    devices["a100_sxm"] = load_device("A100-80GB")
    for table, facts in tables.items():
        device, peaks = devices[table], facts["peak_flop_per_s"]
        assert device.memory_bandwidth_bytes_per_s == facts["memory_bandwidth_bytes_per_s"], table
        for dtype, precision in (("bfloat16", "bf16"), ("fp8", "fp8"), ("nvfp4", "nvfp4")):
            if dtype in peaks and precision in device.peak_flop_per_s:
                assert device.peak_flop_per_s[precision] == pytest.approx(peaks[dtype], rel=2e-4)


def test_names_in_measured_runs_are_known(shared: Path) -> None:
    """Every device that published runs name resolves; the exceptions do not name one device."""
    with (shared / "data/measured/runs.csv").open() as file:
        named = {row["gpu"] for row in csv.DictReader(file)} - {""}
    unknown = set()
    for name in named:
        try:
            load_device(name)
        except UserError:
            unknown.add(name)
    assert unknown <= {"4 x A100", "H200 (source label; text implies B200)"}


def test_the_fastest_measured_product_stays_below_the_dense_peak(shared: Path) -> None:
    """A sparse peak would leave the best bf16 product below a half, a wrong one above one."""
    precisions = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}
    devices = {load_device(name).kernel_table: load_device(name) for name in device_names()}
    best: dict[tuple[str, str], float] = {}
    with (shared / "data/kernels/gemm.csv").open() as file:
        for row in csv.DictReader(file):
            flop = 2.0 * int(row["m"]) * int(row["n"]) * int(row["k"])
            key = (row["gpu"], precisions.get(row["dtype"], ""))
            best[key] = max(best.get(key, 0.0), flop / (float(row["latency_ms"]) * 1e-3))
    checked = 0
    for (table, precision), reached in best.items():
        peak = devices[table].peak_flop_per_s.get(precision)
        if peak is None:
            continue  # block-scaled fp8 has no peak of its own, and B60 none for fp8
        checked += 1
        assert (0.75 if precision == "bf16" else 0.4) < reached / peak <= 1.0, (table, precision)
    assert checked == 23


def device_like(**figures: object) -> Device:
    found: Device = DEVICE.read({"base": "H100", **figures}, "device")
    return found


def test_a_device_with_another_peak_runs_its_products_at_that_peak() -> None:
    usual, half = load_device("H100"), device_like(peaks={"bf16": "494.7 TFLOP/s"})
    size = {"m": 8192.0, "n": 8192.0, "k": 8192.0}
    seconds = [gemm_surface(device, "bf16").seconds(**size) for device in (half, usual)]
    assert seconds[0] / seconds[1] == pytest.approx(2.0, rel=0.01)
    same = device_like(peaks={"bf16": "989.4 TFLOP/s"}, memory="94 GiB")
    assert same.kernel_table == usual.kernel_table


def test_tables_of_kernels_that_nobody_measured_are_the_users_mistake() -> None:
    with pytest.raises(UserError, match="unknown_choice"):
        device_like(kernel_table="H100")
