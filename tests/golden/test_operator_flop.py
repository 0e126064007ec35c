"""FLOP of operators against counts that were traced on real runtimes (facts B2)."""

from __future__ import annotations

import numpy as np
import pytest

from cost_scenarios import grid, mixture, plan, scenario
from meshplan.cost.compute import rerun_share
from meshplan.cost.operators import (
    Elementwise,
    Gemm,
    Operator,
    ScoreProduct,
    head_operators,
    layer_operators,
    shapes_of,
)
from meshplan.cost.tuning import Tuning
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import CpComm, Framework, PlanGrid, Recompute


def operators(case: Scenario, plans: PlanGrid) -> list[Operator]:
    return layer_operators(case.model.layers[0], shapes_of(case, plans, Tuning()))


def forward_flop(case: Scenario, plans: PlanGrid, kind: type) -> float:
    return sum(float(np.sum(o.forward_flop)) for o in operators(case, plans) if isinstance(o, kind))


def test_matrix_products_of_llama_8b() -> None:
    """tp 8, seq 8192, one sequence: 46.109 TFLOP of products per rank, forward and backward."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(tp=8, sp=True, framework=Framework.TORCHTITAN))
    shapes = shapes_of(case, plans, Tuning())
    head = [o for o in head_operators(case.model, shapes, padded_vocab=128256.0)]
    products = 32 * forward_flop(case, plans, Gemm)
    products += sum(float(np.sum(o.forward_flop)) for o in head if isinstance(o, Gemm))
    assert 3 * products / 1e12 == pytest.approx(46.109, abs=5e-4)


def test_full_recompute_of_llama_8b() -> None:
    """Torch's checkpoint leaves out the last product of a block: 56.55 TFLOP instead of 46.109."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(tp=8, sp=True, framework=Framework.TORCHTITAN, recompute=Recompute.FULL))
    products = [o for o in operators(case, plans) if isinstance(o, Gemm)]
    again = sum(float(np.sum(o.forward_flop * rerun_share(o, plans))) for o in products)
    again -= float(np.sum(products[-1].forward_flop))
    assert 46.109 + 32 * again / 1e12 == pytest.approx(56.55, abs=5e-3)


def test_flash_attention_of_llama_8b() -> None:
    """``4 s^2 h L / tp`` = 4.398 TFLOP forward when causality is not counted."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(tp=8, sp=True))
    core = next(o for o in operators(case, plans) if isinstance(o, ScoreProduct))
    full = 2.0 * core.batch * core.heads * core.full_pairs * (core.qk_dim + core.v_dim)
    assert 32 * float(full[0]) / 1e12 == pytest.approx(4.398, abs=5e-4)
    causal = 32 * float(np.sum(core.forward_flop))
    assert causal / 1e12 == pytest.approx(4.398 / 2 * (1 + 1 / 8192), abs=5e-4)


@pytest.mark.parametrize("comm", list(CpComm))
def test_context_parallelism_splits_the_pairs(comm: CpComm) -> None:
    """Head-tail balancing gives every device the same share of the causal pairs."""
    case = scenario("llama-3.1-8b")
    whole = forward_flop(case, grid(plan()), ScoreProduct)
    assert forward_flop(case, grid(plan(cp=4, cp_comm=comm)), ScoreProduct) == whole / 4


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("ep,etp", [(1, 1), (4, 1), (2, 2), (8, 1)])
def test_experts_compute_the_same_whatever_the_layout(tp: int, ep: int, etp: int) -> None:
    """All devices together do ``T topk`` rows through the three products of an expert."""
    case = scenario(mixture(), cluster="8xH100")
    plans = grid(plan(8, tp=tp, sp=tp > 1, ep=ep, etp=etp))
    experts = [
        o for o in operators(case, plans) if o.name.startswith("expert") and isinstance(o, Gemm)
    ]
    one = sum(float(np.sum(o.forward_flop)) for o in experts)
    tokens = 8192 * (8 // tp)
    assert 8 * one == pytest.approx(2 * tokens * 2 * 3 * 1024 * 4096, rel=1e-12)


def test_imbalance_loads_the_busiest_device() -> None:
    case = scenario(mixture(), cluster="8xH100")
    plans = grid(plan(8, ep=8))
    even, uneven = (
        sum(
            float(np.sum(o.forward_flop))
            for o in layer_operators(
                case.model.layers[0], shapes_of(case, plans, Tuning(expert_imbalance=factor))
            )
            if isinstance(o, Gemm) and o.name.startswith("expert")
        )
        for factor in (1.0, 1.3)
    )
    assert uneven == pytest.approx(1.3 * even)


def test_adapters_train_alone() -> None:
    """LoRA: the frozen products have no weight gradient, each gets ``2 t r (k + n)`` FLOP more."""
    case = scenario("llama-3.1-8b", task="lora", lora_rank=16, lora_targets="attention")
    plans = grid(plan())
    found = [o for o in operators(case, plans) if isinstance(o, Gemm)]
    adapters = [o for o in found if "_adapter_" in o.name]
    assert all(o.weight_gradient == ("_adapter_" in o.name) for o in found)
    widths = (4096 + 6144) + (4096 + 4096)
    flop = sum(float(np.sum(o.forward_flop)) for o in adapters)
    assert flop == 2 * 8192 * 16 * widths


def test_quantised_weights_are_read_in_four_bits() -> None:
    """QLoRA, arXiv:2305.14314, section 3: 4.127 bits read and 16 written per weight."""
    case = scenario("llama-3.1-8b", task="qlora", lora_rank=16)
    plans = grid(plan())
    moved = sum(
        float(np.sum(o.forward_bytes))
        for o in operators(case, plans)
        if isinstance(o, Elementwise) and o.name.endswith("_dequantised")
    )
    frozen = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    assert moved == pytest.approx((4.127 / 8 + 2) * frozen, rel=1e-4)


def test_biases_and_clamps_of_experts_move_memory() -> None:
    """gpt-oss-120b, ep 8, one sequence of 4096: 4 copies of 4096 tokens, 2880 wide, 16 experts.

    Counted in Megatron-LM's ``TEGroupedMLP._apply_bias`` and ``weighted_bias_quick_geglu_impl``.
    """
    case = scenario("gpt-oss-120b", seq_len=4096)
    plans = grid(plan(ep=8), plan(ep=8, framework=Framework.TORCHTITAN))
    found = {o.name: o for o in operators(case, plans) if isinstance(o, Elementwise)}
    outputs = 4 * 4096 * 2880 * Tuning().expert_imbalance
    bias, clamp = found["expert_bias"], found["expert_clamp"]
    # torchtitan adds those of the first product, two branches wide, apart from it too
    assert np.asarray(bias.forward_bytes) / outputs == pytest.approx([28, 8 * 3])
    assert np.asarray(bias.backward_bytes) / outputs == pytest.approx([40, 2 * 3])
    assert np.asarray(bias.groups) == pytest.approx([16, 1])
    assert np.asarray(clamp.forward_bytes) / (2 * outputs) == pytest.approx([8, 0])
    assert np.asarray(clamp.backward_bytes) / (2 * outputs) == pytest.approx([10, 0])


def test_experts_without_biases_add_none() -> None:
    names = {o.name for o in operators(scenario("mixtral-8x7b"), grid(plan(ep=8)))}
    assert not names & {"expert_bias", "expert_clamp"}
