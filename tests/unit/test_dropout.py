"""Dropout of a branch: part of the kernel that adds it to the stream, or one of its own."""

from __future__ import annotations

import numpy as np
import pytest

from cost_scenarios import plan, scenario
from meshplan.cost.operators import Elementwise, layer_operators, shapes_of
from meshplan.cost.unit_time import tuning_of
from meshplan.inputs.load.profile import framework_profile, profile_of
from meshplan.space.plan import Framework, PlanGrid

TOKENS, HIDDEN = 2048, 768
FUSED, APART = [2 * 7, 2 * 11], [2 * 11, 2 * 11]


def moved(framework: str, *, dropout: bool) -> np.ndarray:
    """Bytes that dropout and sums move forward and backward, per element of the stream."""
    scene = scenario("gpt2", cluster="1xA100", seq_len=TOKENS, global_batch=2, dropout=dropout)
    tuning = tuning_of(profile_of(scene, framework), scene.cluster)
    grid = PlanGrid.of([plan(1, framework=Framework[framework.upper()])])
    found = layer_operators(scene.model.layers[0], shapes_of(scene, grid, tuning))
    joins = [o for o in found if isinstance(o, Elementwise) and o.name in ("dropout", "residual")]
    forward = sum(np.max(one.forward_bytes) for one in joins)
    backward = sum(np.max(one.backward_bytes) for one in joins)
    return np.array([forward, backward]) / (TOKENS * HIDDEN)


def test_sums_read_two_and_write_one() -> None:
    """Two branches, each with its sum: three times 16 bits, forward and backward."""
    assert moved("megatron", dropout=False) == pytest.approx([2 * 6, 2 * 6])


@pytest.mark.parametrize(
    ("framework", "bytes_moved"),
    [
        ("megatron", FUSED),
        ("torchtitan", FUSED),
        ("deepspeed", APART),
        ("accelerate", APART),
        ("nanotron", APART),
    ],
)
def test_it_is_part_of_the_sum_where_that_is_fused(framework: str, bytes_moved: list) -> None:
    """Fused: read branch and stream, write their sum (6) and, dropping out, a mask (1).

    Megatron-LM, megatron/core/fusions/fused_bias_dropout.py; compiled blocks of torchtitan. Apart,
    torch.nn.Dropout reads and writes the branch with a mask (5) before the sum (6). Backward, the
    gradient of the branch is read with the mask and written (5), and both gradients of the stream
    are added up (6).
    """
    assert moved(framework, dropout=True) == pytest.approx(bytes_moved)


@pytest.mark.parametrize(
    ("variant", "fused"),
    [
        ("megatron-deepspeed-2021", True),
        ("deepspeed-zero3-2021", True),
        ("vtrain-profiler", True),
        ("deepspeed", False),
    ],
)
def test_what_runs_under_deepspeed_decides(variant: str, fused: bool) -> None:
    """Megatron-LM's GPT, or that of Transformers."""
    assert framework_profile("deepspeed", variant).fused_dropout is fused
