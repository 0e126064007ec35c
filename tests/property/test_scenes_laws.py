"""Laws of the pictures, for any legal plan: nothing is drawn that was not computed."""

from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshplan.app.request import read_plan, read_scenario
from meshplan.cost.communication import block_communication, pipeline_send
from meshplan.cost.schedule.simulate import simulate
from meshplan.cost.unit_time import tuning_of
from meshplan.explanation.scenes import MECHANISMS, MODES, WhatIf, build_scene
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.space.plan import Schedule
from meshplan.space.rules import check_plan


@cache
def scenario(model, cluster):
    job = {"seq_len": 4096, "global_batch": 128}
    return read_scenario({"model": model, "cluster": cluster, "job": job})


@st.composite
def plans(draw):
    model = draw(st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]))
    where = scenario(model, draw(st.sampled_from(["32xH100", "64xA100", "64xB200"])))
    degree = st.sampled_from([1, 2, 4, 8])
    fields = {"tp": draw(degree), "pp": draw(degree), "cp": draw(st.sampled_from([1, 2]))}
    fields |= {"micro_batch": draw(st.sampled_from([1, 2])), "ep": draw(st.sampled_from([1, 4]))}
    fields |= {
        "vpp": draw(st.sampled_from([1, 2])),
        "recompute": draw(st.sampled_from(["none", "full"])),
    }
    plan = read_plan(where, fields)
    assume(not check_plan(where, plan))
    return PlanFacts(where, plan)


@settings(max_examples=25, deadline=None)
@given(facts=plans())
def test_the_timetable_ends_when_the_simulation_does(facts):
    p = facts.plan
    shown = build_scene(facts, mechanism="pipeline", mode="output").facts
    whole = {"schedule": p.schedule, "pp": p.pp, "vpp": p.vpp, "times": facts.times}
    assert shown["full_s"] == simulate(num_micro_batches=p.num_micro_batches, **whole)
    count = int(shown["shown_micro_batches"])
    assert shown["makespan_s"] == pytest.approx(
        simulate(num_micro_batches=count, **whole), rel=1e-9
    )


@settings(max_examples=25, deadline=None)
@given(facts=plans())
def test_bytes_on_the_picture_are_bytes_of_the_cost_model(facts):
    tuning = tuning_of(facts.profile)
    send = pipeline_send(facts.scenario, facts.grid, tuning=tuning)
    pipeline = build_scene(facts, mechanism="pipeline", mode="transmission")
    assert {m.num_bytes for m in pipeline.marks if m.kind == "packet"} <= {float(send.num_bytes[0])}
    block = block_communication(facts.scenario, facts.layer, facts.grid, tuning=tuning)
    tensor = build_scene(facts, mechanism="tensor", mode="transmission").facts
    assert tensor["sent_bytes"] == pytest.approx(float(block.tp_forward.num_bytes[0]), rel=1e-12)
    lanes = build_scene(facts, mechanism="panorama", mode="transmission").facts
    levels = build_scene(facts, mechanism="links", mode="transmission").facts
    carried = sum(v for k, v in levels.items() if k.endswith("_bytes") and "capacity" not in k)
    assert carried == pytest.approx(lanes["total_bytes"], rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(facts=plans())
def test_every_rank_is_once_in_the_groups_of_each_axis(facts):
    cells = build_scene(facts, mechanism="panorama", mode="overview").cells
    assert cells.first_rank == tuple(range(facts.scenario.cluster.num_gpus))
    for axis, ids in cells.groups.items():
        size, _ = facts.group(axis)
        assert {ids.count(group) for group in set(ids)} == {size}


@settings(max_examples=15, deadline=None)
@given(
    facts=plans(),
    schedule=st.sampled_from(list(Schedule)),
    pp=st.integers(1, 12),
    micro=st.integers(1, 40),
)
def test_any_pipeline_can_be_played_with(facts, schedule, pp, micro):
    what_if = WhatIf(schedule=schedule, pp=pp, num_micro_batches=micro)
    shown = build_scene(facts, mechanism="pipeline", mode="output", what_if=what_if)
    drawn = [m for m in shown.marks if m.seconds is not None]
    busy = sum(m.seconds for m in drawn)
    assert busy <= shown.facts["makespan_s"] * shown.facts["pp"] * (1 + 1e-9)


@settings(max_examples=10, deadline=None)
@given(facts=plans())
def test_every_scene_can_be_built(facts):
    for mechanism in MECHANISMS:
        for mode in MODES:
            assert build_scene(facts, mechanism=mechanism, mode=mode).marks
