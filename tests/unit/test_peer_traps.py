"""Mistakes of other planners, each with a test that fails where we make it too.

What stands elsewhere: refusals are recorded and add up (``test_enumerate_laws``), a plan gets the
same numbers in any company (``test_cost_laws``), memory is that of closed forms to the byte
(``test_memory_closed_forms``), the bubble is that of the schedule (``test_explanation``), usable
memory is less than the label and peaks are dense (``test_devices``), a value without effect is said
(``test_sentences``), and no GB stands on a 1024 figure (``test_docs_hygiene``).
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from meshplan.app import service
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.units import GIB

JOB = {"seq_len": 4096, "global_batch": 64}


def estimate(model="llama-3.1-8b", cluster="16xH100", job=JOB, **plan):
    result = service.estimate({"model": model, "cluster": cluster, "job": job, "plan": plan})
    return result["plans"][0]


def bytes_of(entry, code, stage=0):
    terms = {term["code"]: term["bytes"] for term in entry["memory"]["stages"][stage]["terms"]}
    return terms.get(code, 0.0)


def test_an_axis_that_is_off_costs_nothing():
    """llm-analysis takes the largest communication even of what is off."""
    plain = estimate(zero=0)
    for axis in ("tp", "pp", "cp", "ep"):
        assert plain["time"][f"{axis}_comm_s"] == 0
    assert plain["time"]["bubble_s"] == plain["time"]["recompute_s"] == 0
    assert plain["time"]["dp_comm_s"] > 0
    alone = estimate(cluster="1xH100", zero=0)
    assert sum(s for part, s in alone["time"].items() if "_comm_" in part) == 0


def test_each_axis_that_is_on_costs_something():
    on = estimate(tp=2, pp=2, cp=2)
    for part in ("tp_comm_s", "pp_comm_s", "cp_comm_s", "dp_comm_s", "bubble_s"):
        assert on["time"][part] > 0, part


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"tp": 4}, {"pp": 2}, {"pp": 4}])
def test_splitting_the_model_splits_its_weights(degrees):
    """The Playbook's memory page keeps the weights whole under tensor parallelism."""
    whole, split = estimate(zero=0), estimate(zero=0, **degrees)
    assert bytes_of(split, "weights") < 0.75 * bytes_of(whole, "weights")


def test_pipelines_do_not_tie():
    """Without a bubble every depth would take as long as every other."""
    few = {"seq_len": 4096, "global_batch": 16}
    times = [estimate(pp=pp, job=few)["step_time_s"] for pp in (1, 2, 4, 8)]
    assert len(set(times)) == 4
    bubbles = [estimate(pp=pp, job=few)["time"]["bubble_s"] for pp in (2, 4, 8)]
    assert bubbles == sorted(bubbles)
    assert bubbles[0] > 0


def test_uneven_stages_hold_what_they_hold():
    """94 layers on 8 stages are 11 or 12 each, not 12 everywhere (SimuMax)."""
    entry = estimate(
        model="qwen3-235b-a22b", cluster="64xH100", pp=8, ep=8, split="balanced", recompute="full"
    )
    layers = [stage["num_layers"] for stage in entry["memory"]["stages"]]
    assert sum(layers) == 94
    assert max(layers) - min(layers) <= 1
    assert set(layers) <= {11, 12}


def test_a_vocabulary_of_128_thousand_is_in_the_memory():
    """Calculon leaves out embedding, head and logits: 4.6 GiB of GPT-3, more here."""
    entry = estimate(cluster="1xH100", zero=0)
    assert bytes_of(entry, "weights") >= 2 * 8_030_261_248  # embedding and head included
    assert entry["memory"]["stages"][0]["peak_event"].startswith("loss")
    assert bytes_of(entry, "logits") >= 2 * 4096 * 128_256


def test_cards_of_a_node_are_shared_by_its_gpus():
    """A 400 Gb/s card per GPU is 50 GB/s; one such card for eight is 6.25 GB/s each."""
    own, shared = (parse_cluster(f"64xH100@{n}x400Gb/s-ib").tiers[-1] for n in (8, 1))
    assert own.bandwidth_bytes_per_s == 50e9
    assert shared.bandwidth_bytes_per_s == 50e9 / 8


def test_the_plan_printed_leaves_what_the_driver_keeps():
    """Galvatron plans to within 113 MB of the nominal 80 GB."""
    (best, *_) = service.plan(
        {"model": "llama-3.1-8b", "cluster": "8xH100", "job": JOB, "axes": {"cp": [1]}}
    )["plans"]
    assert best["memory"]["peak_bytes"] <= best["memory"]["usable_bytes"] < 80 * GIB - GIB


def test_planning_imports_no_gpu_runtime():
    """Galvatron's search needs the training stack, which no laptop has."""
    code = (
        "import sys, meshplan; meshplan.plan('llama-3.1-8b', cluster='2xH100', seq_len=1024, "
        "global_batch=4, axes={'cp': [1]}); "
        "print([m for m in ('torch', 'jax', 'cupy', 'transformers', 'triton') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
