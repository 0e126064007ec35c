"""Screened by bounds and as a product, each plan has the verdict and the memory it has alone."""

from dataclasses import fields, replace

import numpy as np
import pytest

from cost_scenarios import scenario
from meshplan.cost.memory import MemoryGrid, Verdict, peak_memory, screen_memory
from space_scenarios import enumerate_plans

EVERY = ("megatron", "torchtitan", "deepspeed", "accelerate", "nanotron")
SPACES = [
    ("llama-3.1-8b", "16xH100", 256, {"axes": {"cp": (1, 2)}}),
    ("llama-3.2-1b", "4xRTX-4090", 16, {"frameworks": EVERY}),
    ("llama-3.1-8b", "4xRTX-4090", 16, {"axes": {"offload": ("none", "optimizer")}}),
    ("mixtral-8x7b", "16xH100", 32, {"axes": {"micro_batch": (1, 4)}}),
    ("jamba-mini-52b", "16xH100", 32, {"frameworks": EVERY}),
    ("gemma-3-12b", "8xH100", 16, {"axes": {"tp": (2, 4)}}),
]


@pytest.mark.parametrize(("model", "cluster", "global_batch", "given"), SPACES)
def test_a_screened_plan_has_the_memory_it_has_alone(model, cluster, global_batch, given):
    scene = scenario(model, cluster=cluster, seq_len=4096, global_batch=global_batch)
    scene = replace(scene, **given)
    seen = set()
    for plans in enumerate_plans(scene).crossed:
        if not len(plans):
            continue
        screened, alone = screen_memory(scene, plans), peak_memory(scene, plans.flat())
        rows, modes = np.nonzero(plans.legal)
        assert np.array_equal(screened.verdict[rows, modes], alone.verdict)
        able = np.flatnonzero(alone.verdict != Verdict.OOM)
        some = screened.take(rows[able], modes[able])
        assert np.array_equal(some.peak_bytes, alone.peak_bytes[able])
        kept = some.take(np.arange(len(able)))
        for field in fields(MemoryGrid):
            here, there = getattr(kept, field.name), getattr(alone, field.name)
            assert np.array_equal(here, there[able] if isinstance(there, np.ndarray) else there)
        seen |= set(alone.verdict.tolist())
    assert {int(Verdict.OOM), int(Verdict.FITS)} <= seen
