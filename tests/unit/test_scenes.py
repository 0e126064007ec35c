"""What is drawn is what was computed: bytes on arrows, lengths of stages, the makespan."""

import json
from dataclasses import replace

import pytest

from meshplan.app.request import read_plan, read_scenario
from meshplan.app.web.scene import scene as scene_json
from meshplan.app.web.scene import words_on
from meshplan.app.web.svg import svg_of
from meshplan.cost.collectives import Collective
from meshplan.cost.schedule.simulate import simulate
from meshplan.explanation.scenes import MECHANISMS, MODES, WhatIf, build_scene
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.hops import ring_of, tree_parents
from meshplan.explanation.scenes.records import HEIGHT, WIDTH
from meshplan.space.plan import Schedule
from meshplan.text import LANGUAGES

REQUEST = {
    "model": "llama-3.1-70b",
    "cluster": "64xH100",
    "job": {"seq_len": 8192, "global_batch": 256},
}
PLANS = {
    "tp4pp4": {"tp": 4, "pp": 4, "recompute": "full"},
    "interleaved": {"tp": 8, "pp": 4, "vpp": 2, "recompute": "full"},
    "fsdp": {"cp": 4, "zero": 3, "recompute": "full"},
    "dp": {"tp": 1, "zero": 0},
}


def facts(name="tp4pp4", **changes):
    scenario = read_scenario({**REQUEST, **changes})
    return PlanFacts(scenario, read_plan(scenario, PLANS[name]))


def made(mechanism, mode, name="tp4pp4", **changes):
    return build_scene(facts(name, **changes), mechanism=mechanism, mode=mode)


def packets(scene, group):
    return [m for m in scene.marks if m.kind == "packet" and m.group == group]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_scene_has_its_words_in_both_languages(mechanism, mode, name):
    scene = made(mechanism, mode, name)
    for lang in LANGUAGES:
        shown = words_on(scene, lang)
        assert shown["caption"]["field"]
        assert shown["caption"]["kitchen"]
        json.dumps(shown, allow_nan=False)
        assert svg_of(shown).startswith("<svg")
    assert all(
        later > earlier for earlier, later in zip(scene.stops, scene.stops[1:], strict=False)
    )


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nothing_is_drawn_outside_the_picture(mechanism, name):
    for mode in MODES:
        scene = made(mechanism, mode, name)
        for mark in scene.marks:
            assert -1 <= mark.x <= WIDTH + 1
            assert -1 <= mark.y <= HEIGHT + 1
            assert -1 <= mark.x + mark.w <= WIDTH + 1, (mode, mark)
            assert -1 <= mark.y + mark.h <= HEIGHT + 1, (mode, mark)


@pytest.mark.parametrize(
    ("mechanism", "traffic"),
    [("tensor", lambda f: f.block.tp_forward), ("data", lambda f: f.replicas.reduce)],
)
def test_rounds_of_a_ring_carry_what_the_cost_model_counts(mechanism, traffic):
    numbers = facts()
    scene = build_scene(numbers, mechanism=mechanism, mode="transmission")
    sent = float(traffic(numbers).num_bytes[0])
    if mechanism == "data":
        sent += float(numbers.replicas.gather.num_bytes[0])
    assert scene.facts["sent_bytes"] == pytest.approx(sent, rel=1e-12)
    # eight devices or fewer are drawn in full: every arrow is one send of one device
    size = int(scene.facts["size"])
    assert size <= 8
    arrows = [m.num_bytes for m in scene.marks if m.kind == "packet"]
    assert sum(arrows) == pytest.approx(sent * size, rel=1e-12)


def test_a_ring_sends_what_the_equation_says():
    assert ring_of(Collective.ALL_REDUCE, buffer_bytes=800.0, size=8) == (14, 100.0)
    assert ring_of(Collective.ALL_GATHER, buffer_bytes=800.0, size=8) == (7, 100.0)


def test_trees_of_eight_hang_as_in_nccl():
    """Parents of ``ncclGetDtree`` for eight ranks: src/graph/trees.cc draws the first tree."""
    first, second = tree_parents(8)
    assert first == (None, 2, 4, 2, 0, 6, 4, 6)
    assert second == (1, 3, 1, 7, 5, 3, 5, None)
    # one node: a chain from either end
    assert tree_parents(4, inside=4) == ((None, 0, 1, 2), (1, 2, 3, None))


