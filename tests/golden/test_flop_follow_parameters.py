"""FLOP of the operators against parameters that were counted independently of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cost_scenarios import grid, plan, scenario
from meshplan.cost.compute import layer_time
from meshplan.cost.operators import Gemm, layer_operators, shapes_of
from meshplan.cost.shards import layer_shard
from meshplan.cost.tuning import Tuning
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.model_presets import model_names
from meshplan.inputs.load.presets import device_names, load_device
from meshplan.inputs.model import Layer, Model, Moe

SEQ_LEN = 2048


def test_a_token_costs_two_flop_per_parameter_that_it_uses(shared: Path) -> None:
    """Every block of every real configuration: ``2 t P`` within 1.5 %, norms and biases aside."""
    num_blocks = 0
    for path in sorted((shared / "data" / "hf_configs").glob("[!_]*.json")):
        try:
            model = load_model(str(path))
        except UserError:
            continue  # configurations that lack a key are refused, which other tests hold
        for layer in model.layer_kinds:
            assert flop_per_token(model, layer) == pytest.approx(
                2 * parameters_per_token(model, layer), rel=0.015
            ), (path.name, layer)
            num_blocks += 1
    assert num_blocks >= 80


@pytest.mark.parametrize("name", model_names())
def test_so_it_does_in_every_preset(name: str) -> None:
    model = load_model(name)
    for layer in model.layer_kinds:
        used = parameters_per_token(model, layer)
        assert flop_per_token(model, layer) == pytest.approx(2 * used, rel=0.015), layer


def flop_per_token(model: Model, layer: Layer) -> float:
    """Forward FLOP of the products with weights."""
    case, plans = scenario(model, seq_len=SEQ_LEN, global_batch=8), grid(plan(1))
    flop = sum(
        float(np.sum(operator.forward_flop))
        for operator in layer_operators(layer, shapes_of(case, plans, Tuning()))
        if isinstance(operator, Gemm) and operator.dense_weight
    )
    return flop / SEQ_LEN


def parameters_per_token(model: Model, layer: Layer) -> float:
    """Parameters of a block, routed experts by the share that a token meets."""
    held = layer_shard(layer, model, tp=1, ep=1, etp=1)
    used = float(held.dense + held.replicated)
    if isinstance(layer.ffn, Moe):
        choices = layer.ffn.num_experts + layer.ffn.num_zero_experts
        used += held.expert * layer.ffn.top_k / choices
    return used


def test_every_device_can_run_a_block() -> None:
    plans = grid(plan(8), plan(8, tp=2, sp=True))
    for name in device_names():
        case = scenario(cluster=f"8x{name}", precision=_precision(name))
        time = layer_time(case, case.model.layers[0], plans)
        for seconds in (time.forward_s, time.input_grad_s, time.weight_grad_s):
            assert np.all(np.isfinite(seconds)) and np.all(seconds > 0), name


def _precision(device: str) -> str:
    return "bf16" if "bf16" in load_device(device).peak_flop_per_s else "fp16"
