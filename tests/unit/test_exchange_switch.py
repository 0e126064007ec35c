"""The switch of Megatron-LM that hides the exchange of tokens: its rules and what it would gain."""

from __future__ import annotations

import pytest

from meshplan.app import service
from meshplan.errors import UserError

ASKED = {
    "model": "qwen3-30b-a3b",
    "cluster": "32xH100",
    "job": {"seq_len": 4096, "global_batch": 256},
    "axes": {"tp": [1], "cp": [1]},
}
SWITCHED = {**ASKED, "variant": "megatron+overlapped-exchange"}
CODE = "communication_exchange"


def _said(result):
    return [r["numbers"] for r in result["reasons"] if r["code"] == CODE]


def test_the_gain_is_that_of_the_plan_under_the_switch():
    found = service.plan({**ASKED, "axes": {**ASKED["axes"], "ep": [16]}})
    (said,) = _said(found)
    now = found["plans"][0]["step_time_s"]
    assert said["step_time_s"] == pytest.approx(now * (1 - said["change_fraction"]))
    # the plan that it names is legal there and takes what it says
    fields = {k: v for k, v in said["plan"].items() if k not in ("framework", "dp", "dp_shard")}
    given = {"variant": said["variant"], "axes": {}, "plan": {**fields, "framework": "megatron"}}
    given["plan"].pop("num_micro_batches")
    judged = service.estimate({**ASKED, **given})["plans"][0]
    assert judged["step_time_s"] == said["step_time_s"] < now
    # and no plan under the switch is faster than the search for it finds
    best = service.plan({**SWITCHED, "axes": {**ASKED["axes"], "ep": [16]}})["plans"][0]
    assert best["step_time_s"] <= said["step_time_s"] * 1.02


@pytest.mark.parametrize(
    "change",
    [
        {"model": "qwen3-8b", "axes": {}},  # no experts
        {"axes": {**ASKED["axes"], "ep": [1]}},  # nothing travels
        {"variant": "megatron+overlapped-exchange"},  # on already
        {"frameworks": ["deepspeed"], "axes": {}},  # has no such switch
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_gain(change):
    assert not _said(service.plan({**ASKED, **change}))


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ({"ep": 1, "zero": 1}, "rule_overlapped_exchange_needs_ep"),
        ({"ep": 8, "pp": 2, "zero": 1}, "rule_overlapped_exchange_interleaves"),
        ({"ep": 8, "zero": 1, "recompute": "full"}, "rule_overlapped_exchange_keeps_experts"),
    ],
)
def test_what_the_switch_asks_of_a_plan(plan, code):
    with pytest.raises(UserError) as caught:
        service.estimate({**SWITCHED, "axes": {}, "plan": plan})
    assert code in {problem.code for problem in caught.value.problems}


def test_a_search_under_the_switch_keeps_its_rules():
    for entry in service.plan(SWITCHED)["plans"]:
        plan = entry["plan"]
        assert plan["ep"] > 1 and (plan["pp"] == 1 or plan["vpp"] > 1)
        assert not plan["recompute"].startswith("full")
