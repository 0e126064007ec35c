"""Dropout of a branch: part of the kernel that adds it to the stream, or one of its own."""

from __future__ import annotations

import numpy as np
import pytest

from cost_scenarios import plan, scenario
from meshplan.cost.operators import Elementwise, layer_operators, shapes_of
from meshplan.cost.tuning import Tuning
from meshplan.space.plan import Framework, PlanGrid

TOKENS, HIDDEN = 2048, 768


def moved(framework: str, *, dropout: bool) -> np.ndarray:
    """Bytes that dropout and sums move forward and backward, per element of the stream."""
    scene = scenario("gpt2", cluster="1xA100", seq_len=TOKENS, global_batch=2, dropout=dropout)
    grid = PlanGrid.of([plan(1, framework=Framework[framework])])
    found = layer_operators(scene.model.layers[0], shapes_of(scene, grid, Tuning()))
    joins = [o for o in found if isinstance(o, Elementwise) and o.name in ("dropout", "residual")]
    forward = sum(np.max(one.forward_bytes) for one in joins)
    backward = sum(np.max(one.backward_bytes) for one in joins)
    return np.array([forward, backward]) / (TOKENS * HIDDEN)


@pytest.mark.parametrize("framework", ["MEGATRON", "DEEPSPEED"])
def test_it_is_added_dropped_and_summed_in_one_kernel(framework: str) -> None:
    """Two branches: read branch and stream, write their sum (6) and, dropping out, a mask (1).

    Megatron-LM, megatron/core/fusions/fused_bias_dropout.py. Backward, the gradient of the branch
    is read with the mask and written (5), and autograd adds up both gradients of the stream (6).
    """
    assert moved(framework, dropout=False) == pytest.approx([2 * 6, 2 * 6])
    assert moved(framework, dropout=True) == pytest.approx([2 * 7, 2 * 11])


def test_eager_frameworks_read_and_write_the_branch_once_more() -> None:
    """torch.nn.Dropout by itself: read, write, mask (5), before the sum (6)."""
    assert moved("ACCELERATE", dropout=True) == pytest.approx([2 * 11, 2 * 11])
