"""Attention that stores its scores: which softmax runs, and what heads of odd widths cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_scenarios import plan, scenario
from meshplan.cost.kernels import Kernels
from meshplan.cost.memory import peak_memory
from meshplan.cost.notes import time_assumptions
from meshplan.cost.operators import Gemm, ScoreProduct, shapes_of
from meshplan.cost.operators.attention import attention_operators, takes_fused_softmax
from meshplan.cost.surfaces import constant
from meshplan.cost.tuning import Tuning
from meshplan.cost.unit_time import tuning_of
from meshplan.inputs.load.presets import load_device
from meshplan.inputs.load.profile import framework_profile, profile_of
from meshplan.inputs.model import CrossAttention
from meshplan.space.plan import Framework, PlanGrid


def scores(**changes: float | bool) -> ScoreProduct:
    """Scores of one micro-batch of a model with eight heads of 128 on the device."""
    values: dict[str, float | str | bool] = {
        "name": "core_attention",
        "batch": 1.0,
        "heads": 8.0,
        "kv_heads": 8.0,
        "query_len": 2048.0,
        "key_len": 2048.0,
        "pairs": 2048.0 * 2049.0 / 2.0,
        "full_pairs": 2048.0**2,
        "qk_dim": 128.0,
        "v_dim": 128.0,
        "fused": False,
        "softmax_bytes_forward": 3.0,
        "softmax_bytes_backward": 4.0,
        **changes,
    }
    return ScoreProduct(**values)  # type: ignore[arg-type]


def kernels(device: str = "A100-80GB") -> Kernels:
    return Kernels(load_device(device), precision="fp16", tuning=Tuning())


@pytest.mark.parametrize("width", [108.0, 150.0, 145.0])
def test_heads_of_odd_widths_run_on_the_vector_units(width: float) -> None:
    """Four products of ``2 s^2 d`` FLOP for each head and pass: two forward, four backward."""
    one = scores(qk_dim=width, v_dim=width)
    rest = scores(qk_dim=0.0, v_dim=0.0)
    forward, backward = (
        float(np.squeeze(a - b))
        for a, b in zip(kernels().attention_s(one), kernels().attention_s(rest), strict=True)
    )
    product = 2.0 * 8 * 2048.0**2 * width
    speed = 19.5e12 * constant("unaligned_products")
    assert forward == pytest.approx(2 * product / speed, rel=1e-6)
    assert backward == pytest.approx(4 * product / speed, rel=1e-6)


def test_wider_heads_that_are_multiples_of_eight_are_faster() -> None:
    narrow, wide = (
        float(np.squeeze(kernels().attention_s(scores(qk_dim=w, v_dim=w))[0]))
        for w in (108.0, 112.0)
    )
    assert wide < narrow / 4


def test_without_a_figure_for_vector_units_nothing_is_said() -> None:
    device = load_device("A100-80GB")
    peaks = {name: peak for name, peak in device.peak_flop_per_s.items() if name != "fp32"}
    lacks = Kernels(replace(device, peak_flop_per_s=peaks), precision="fp16", tuning=Tuning())
    odd, even = (float(lacks.attention_s(scores(qk_dim=w, v_dim=w))[0]) for w in (108.0, 112.0))
    assert odd == pytest.approx(even, rel=0.1)


def softmax(tp: int, micro_batch: int, variant: str = "") -> tuple[float, float]:
    """Kernels of the softmax of 16 heads, and what they move for each score forward."""
    case = replace(scenario("gpt3-13b", cluster="8xA100", attention="unfused"), variant=variant)
    layer = case.model.layer_kinds[0]
    mixer = replace(layer.mixers[0], num_heads=16, num_kv_heads=16)
    grid = PlanGrid.of([plan(8, tp=tp, micro_batch=micro_batch)])
    tuning = tuning_of(profile_of(case, "megatron"), case.cluster)
    operators = attention_operators(mixer, shapes_of(case, grid, tuning))
    (core,) = (one for one in operators if isinstance(one, ScoreProduct))
    return float(np.squeeze(core.softmax_kernels)), float(np.squeeze(core.softmax_bytes_forward))


@pytest.mark.parametrize(
    ("tp", "micro_batch", "fused"), [(8, 1, False), (8, 2, True), (4, 1, True), (1, 1, True)]
)
def test_the_fused_softmax_takes_four_matrices_of_scores_at_a_time(
    tp: int, micro_batch: int, fused: bool
) -> None:
    """16 heads: Megatron-LM, legacy/model/fused_softmax.py, is_kernel_available."""
    plain = (constant("plain_softmax_kernels"), 37.0)
    assert softmax(tp, micro_batch) == ((1.0, 3.0) if fused else plain)


def test_stacks_without_that_kernel_take_the_operators_of_torch() -> None:
    assert softmax(1, 1, variant="aleph-alpha-torch") == (5.0, 29.0)
    assert framework_profile("megatron").fused_softmax
    assert not framework_profile("accelerate").fused_softmax


@pytest.mark.parametrize(("attention", "said"), [("unfused", True), ("flash", False)])
def test_the_answer_says_that_heads_are_of_an_odd_width(attention: str, said: bool) -> None:
    """A width of 13,824 over 128 heads is 108."""
    case = scenario("gpt3-13b", cluster="8xA100", attention=attention)
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, head_dim=108, v_head_dim=108))
        for layer in case.model.layers
    )
    odd = replace(case, model=replace(case.model, layers=layers))
    assert (("unaligned_heads", "108") in time_assumptions(odd)) is said
    assert "unaligned_heads" not in dict(time_assumptions(case))


def test_latent_and_cross_attention_say_so_too() -> None:
    latent = scenario("deepseek-v2-lite", attention="unfused")
    assert "unaligned_heads" not in dict(time_assumptions(latent))
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, qk_rope_head_dim=60))
        for layer in latent.model.layers
    )
    odd = replace(latent, model=replace(latent.model, layers=layers))
    assert ("unaligned_heads", "188") in time_assumptions(odd)
    cross = CrossAttention(
        num_heads=32, num_kv_heads=8, head_dim=100, context_dim=4096, qk_norm="head", gated=True
    )
    case = scenario(attention="unfused")
    first, *rest = case.model.layers
    mixed = replace(case.model, layers=(replace(first, mixer=cross), *rest))
    assert ("unaligned_heads", "100") in time_assumptions(replace(case, model=mixed))


def test_gradients_of_16_bits_are_added_with_less_traffic() -> None:
    """A weight of ``n k`` is read and written in the width of the buffer, not written once."""
    product = Gemm(name="mlp_input_projection", m=1024.0, n=4096.0, k=4096.0)
    device = load_device("A100-80GB")
    wide, narrow = (
        Kernels(device, precision="bf16", tuning=Tuning(), gradient_bytes=width).products_s(product)
        for width in (4.0, 2.0)
    )
    assert (wide[0], wide[1]) == (narrow[0], narrow[1])
    bandwidth = device.memory_bandwidth_bytes_per_s * constant("memory_efficiency")
    assert float(np.squeeze(wide[2] - narrow[2])) == pytest.approx(
        4 * 4096.0**2 / bandwidth, rel=1e-9
    )


def test_odd_sequence_lengths_and_other_vendors_are_left_as_they_are() -> None:
    """Runs of odd head widths on NVIDIA's devices are all that is known."""
    odd, even = (
        float(np.squeeze(kernels().attention_s(scores(query_len=n, key_len=n))[0]))
        for n in (2052.0, 2048.0)
    )
    assert odd == pytest.approx(even, rel=0.05)
    narrow, wide = (
        float(np.squeeze(kernels("MI300X").attention_s(scores(qk_dim=w, v_dim=w))[0]))
        for w in (108.0, 112.0)
    )
    assert narrow == pytest.approx(wide, rel=0.1)


