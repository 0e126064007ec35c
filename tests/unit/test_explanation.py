"""Formulas: evaluating what is shown gives what is shown."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from meshplan import explanation
from meshplan.app import service
from meshplan.cost.memory import Verdict
from meshplan.cost.schedule.actions import PipelineTimes
from meshplan.cost.schedule.simulate import simulate
from meshplan.explanation.formulas import formulas_of, ideal_bubble
from meshplan.explanation.reasons import reasons_for
from meshplan.explanation.records import Value, agrees, evaluate, formula
from meshplan.inputs.load.scenario import load_scenario
from meshplan.search.rank import rank_plans
from meshplan.space.plan import Schedule
from meshplan.space.stages import V_SHAPED
from meshplan.text import LANGUAGES, has, t

CASES = [
    ("llama-3.1-8b", "16xH100", ("megatron",), {"cp": [1], "zero": [1]}),
    ("llama-3.1-8b", "16xH100", ("megatron",), {"tp": [2], "pp": [2], "cp": [2], "zero": [1]}),
    ("llama-3.1-8b", "16xH100", ("megatron",), {"tp": [2], "sp": [False], "cp": [1]}),
    ("llama-3.1-8b", "8xH100", ("torchtitan",), {"cp": [1], "micro_batch": [1]}),
    ("llama-3.1-70b", "64xH100", ("megatron",), {"tp": [4], "pp": [8], "vpp": [5], "cp": [1]}),
    ("gpt3-175b", "128xA100-80GB", ("megatron",), {"tp": [8], "pp": [8], "cp": [1]}),
]


def best_of(case):
    model, cluster, frameworks, axes = case
    job = {"seq_len": 2048 if model == "gpt3-175b" else 8192, "global_batch": 128}
    scenario = load_scenario(
        {
            "model": model,
            "cluster": cluster,
            "job": {**job, "total_tokens": 1e12},
            "frameworks": list(frameworks),
            "axes": axes,
        }
    )
    ranking = rank_plans(scenario, top=1)
    assert ranking.best is not None
    return scenario, ranking.best.one(0)


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0]}-{c[2][0]}-{c[3]}")
def best(request):
    return best_of(request.param)


def test_evaluating_a_formula_gives_its_result(best):
    formulas = formulas_of(*best)
    for shown in formulas:
        values = {value.symbol: value.value for value in shown.values}
        tolerance = 1e-6 if shown.group == "memory" else 1e-9  # memory counts whole bytes
        assert math.isclose(evaluate(shown.expression, values), shown.result, rel_tol=tolerance), (
            shown.code
        )


def test_results_are_the_numbers_of_the_plan(best):
    scenario, result = best
    shown = {formula.code: formula.result for formula in formulas_of(scenario, result)}
    assert shown["step_time"] == result.time.step_time_s[0]
    assert shown["peak_memory"] == result.memory.peak_bytes[0]
    assert shown["mfu"] == result.time.mfu[0]
    assert shown["mfu_causal"] == result.time.mfu_causal[0]
    assert shown["hfu"] == result.time.hfu[0]
    assert shown["data_parallel"] == result.grid.dp[0]


def test_what_is_in_use_has_its_formula(best):
    scenario, result = best
    plan = result.grid.plan(0)
    codes = {formula.code for formula in formulas_of(scenario, result)}
    assert {"weights_bytes", "gradients_bytes", "optimizer_bytes"} <= codes
    assert "model_flop" in codes
    if scenario.model.name.startswith("llama") and (plan.sp or plan.tp == 1):
        assert "layer_activation_bytes" in codes
    assert ("bubble_ideal" in codes) == (plan.pp > 1)
    assert ("pp_send_bytes" in codes) == (plan.pp > 1)
    assert ("tp_forward_bytes" in codes) == (plan.tp > 1)
    assert ("cp_bandwidth" in codes) == (plan.cp > 1)


@pytest.mark.parametrize("schedule", list(Schedule), ids=lambda s: s.name.lower())
@pytest.mark.parametrize(("pp", "num_micro_batches"), [(4, 16), (8, 32), (8, 64)])
def test_the_ideal_bubble_is_that_of_the_simulated_schedule(schedule, pp, num_micro_batches):
    """Three passes of equal length, even stages, no sends: what the formula assumes."""
    vpp = {Schedule.INTERLEAVED: 4, Schedule.INTERLEAVED_ZB: 4}.get(schedule, 1)
    vpp = 2 if schedule in V_SHAPED else vpp
    ones = (1.0,) * (pp * vpp)
    times = PipelineTimes(
        forward_s=ones, backward_input_s=ones, backward_weight_s=ones, send_s=0.0, blocking=False
    )
    shape = {"pp": pp, "vpp": vpp, "num_micro_batches": num_micro_batches}
    makespan = simulate(schedule=schedule, times=times, **shape)
    shown = ideal_bubble(schedule=schedule, **shape)
    assert shown.result == pytest.approx(1.0 - 3.0 * num_micro_batches * vpp / makespan)
    assert agrees(shown, rel_tol=1e-12)


def test_every_value_has_a_unit_and_a_kind(best):
    for shown in formulas_of(*best):
        assert shown.source, shown.code
        for value in shown.values:
            assert value.kind in ("given", "published", "measured", "fitted", "derived", "assumed")


def test_names_and_sentences_exist(best):
    scenario, result = best
    for lang in LANGUAGES:
        for shown in formulas_of(scenario, result):
            assert has(f"formula.{shown.code}", lang)
            assert has(f"cli.group.{shown.group}", lang)
        for reason in reasons_for(scenario, result):
            assert t(f"reason.{reason.code}", lang, **reason.numbers)


def test_reasons_come_in_the_order_of_every_decision(best):
    topics = [reason.topic for reason in reasons_for(*best)]
    order = ["memory", "communication", "degrees"]
    assert topics == sorted(topics, key=order.index)
    assert topics[0] == "memory"


def test_needed_degrees_are_needed(best):
    """What a reason says about a plan one step away is what `estimate` says about that plan."""
    scenario, result = best
    plan = result.grid.plan(0)
    needed = [r for r in reasons_for(scenario, result) if r.code == "memory_needs"]
    for reason in needed:
        assert reason.numbers["before"] != reason.numbers["after"]
        assert reason.numbers["peak_bytes"] > reason.numbers["usable_bytes"]
        assert str(reason.numbers["knob"]) in type(plan).__dataclass_fields__
    assert result.memory.verdict[0] == Verdict.FITS


def test_constants_name_their_sources():
    model, cluster, frameworks, axes = CASES[0]
    result = service.explain(
        {
            "model": model,
            "cluster": cluster,
            "job": {"seq_len": 8192, "global_batch": 128},
            "frameworks": list(frameworks),
            "axes": axes,
        }
    )
    areas = {constant["area"] for constant in result["constants"]}
    assert areas == {"device", "network", "memory", "time", "profile"}
    assert all(constant["source"] for constant in result["constants"])
    by_name = {constant["name"]: constant for constant in result["constants"]}
    assert by_name["peak_flop_per_s.bf16"]["value"] == 989.4e12  # dense, not the sparse 1,979
    assert by_name["peak_flop_per_s.bf16"]["kind"] == "published"


@pytest.mark.parametrize(
    ("expression", "value"),
    [("a + b * 2", 7.0), ("(a - b) ** 2 / 4", 1.0), ("ceil(b / 2)", 2), ("max(a, b) - -a", 4)],
)
def test_arithmetic(expression, value):
    assert evaluate(expression, {"a": 1.0, "b": 3.0}) == value


@pytest.mark.parametrize("expression", ["__import__('os')", "a.b", "[a]", "'a'", "a if a else b"])
def test_nothing_but_arithmetic(expression):
    with pytest.raises((ValueError, KeyError)):
        evaluate(expression, {"a": 1.0, "b": 3.0})


def test_substitution_shows_the_numbers():
    shown = formula(
        "bubble_ideal",
        "(p - 1) / (m + p - 1)",
        Value(symbol="p", value=4),
        Value(symbol="m", value=16),
        group="bubble",
        unit="1",
        source="test",
    )
    assert shown.substituted() == "(4 - 1) / (16 + 4 - 1)"
    assert shown.result == 3 / 19
    assert agrees(shown, rel_tol=1e-12)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_group_of_formulas_has_a_title(lang):
    """Those of the whole run too, which only a budget of tokens brings in."""
    source = "".join(path.read_text() for path in Path(explanation.__file__).parent.glob("*.py"))
    groups = set(re.findall(r'group="(\w+)"', source))
    assert "run" in groups
    assert [group for group in sorted(groups) if not has(f"cli.group.{group}", lang)] == []
