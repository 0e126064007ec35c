"""Whatever degrees are asked about, the answer is numbers or a list of what is wrong."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.app import service
from meshplan.app.encode import to_json
from meshplan.errors import UserError
from meshplan.text import LANGUAGES, has

DEGREES = st.sampled_from([1, 2, 3, 4, 8, 16])
PLANS = st.fixed_dictionaries(
    {},
    optional={
        "framework": st.sampled_from(["megatron", "torchtitan", "deepspeed", "accelerate"]),
        "tp": DEGREES,
        "sp": st.booleans(),
        "pp": DEGREES,
        "vpp": st.sampled_from([1, 2, 4, 5]),
        "cp": DEGREES,
        "ep": DEGREES,
        "etp": DEGREES,
        "zero": st.integers(0, 3),
        "micro_batch": st.integers(1, 5),
        "schedule": st.sampled_from(["1f1b", "interleaved", "gpipe", "zbv", "zb-h1"]),
        "recompute": st.sampled_from(["none", "full", "full:2", "selective", "norm+mlp"]),
        "offload": st.sampled_from(["none", "optimizer"]),
        "split": st.sampled_from(["even", "balanced"]),
        "stage_layers": st.sampled_from([[], [16, 16], [10, 22], [32], [8, 8, 8, 8]]),
    },
)
MODELS = st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "gpt3-2.7b"])
CLUSTERS = st.sampled_from(["1xH100", "6xA100-80GB", "16xH100", "24xB200"])


@settings(max_examples=80, deadline=None)
@given(MODELS, CLUSTERS, st.sampled_from([6, 48, 64]), PLANS)
def test_estimate_answers_or_complains(model, cluster, batch, plan):
    job = {"seq_len": 2048, "global_batch": batch}
    try:
        result = service.estimate({"model": model, "cluster": cluster, "job": job, "plan": plan})
    except UserError as error:
        for problem in error.problems:
            assert all(has(f"error.{problem.code}", lang) for lang in LANGUAGES)
        return
    entry = result["plans"][0]
    assert math.isclose(sum(entry["time"].values()), entry["step_time_s"], rel_tol=1e-9)
    assert entry["step_time_s"] > 0 and entry["memory"]["peak_bytes"] > 0
    assert 0 < entry["mfu"] < 1
    assert len(entry["memory"]["stages"]) == entry["plan"]["pp"]
    for name, value in plan.items():
        if name not in ("recompute", "schedule"):  # spelled out in the answer
            assert entry["plan"][name] == value
    assert to_json(result)


@pytest.mark.parametrize("plan", [None, {}, {"tp": None}])
def test_no_degrees_means_the_framework_s_own(plan):
    job = {"seq_len": 2048, "global_batch": 16}
    asked = {"model": "llama-3.1-8b", "cluster": "8xH100", "job": job}
    entry = service.estimate({**asked, "plan": plan})["plans"][0]
    assert (entry["plan"]["tp"], entry["plan"]["dp"], entry["plan"]["zero"]) == (1, 8, 1)