def test_lanes_carry_the_traffic_of_the_middle_stage():
    numbers = facts()
    scene = build_scene(numbers, mechanism="panorama", mode="transmission")
    for lane in numbers.traffic:
        bar = next(m for m in scene.marks if m.kind == "box" and m.group == lane.axis)
        assert bar.num_bytes == lane.num_bytes
        assert {p.num_bytes for p in packets(scene, lane.axis)} == {lane.num_bytes}
    # a stage between two others sends one activation and one gradient per micro-batch
    pipeline = next(lane for lane in numbers.traffic if lane.axis == "pp")
    assert pipeline.num_bytes == 2 * numbers.plan.num_micro_batches * numbers.send_bytes
    # 80 layers in 4 stages, forward, backward and recomputed forward
    block, m = numbers.block, numbers.plan.num_micro_batches
    passes = (block.tp_forward, block.tp_backward, block.tp_recompute)
    per_layer = sum(float(p.num_bytes[0]) for p in passes)
    tensor = next(lane for lane in numbers.traffic if lane.axis == "tp")
    assert tensor.num_bytes == pytest.approx(20 * m * per_layer, rel=1e-12)


def test_sends_of_a_pipeline_leave_when_their_action_ends():
    numbers = facts()
    scene = build_scene(numbers, mechanism="pipeline", mode="transmission")
    sent = packets(scene, "pp")
    assert {p.num_bytes for p in sent} == {numbers.send_bytes}
    ends = {round(slot.end_s / scene.facts["shown_s"], 9) for slot in numbers.slots}
    assert {round(p.span[0] / scene.duration_s, 9) for p in sent} <= ends


@pytest.mark.parametrize("name", ["tp4pp4", "interleaved"])
def test_the_timetable_is_the_simulation(name):
    numbers = facts(name)
    scene = build_scene(numbers, mechanism="pipeline", mode="output")
    p = numbers.plan
    exact = simulate(
        schedule=p.schedule,
        pp=p.pp,
        vpp=p.vpp,
        num_micro_batches=p.num_micro_batches,
        times=numbers.times,
    )
    assert scene.facts["full_s"] == exact
    assert scene.facts["shown_micro_batches"] == p.num_micro_batches
    assert scene.facts["makespan_s"] == pytest.approx(exact, rel=1e-9)
    drawn = [m for m in scene.marks if m.seconds is not None]
    assert len(drawn) == 2 * p.pp * p.vpp * p.num_micro_batches
    assert max(m.x + m.w for m in drawn) == pytest.approx(WIDTH)
    scale = (WIDTH - 52.0) / exact
    assert all(m.w == pytest.approx(m.seconds * scale, rel=1e-9) for m in drawn)


def test_the_makespan_is_the_pipeline_of_the_step():
    numbers = facts()
    parts = numbers.parts
    pipeline = sum(parts[k] for k in ("compute_s", "recompute_s", "tp_comm_s", "pp_comm_s"))
    pipeline += parts["bubble_s"]
    full = build_scene(numbers, mechanism="pipeline", mode="output").facts["full_s"]
    assert full == pytest.approx(pipeline, rel=1e-9)


def test_fewer_stages_have_a_smaller_bubble():
    numbers = facts()

    def share(**what_if):
        scene = build_scene(numbers, mechanism="pipeline", mode="output", what_if=WhatIf(**what_if))
        return scene.facts["bubble_share"]

    eight = share(pp=8, num_micro_batches=16, schedule=Schedule.GPIPE)
    assert eight > share(pp=2, num_micro_batches=16, schedule=Schedule.GPIPE)
    assert share(pp=64, num_micro_batches=64, num_layers=1024) > share(
        pp=16, num_micro_batches=64, num_layers=1024
    )
    assert share(pp=8, num_micro_batches=64) < share(pp=8, num_micro_batches=16)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_schedule_can_be_played_with(schedule):
    numbers = facts()
    scene = build_scene(
        numbers,
        mechanism="pipeline",
        mode="output",
        what_if=WhatIf(schedule=schedule, pp=4, num_micro_batches=6),
    )
    assert scene.facts["schedule"] == schedule.name.lower()
    assert scene.facts["makespan_s"] > 0


