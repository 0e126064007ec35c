"""What the search does is counted, not timed: a busy machine must not fail a test.

Times are printed by ``python tools/bench.py``.
"""

from __future__ import annotations

import pytest

from meshplan.cost.schedule.play import play
from meshplan.inputs.load.scenario import load_scenario
from meshplan.search.rank import look_around, rank_plans


@pytest.mark.parametrize(
    ("model", "cluster", "seq_len", "global_batch", "most_evaluated", "most_exact"),
    [
        ("llama-3.1-70b", "64xH100", 8192, 1024, 2_200, 80),
        ("llama-3.1-70b", "256xH100", 8192, 1024, 2_500, 100),
        ("llama-3.1-70b", "4096xH100", 8192, 4096, 2_500, 150),
        ("gpt3-175b", "1024xA100-80GB", 2048, 1536, 2_500, 100),
        ("llama-3.1-405b", "16384xH100", 8192, 2048, 7_000, 160),
    ],
)
def test_the_whole_space_is_searched_with_little_work(
    model, cluster, seq_len, global_batch, most_evaluated, most_exact, monkeypatch
):
    plays = []
    monkeypatch.setattr(
        "meshplan.cost.schedule.simulate.play", lambda casts: plays.append(casts) or play(casts)
    )
    job = {"seq_len": seq_len, "global_batch": global_batch}
    scenario = load_scenario({"model": model, "cluster": cluster, "job": job})
    found = rank_plans(scenario, top=5)
    to_answer = len(plays)
    found = look_around(found)
    counts = found.counts
    assert len(found) == 5
    assert counts.num_candidates >= 1_000_000
    rejected = sum(rejection.count for rejection in found.rejected.values())
    assert rejected + counts.num_legal == counts.num_candidates
    assert counts.num_fits + counts.num_tight + counts.num_oom == counts.num_legal
    # the quick bound is tight enough that few plans get the closed form, and the closed form
    # that a few tens are simulated, many at once
    assert counts.num_fits > 10_000
    assert len(found) <= counts.num_exact <= most_exact
    assert counts.num_exact <= counts.num_evaluated <= most_evaluated
    # what is shown is played once more, with free sends
    assert to_answer <= 3 + 1
    assert len(plays) <= 5 + 2
    assert found.alternatives
