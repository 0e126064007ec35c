"""Recurrences and short convolutions: bytes, speeds by device, and what recompute repeats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_scenarios import grid, plan, scenario
from meshplan.cost.compute import rerun_share
from meshplan.cost.kernels import Kernels
from meshplan.cost.notes import time_assumptions
from meshplan.cost.operators import (
    Elementwise,
    Gemm,
    Operator,
    Scan,
    layer_operators,
    shapes_of,
)
from meshplan.cost.surfaces import scan_bandwidth
from meshplan.cost.tuning import Tuning
from meshplan.inputs.load.presets import load_device
from meshplan.inputs.model import LinearAttention, Mixer, StateSpace
from meshplan.space.plan import Recompute

SEQ_LEN = 4096
SEQUENCES = 3


def scans(model: str, kind: type[Mixer], *, micro_batch: int = SEQUENCES) -> list[Scan]:
    case = scenario(model, cluster="8xH100", seq_len=SEQ_LEN)
    layer = next(each for each in case.model.layers if isinstance(each.mixer, kind))
    shapes = shapes_of(case, grid(plan(8, micro_batch=micro_batch)), Tuning())
    return [each for each in layer_operators(layer, shapes) if isinstance(each, Scan)]


def seconds(device: str, found: list[Scan]) -> float:
    kernels = Kernels(load_device(device), precision="bf16", tuning=Tuning())
    times = [seconds for scan in found for seconds in kernels.scan_s(scan)]
    return float(sum(np.ravel(time)[0] for time in times))


def block_s(device: str, operators: list[Operator]) -> float:
    """All kernels of a block, forward and backward [s]."""
    kernels = Kernels(load_device(device), precision="bf16", tuning=Tuning())
    total = 0.0
    for each in operators:
        if isinstance(each, Gemm):
            times = kernels.products_s(each)
        else:
            assert isinstance(each, Scan | Elementwise)
            times = kernels.scan_s(each) if isinstance(each, Scan) else kernels.elementwise_s(each)
        total += float(sum(np.ravel(time)[0] for time in times))
    return total


def test_a_block_of_mamba_takes_what_a_profile_shows() -> None:
    """23 blocks of Nemotron 3 Nano took 71.5 ms of a step with 12,288 tokens on each H100.

    Source: GiscardBiamby/Automodel-scalingai-f26, mfu/results/20260928-172950_final8_nsys.
    """
    found = scans("nemotron-3-nano-30b-a3b", StateSpace)
    assert [scan.kind for scan in found] == ["convolution", "state_space"]
    assert seconds("H100", found) == pytest.approx(71.5e-3 / 23, rel=0.02)


def test_the_flop_of_mamba_2_are_those_of_its_paper() -> None:
    """Arxiv:2405.21060, section 6, for 64 heads of 64 channels, 8 groups, state and chunk 128."""
    (scan,) = (s for s in scans("nemotron-3-nano-30b-a3b", StateSpace) if s.kind != "convolution")
    expected = 2.0 * SEQUENCES * SEQ_LEN * (128 * (1024 + 4096) + 2 * 4096 * 128)
    assert float(np.ravel(scan.forward_flop)[0]) == expected


@pytest.mark.parametrize(
    ("slow", "fast", "measured"),
    [("A100-80GB", "H200", 239.2 / 102.5), ("H200", "GB200", 360.4 / 239.2)],
)
def test_training_of_mamba_2_gains_what_was_measured(slow: str, fast: str, measured: float) -> None:
    """Blocks of width 2,048, four sequences of 4,096 tokens, in bf16; nothing was fitted to it.

    TFLOP/s from state-spaces/mamba issue 904. Kernels that gain as much as the memory would make
    GB200 1.9 times as fast as H200; it was 1.5 times.
    """
    case = scenario("nemotron-h-8b", cluster="8xH100", seq_len=SEQ_LEN)
    layer = next(each for each in case.model.layers if isinstance(each.mixer, StateSpace))
    assert isinstance(layer.mixer, StateSpace)
    mixer = replace(
        layer.mixer, inner_dim=4096, num_heads=64, num_groups=1, state_dim=128, chunk_size=256
    )
    narrow = replace(case, model=replace(case.model, hidden=2048))
    shapes = shapes_of(narrow, grid(plan(8, micro_batch=4)), Tuning())
    operators = layer_operators(replace(layer, mixer=mixer), shapes)
    found = [block_s(device, operators) for device in (slow, fast)]
    assert found[0] / found[1] == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize("model,kind", [
    ("nemotron-3-nano-30b-a3b", StateSpace),
    ("qwen3-next-80b-a3b", LinearAttention),
])  # fmt: skip
@pytest.mark.parametrize("device", ["B200", "GB200", "GB300"])
def test_blackwell_gains_less_than_its_memory(model: str, kind: type[Mixer], device: str) -> None:
    """Its memory is 2.4 times as fast as that of H100; the kernels were measured 1.25 to 1.41."""
    found = scans(model, kind, micro_batch=16)
    assert 1.25 < seconds("H100", found) / seconds(device, found) < 1.42


def test_a_device_without_measurements_follows_its_memory() -> None:
    a100, h100 = load_device("A100-80GB"), load_device("H100")
    share = a100.memory_bandwidth_bytes_per_s / h100.memory_bandwidth_bytes_per_s
    for kind in ("state_space", "delta_rule", "convolution"):
        assert scan_bandwidth(a100, kind) == pytest.approx(scan_bandwidth(h100, kind) * share)


@pytest.mark.parametrize(
    "model,cluster,said",
    [
        ("nemotron-3-nano-30b-a3b", "8xA100-80GB", True),
        ("nemotron-3-nano-30b-a3b", "8xH100", False),
        ("llama-3.1-8b", "8xA100-80GB", False),
    ],
)
def test_the_stand_in_is_named_where_a_model_has_them(model: str, cluster: str, said: bool) -> None:
    codes = [code for code, _ in time_assumptions(scenario(model, cluster=cluster))]
    assert ("scans_of_sibling" in codes) is said


def test_no_selective_recompute_repeats_them() -> None:
    """Megatron-LM's modules are those of attention, norms and experts; full recompute has all."""
    (scan, *_) = scans("nemotron-3-nano-30b-a3b", StateSpace)
    modes = (Recompute.NONE, Recompute.CORE_ATTENTION | Recompute.NORM, Recompute.FULL)
    plans = grid(*(plan(8, recompute=mode) for mode in modes))
    assert rerun_share(scan, plans).tolist() == [0.0, 0.0, 1.0]
