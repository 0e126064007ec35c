"""The two spaces that the search must master, by counts: nothing here depends on the machine."""

import tracemalloc

import pytest

from meshplan.inputs.load.hf_config import load_model
from meshplan.space import enumerate as walk
from space_scenarios import enumerate_plans, scenario

MIB = 2**20


@pytest.mark.parametrize(
    ("model", "num_gpus", "seq_len", "global_batch"),
    [("gpt3-175b", 1024, 2048, 1536), ("llama-3.1-405b", 16384, 8192, 2048)],
)
def test_a_large_space_is_walked_in_little_memory(
    model, num_gpus, seq_len, global_batch, monkeypatch
):
    visited = 0
    attempt = walk._Walk._try

    def counted(self, axis, *, completions):
        nonlocal visited
        visited += self._legal.shape[1] * len(axis)
        return attempt(self, axis, completions=completions)

    monkeypatch.setattr(walk._Walk, "_try", counted)
    there = scenario(
        load_model(model),
        num_gpus=num_gpus,
        seq_len=seq_len,
        global_batch=global_batch,
        axes={"sp": (False, True)},  # all of it, without a habit
    )
    tracemalloc.start()
    found = enumerate_plans(there)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{found.num_candidates:,} candidates, {found.num_legal:,} legal, {visited:,} visited")
    print(f"{peak / MIB:.0f} MiB at the peak")
    assert found.num_candidates >= 1_000_000
    assert 100_000 <= found.num_legal <= 1_000_000
    assert visited <= 3.5 * found.num_legal
    # a way to recompute is no copy of all that it leaves as it is
    assert sum(len(part.rows) for part in found.crossed) * 5 < found.num_legal
    assert peak <= 300 * MIB
