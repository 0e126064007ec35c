"""What the search does is counted, not timed: a busy machine must not fail a test.

Times are printed by ``python tools/bench.py``.
"""

from __future__ import annotations

from collections import Counter

import pytest

from meshplan.app import usual
from meshplan.cost import least, step, timed
from meshplan.cost.communication import records
from meshplan.cost.recent import Recent
from meshplan.cost.schedule.play import play
from meshplan.cost.surfaces.tables import GemmSurface
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
    assert len(plays) <= 5 + 3
    assert found.alternatives


def test_what_plans_share_is_worked_out_once(monkeypatch):
    calls = Counter()

    def count(module, name):
        inner = getattr(module, name)

        def outer(*args, **kwargs):
            calls[name] += 1
            return inner(*args, **kwargs)

        monkeypatch.setattr(module, name, outer)

    count(timed, "stage_table")
    count(records, "collective_time")
    count(least, "pipeline_bound")
    count(step, "pipeline_bound")
    job = {"seq_len": 8192, "global_batch": 1024}
    scenario = load_scenario({"model": "llama-3.1-70b", "cluster": "256xH100", "job": job})
    found = rank_plans(scenario, top=8)
    assert calls["stage_table"] == 1
    # of a block's tensor and context groups, of the tokens at the ends, and of the replicas of
    # all parts of the model together
    assert calls["collective_time"] <= 16
    # devices side by side: once for each block of the quick bound, for the closed form of what is
    # left, and for each batch that is played
    assert calls["pipeline_bound"] <= found.counts.num_fits / (1 << 14) + 1 + 1 + 3


def test_a_product_and_its_gradients_are_looked_up_together(monkeypatch):
    looked_up = []
    inner = GemmSurface.seconds
    monkeypatch.setattr(
        GemmSurface, "seconds", lambda self, **shape: looked_up.append(1) or inner(self, **shape)
    )
    job = {"seq_len": 8192, "global_batch": 1024}
    scenario = load_scenario({"model": "llama-3.1-70b", "cluster": "64xH100", "job": job})
    rank_plans(scenario, top=5)
    # four products of a block, the head, and the update of two ends and a block
    assert 5 <= len(looked_up) <= 8


def test_the_usual_framework_is_asked_alone(monkeypatch):
    asked = []
    inner = usual.can_train
    monkeypatch.setattr(
        usual, "can_train", lambda scenario, name: asked.append(name) or inner(scenario, name)
    )
    job = {"seq_len": 4096, "global_batch": 64}
    scenario = load_scenario({"model": "llama-3.1-8b", "cluster": "8xH100", "job": job})
    assert usual.usual_frameworks(scenario) == (("megatron",),)
    assert asked == ["megatron"]


def test_what_is_kept_between_searches_is_bounded():
    kept = Recent(3)
    made = [kept.get(key, lambda key=key: [key]) for key in (1, 2, 1, 3, 4)]
    assert made == [[1], [2], [1], [3], [4]]
    assert made[0] is made[2]
    assert len(kept) == 3
    assert kept.get(1, lambda: "again") == "again"