def test_what_a_compiler_fuses_takes_any_number_of_heads() -> None:
    three = np.array([3.0, 3.0, 4.0])
    frameworks = np.array([Framework.MEGATRON, Framework.ACCELERATE, Framework.DEEPSPEED])
    taken = takes_fused_softmax(three, key_len=2048, framework=frameworks.astype(np.int64))
    assert taken.tolist() == [False, True, True]
    assert not framework_profile("deepspeed").fused_softmax
    assert framework_profile("deepspeed", "deepspeed-zero3-2021").fused_softmax


def test_the_softmax_of_torch_keeps_its_output_in_32_bits() -> None:
    """40 heads at TP 8: one sequence makes five matrices of scores, four make twenty."""
    case = scenario("gpt3-13b", cluster="8xA100", attention="unfused", seq_len=2048)
    grid = PlanGrid.of([plan(8, tp=8, micro_batch=size) for size in (1, 2, 4)])
    one, two, four = peak_memory(case, grid).allocated_bytes
    fixed = 2 * one - two
    more = (two - one) - (four - fixed) / 4
    scores_of_block = 5 * 2048.0**2
    # 4 bytes in each of the blocks, and as much in flight in one
    assert more == pytest.approx(4 * (case.model.num_layers + 1) * scores_of_block, rel=0.02)
