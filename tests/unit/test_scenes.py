"""What is drawn is what was computed: bytes on arrows, lengths of stages, the makespan."""

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from meshplan.app.request import read_plan, read_scenario
from meshplan.app.web.scene import scene as scene_json
from meshplan.app.web.scene import words_on
from meshplan.app.web.svg import svg_of
from meshplan.app.web.wrap import SIZES, text_width, wrapped
from meshplan.cost.collectives import Collective
from meshplan.cost.memory import stage_memory
from meshplan.cost.schedule.simulate import simulate
from meshplan.explanation.scenes import MECHANISMS, MODES, NARROW, WIDE, WhatIf, build_scene
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.hops import pairwise, ring, ring_of, tree_parents
from meshplan.explanation.scenes.records import amount
from meshplan.explanation.scenes.shelves import held
from meshplan.space.placement import axis_group
from meshplan.space.plan import Recompute, Schedule
from meshplan.text import LANGUAGES
from meshplan.units import format_duration, format_memory

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


@cache
def kept_facts(name, changes):
    scenario = read_scenario({**REQUEST, **json.loads(changes)})
    return PlanFacts(scenario, read_plan(scenario, PLANS[name]))


def facts(name="tp4pp4", **changes):
    return kept_facts(name, json.dumps(changes))


def made(mechanism, mode, name="tp4pp4", *, paper=WIDE, **changes):
    return build_scene(facts(name, **changes), mechanism=mechanism, mode=mode, paper=paper)


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