def test_stages_are_as_tall_as_the_layers_they_hold():
    scene = made("pipeline", "transformation")
    layers = [v for k, v in scene.facts.items() if k.startswith("stage_")]
    assert layers == [20, 20, 20, 20]


def test_memory_of_every_term_adds_up_to_the_peak():
    numbers = facts()
    scene = build_scene(numbers, mechanism="scale", mode="transformation")
    for stage in numbers.stages:
        drawn = [m.num_bytes for m in scene.marks if m.group == f"stage{stage.stage}"]
        assert sum(drawn) == pytest.approx(stage.peak_bytes, rel=1e-12)


def test_parts_of_the_step_fill_the_bar():
    scene = made("panorama", "output")
    drawn = sum(m.seconds for m in scene.marks if m.seconds is not None)
    assert drawn == pytest.approx(scene.facts["step_time_s"], rel=1e-5)


@pytest.mark.parametrize("name", PLANS)
def test_every_rank_is_in_one_group_of_each_axis(name):
    numbers = facts(name)
    cells = build_scene(numbers, mechanism="combination", mode="overview").cells
    assert cells.first_rank == tuple(range(64))
    assert len(set(zip(cells.x, cells.y, strict=True))) == 64
    for axis, ids in cells.groups.items():
        size, _ = numbers.group(axis)
        counts = {group: ids.count(group) for group in ids}
        assert set(counts.values()) == {size}


def test_many_ranks_become_nodes():
    scenario = read_scenario(
        {**REQUEST, "model": "llama-3.1-405b", "cluster": "16384xH100"}
        | {"job": {"seq_len": 8192, "global_batch": 2048}}
    )
    plan = read_plan(scenario, {"tp": 8, "pp": 16, "split": "balanced"})
    cells = build_scene(PlanFacts(scenario, plan), mechanism="panorama", mode="overview").cells
    assert cells.ranks_per_cell == 8
    assert len(cells.x) == 2048


@pytest.mark.parametrize(
    ("mechanism", "mode"),
    [(m, o) for m in ("tensor", "panorama", "combination") for o in MODES if o != "overview"],
)
def test_another_degree_is_another_scene(mechanism, mode):
    numbers = facts()
    other = read_plan(numbers.scenario, {**PLANS["tp4pp4"], "tp": 8})
    changed = PlanFacts(numbers.scenario, other)
    first, second = (build_scene(f, mechanism=mechanism, mode=mode) for f in (numbers, changed))
    assert first.facts != second.facts or first.marks != second.marks


@pytest.mark.parametrize("mode", ["transmission", "output"])
def test_another_cluster_or_schedule_is_another_scene(mode):
    first = made("links", mode)
    assert first.facts != made("links", mode, cluster="64xA100").facts
    assert made("pipeline", mode).facts != made("pipeline", mode, "interleaved").facts


def test_a_scene_for_an_illegal_plan_names_the_rule():
    from meshplan.errors import UserError

    request = {**REQUEST, "plan": {"tp": 3}, "mechanism": "data", "mode": "output"}
    with pytest.raises(UserError) as caught:
        scene_json(request)
    assert any(p.code.startswith("rule_") for p in caught.value.problems)


def test_scaled_plans_keep_the_batch():
    numbers = facts()
    doubled = numbers.scaled(8)
    assert doubled.scenario.cluster.num_gpus == 128
    plan = doubled.plan
    assert plan.dp * plan.micro_batch * plan.num_micro_batches == 256
    assert replace(plan, dp=4, dp_shard=4, num_micro_batches=64) == numbers.plan


def test_the_command_line_starts_without_the_server():
    import subprocess
    import sys

    code = (
        "import sys; from meshplan.app.cli.main import run; run(['--help']); "
        "run(['estimate', 'llama-3.1-8b', '--cluster', '8xH100', '--seq-len', '4096', "
        "'--global-batch', '64', '--json']); "
        "bad = {'starlette', 'uvicorn', 'anyio'} & set(sys.modules); sys.exit(len(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