@pytest.mark.parametrize("paper", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nothing_is_drawn_outside_the_picture(mechanism, name, paper):
    for mode in MODES:
        scene = made(mechanism, mode, name, paper=paper)
        assert scene.paper.width == paper.width
        assert scene.paper.height <= paper.height
        for mark in scene.marks:
            assert -1 <= mark.x <= paper.width + 1
            assert -1 <= mark.y <= scene.paper.height + 1
            assert -1 <= mark.x + mark.w <= paper.width + 1, (mode, mark)
            assert -1 <= mark.y + mark.h <= scene.paper.height + 1, (mode, mark)
        for x, y in zip(scene.cells.x, scene.cells.y, strict=True) if scene.cells else ():
            assert 0 <= x <= x + scene.cells.size <= paper.width
            assert 0 <= y <= y + scene.cells.size <= scene.paper.height


def extents(shown):
    """Where each line of words stands: left, upper, right and lower edge, when, and the words."""
    found = []
    for mark in shown.get("marks", ()):
        if mark["kind"] != "text":
            continue
        tone, x, y = mark.get("tone", "ink"), mark.get("x", 0.0), mark.get("y", 0.0)
        size = SIZES.get(tone, 14.0)
        for k, line in enumerate(mark["label"].split("\n")):
            wide = text_width(line, tone) * 0.94  # the estimate is on the wide side
            left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[mark.get("anchor", "start")] * wide
            base = y + k * 1.35 * size
            when = mark.get("span") or (-1e9, 1e9)
            edges = (left, base - 0.72 * size, left + wide, base + 0.2 * size)
            found.append((edges, when, line))
    return found


FILLED = {*(f"t{i}" for i in range(8)), "accent", "bad"}


def meet(one, other):
    (a, b, c, d), (e, f, g, h) = one, other
    return a < g and e < c and b < h and f < d


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("paper", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_words_have_their_room(mechanism, name, paper, lang):
    for mode in MODES:
        shown = words_on(made(mechanism, mode, name, paper=paper), lang)
        lines = extents(shown)
        height = shown.get("paper", {"height": paper.height})["height"]
        for (left, upper, right, lower), _, said in lines:
            assert left >= -6, (mode, said)
            assert upper >= -6, (mode, said)
            assert right <= paper.width + 6, (mode, said)
            assert lower <= height + 6, (mode, said)
        for i, (one, since, said) in enumerate(lines):
            for other, until, heard in lines[:i]:
                together = since[0] < until[1] and until[0] < since[1]
                assert not (together and meet(one, other)), (mode, said, heard)
        for edges, when, said in lines:
            for mark in shown["marks"]:
                if mark["kind"] == "box" and mark.get("tone") in FILLED:
                    x, y = mark.get("x", 0.0), mark.get("y", 0.0)
                    there = (x, y, x + mark.get("w", 0.0), y + mark.get("h", 0.0))
                    since = mark.get("span") or (-1e9, 1e9)
                    together = since[0] < when[1] and when[0] < since[1]
                    assert not (together and meet(edges, there)), (mode, said, mark)


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


def said_in(scene):
    return [m["label"] for m in words_on(scene, "en")["marks"] if m["kind"] == "text"]


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("cluster", ["64xH100", "64xA100", "64xMI300X"])
def test_a_picture_says_which_algorithm_the_cost_model_takes(cluster, zero):
    """What the panel says takes as long as the collective that the step is made of."""
    job = {"seq_len": 4096, "global_batch": 512}
    scenario = read_scenario({"model": "llama-3.1-8b", "cluster": cluster, "job": job})
    numbers = PlanFacts(scenario, read_plan(scenario, {"tp": 1, "pp": 1, "zero": zero}))
    scene = build_scene(numbers, mechanism="data", mode="transmission")
    kind = Collective.REDUCE_SCATTER if zero else Collective.ALL_REDUCE
    message = np.array([numbers.messages(64)[kind]])
    group = axis_group(numbers.grid, "dp_cp")
    weighed = numbers.network.algorithms(kind, group, message)
    first = next(iter(weighed))
    step = float(numbers.network.collective(kind, group, message).seconds[0])
    assert weighed[first][0] == step
    assert set(weighed) == ({"ring"} if zero else {"ring", "tree"})
    assert scene.facts["algorithm"] == first
    said = " ".join(said_in(scene))
    assert f"cost model: {first}, " in said
    assert format_duration(step) in said
    assert format_memory(message[0]) in said or amount(message[0]) in said


def test_inside_a_node_the_cost_model_weighs_nothing():
    said = said_in(made("data", "transmission", cluster="8xH100", name="dp"))
    assert "cost model: times measured on such links" in said


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
        bar = next(m for m in scene.marks if m.kind == "grow" and m.group == lane.axis)
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
    assert max(m.x + m.w for m in drawn) == pytest.approx(WIDE.width)
    scale = (WIDE.width - 52.0) / exact
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


def test_words_break_where_a_reader_would():
    assert wrapped("one two three", room=70, tone="soft").split("\n") == ["one two", "three"]
    assert wrapped("共 4 份，每份 12 GiB", room=70, tone="soft").split("\n")[0] == "共 4 份，"
    for words in ("all-reduce of 12 GiB each", "优化器状态切成 4 份（ZeRO-1），每份 12 GiB"):
        lines = wrapped(words, room=90, tone="ink").split("\n")
        assert "".join(lines).replace(" ", "") == words.replace(" ", "")
        assert all(text_width(line, "ink") <= 90 for line in lines)
        assert not any(line[0] in "，。）" for line in lines)


@pytest.mark.parametrize("paper", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", PLANS)
def test_the_paper_is_cut_to_what_is_drawn(name, paper):
    for mechanism in MECHANISMS:
        for mode in MODES:
            scene = made(mechanism, mode, name, paper=paper)
            upper = min(m.y - (12 if m.kind == "text" else 0) for m in scene.marks)
            lower = max(max([m.y + m.h, *(y for _, y in m.points)]) for m in scene.marks)
            if scene.cells:
                lower = max(lower, max(scene.cells.y) + scene.cells.size)
            assert upper <= 36, (mechanism, mode)
            assert scene.paper.height - lower <= 60, (mechanism, mode)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_moves_is_told_moment_by_moment(mechanism, name):
    for mode in MODES:
        scene = made(mechanism, mode, name)
        times = [b.at_s for b in scene.beats]
        assert times == sorted(times)
        if scene.duration_s and scene.facts.get("pp") != 1:
            assert times[0] == 0.0, mode
            assert times[-1] <= scene.duration_s
            assert len(times) >= 2, mode
        for lang in LANGUAGES:
            assert all(said for _, said in words_on(scene, lang)["beats"])


ALONE = {"tp": 1, "zero": 0}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("cluster", "plan"),
    [("1xH100", ALONE), ("8xH100", ALONE), ("8xH100", {"tp": 8}), ("8xH100", {"pp": 8})],
    ids=["one", "dp", "tp", "pp"],
)
def test_what_sends_nothing_does_not_say_how_much(mechanism, cluster, plan, lang):
    job = {"seq_len": 2048, "global_batch": 16}
    scenario = read_scenario({"model": "llama-3.2-1b", "cluster": cluster, "job": job})
    numbers = PlanFacts(scenario, read_plan(scenario, plan))
    for mode in MODES:
        shown = words_on(build_scene(numbers, mechanism=mechanism, mode=mode), lang)
        said = [*shown["caption"].values(), *(words for _, words in shown["beats"])]
        said += [m["label"] for m in shown["marks"] if m["kind"] == "text"]
        assert not [words for words in said if re.search(r"(?<![\d.])0(\.0)? [GM]iB", words)], mode
        assert not [words for words in said if re.search(r"\b1 (axes|levels|replicas)\b", words)]


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", list(Collective))
@pytest.mark.parametrize("home", [False, True])
def test_what_members_hold_ends_as_the_collective_promises(kind, size, home):
    swaps = kind is Collective.ALL_TO_ALL
    hops = list(
        pairwise(chunk_bytes=1.0, size=size) if swaps else ring(kind, chunk_bytes=1.0, size=size)
    )
    parts = held(kind, hops, size=size, home=home)
    turns = max(hop.turn for hop in hops) + 1
    for turn in range(turns + 1):
        now = [p for p in parts if p.since <= turn < p.until]
        assert len({(p.member, p.place) for p in now}) == len(now)
        if kind is Collective.REDUCE_SCATTER:
            for part in range(size):  # no share is lost on the way, or counted twice
                assert sum(p.shares for p in now if p.place == part) == size
    end = {(p.member, p.place): p for p in parts if p.until > turns}
    if kind is Collective.REDUCE_SCATTER:
        assert set(end) == {(i, i) for i in range(size)}
    else:
        assert len(end) == size * size
    assert {p.shares for p in end.values()} == {size}
    if swaps and not home:  # what arrives is for the receiver
        assert all(p.tone == p.member for p in end.values())
    if swaps and home:
        assert all(
            len({p.tone for p in end.values() if p.member == i}) == size for i in range(size)
        )


@pytest.mark.parametrize(("zero", "cut"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_a_replica_is_filled_with_what_zero_leaves_it(zero, cut):
    scenario = read_scenario(
        {"model": "llama-3.2-1b", "cluster": "8xH100", "frameworks": ["deepspeed"]}
        | {"job": {"seq_len": 2048, "global_batch": 16}}
    )
    numbers = PlanFacts(scenario, read_plan(scenario, {"framework": "deepspeed", "zero": zero}))
    scene = build_scene(numbers, mechanism="data", mode="transformation")
    whole = max(m.w for m in scene.marks if m.group == "weights" or m.tone == "track")
    shares = {
        name: {round(m.w / whole, 3) for m in scene.marks if m.group == name}
        for name in ("optimizer", "gradients", "weights")
    }
    assert list(shares.values()) == [{0.125 if k < cut else 1.0} for k in range(3)]


def test_what_grows_is_as_long_as_what_was_sent():
    scene = made("panorama", "transmission")
    shown = words_on(scene, "en")
    bar = next(m for m in scene.marks if m.kind == "grow" and m.group == "dp")
    half = svg_of(shown, at_s=bar.span[1] / 2)
    assert f'width="{bar.w / 2:g}"' in half
    assert f'width="{bar.w:g}"' in svg_of(shown)


@pytest.mark.parametrize("name", ["tp4pp4", "dp"])
def test_memory_says_what_recompute_changes(name):
    numbers = facts(name)
    scene = build_scene(numbers, mechanism="scale", mode="transformation")
    other = Recompute.NONE if numbers.plan.recompute else Recompute.FULL
    peaks = [
        s.peak_bytes for s in stage_memory(numbers.scenario, replace(numbers.plan, recompute=other))
    ]
    told = scene.beats[-1].said
    assert told.numbers["other_bytes"] == peaks[int(told.numbers["stage"])]
    assert told.code.endswith("without_recompute" if numbers.plan.recompute else "with_recompute")
    # the outline ends where that peak does, on the scale of the bars
    bar = next(m for m in scene.marks if m.group == "stage0")
    edges = [m for m in scene.marks if m.kind == "line" and m.tone == "accent" and not m.w]
    usable = float(scene.facts["usable_bytes"])
    reach = min(
        peaks[0], max(usable, numbers.stages[0].peak_bytes, min(max(peaks), 1.6 * usable)) * 1.04
    )
    assert edges[0].x - bar.x == pytest.approx(bar.w * reach / bar.num_bytes, rel=0.02)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages(pp):
    """1F1B: stage ``i`` of ``P`` holds ``P - i`` (Narayanan et al. 2021, section 2.2)."""
    what_if = WhatIf(schedule=Schedule.ONE_F_ONE_B, pp=pp, num_micro_batches=4 * pp)
    scene = build_scene(facts(), mechanism="pipeline", mode="output", what_if=what_if)
    runs = next(b.said for b in scene.beats if b.said.code == "beat.pipeline.runs")
    assert (runs.numbers["held"], runs.numbers["held_last"]) == (pp, 1)
    # GPipe has no such phase: all forwards come first
    what_if = replace(what_if, schedule=Schedule.GPIPE)
    scene = build_scene(facts(), mechanism="pipeline", mode="output", what_if=what_if)
    assert [b.said.code for b in scene.beats] == ["beat.pipeline.fills", "beat.pipeline.all_back"]
