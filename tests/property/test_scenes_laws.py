"""Laws of the pictures, for any legal plan: nothing is drawn that was not computed."""

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshplan.app.request import read_plan, read_scenario
from meshplan.cost.collectives import Collective
from meshplan.cost.communication import Network, block_communication, pipeline_send
from meshplan.cost.schedule.simulate import simulate
from meshplan.cost.unit_time import tuning_of
from meshplan.explanation.scenes import MECHANISMS, MODES, WhatIf, build_scene
from meshplan.explanation.scenes.exchange import partners
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.hops import double_tree, pairwise, ring, ring_of, tree_parents
from meshplan.space.placement import AxisGroup
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
    tuning = tuning_of(facts.profile, facts.scenario.cluster)
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


def sent_by(hops, size):
    """Bytes that each place sends, and that each receives."""
    sent, received = [0.0] * size, [0.0] * size
    for hop in hops:
        sent[hop.source] += hop.num_bytes
        received[hop.target] += hop.num_bytes
    return sent, received


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 40), kind=st.sampled_from(list(Collective)))
def test_every_device_of_a_ring_or_an_exchange_sends_its_share(size, kind):
    chunk = 1000.0 / size
    swap = kind is Collective.ALL_TO_ALL
    hops = list(
        pairwise(chunk_bytes=chunk, size=size) if swap else ring(kind, chunk_bytes=chunk, size=size)
    )
    turns, _ = ring_of(kind, buffer_bytes=1000.0, size=size)
    sent, received = sent_by(hops, size)
    assert sent == pytest.approx([turns * chunk] * size)
    assert received == pytest.approx(sent)
    for turn in range(turns):
        now = [hop for hop in hops if hop.turn == turn]
        assert sorted(hop.source for hop in now) == sorted(hop.target for hop in now)
        assert len({hop.source for hop in now}) == size
    if swap:  # everyone meets everyone else once
        assert len({(hop.source, hop.target) for hop in hops}) == size * (size - 1)


@settings(max_examples=60, deadline=None)
@given(nodes=st.integers(1, 24), inside=st.sampled_from([1, 2, 4, 8]))
def test_a_double_tree_reduces_and_hands_out_as_much_as_a_ring_sends(nodes, inside):
    size = nodes * inside
    assume(size > 1)
    hops = double_tree(buffer_bytes=1000.0, size=size, inside=inside)
    turns, chunk = ring_of(Collective.ALL_REDUCE, buffer_bytes=1000.0, size=size)
    sent, _ = sent_by(hops, size)
    assert sum(sent) / size == pytest.approx(turns * chunk)
    for tree, parents in enumerate(tree_parents(size, inside=inside)):
        own = [hop for hop in hops if hop.part == tree]
        assert parents.count(None) == 1
        ups = {hop.source: hop for hop in own if parents[hop.source] == hop.target}
        downs = {hop.target: hop for hop in own if parents[hop.target] == hop.source}
        assert len(ups) == len(downs) == size - 1
        for child, hop in ups.items():
            below = [up.turn for other, up in ups.items() if parents[other] == child]
            assert all(turn < hop.turn for turn in below)  # adds what came from below first
            after = [down.turn for other, down in downs.items() if parents[other] == child]
            assert all(turn > downs[child].turn for turn in after)
        assert max(up.turn for up in ups.values()) < min(down.turn for down in downs.values())


@settings(max_examples=40, deadline=None)
@given(nodes=st.integers(2, 64))
def test_no_node_is_a_leaf_in_both_trees(nodes):
    leaves = [set(range(nodes)) - set(parents) for parents in tree_parents(nodes)]
    assert not leaves[0] & leaves[1]


@settings(max_examples=25, deadline=None)
@given(facts=plans(), algorithm=st.sampled_from(["ring", "tree"]))
def test_arrows_of_a_collective_carry_what_the_cost_model_counts(facts, algorithm):
    what_if = WhatIf(algorithm=algorithm)
    scene = build_scene(facts, mechanism="tensor", mode="transmission", what_if=what_if)
    size = int(scene.facts["size"])
    assume(1 < size <= 8)
    arrows = sum(m.num_bytes for m in scene.marks if m.kind == "packet") / size
    assert arrows == pytest.approx(scene.facts["sent_bytes"], rel=1e-12)
    network = Network(
        cluster=facts.scenario.cluster, tuning=tuning_of(facts.profile, facts.scenario.cluster)
    )
    stride = np.array([facts.group("tp")[1]])
    group = AxisGroup(size=np.array([size]), stride=stride)
    if algorithm == "tree":
        hidden, job = facts.scenario.model.hidden, facts.scenario.job
        tokens = facts.plan.micro_batch * job.seq_len / facts.plan.cp
        pairs = float(facts.block.tp_forward.num_calls[0]) / (2.0 if facts.plan.sp else 1.0)
        buffer = np.array([2.0 * tokens * hidden * pairs])
        counted = network.collective(Collective.ALL_REDUCE, group, buffer)
        assert arrows == pytest.approx(float(counted.num_bytes[0]), rel=1e-9)
    else:
        assert arrows == pytest.approx(float(facts.block.tp_forward.num_bytes[0]), rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(facts=plans(), shown=st.sampled_from(["together", "ep", "cp"]))
def test_what_a_rank_sends_to_its_partners_is_its_traffic(facts, shown):
    what_if = WhatIf(algorithm=shown)
    scene = build_scene(facts, mechanism="combination", mode="transmission", what_if=what_if)
    if scene.facts["algorithm"] == "together":
        for lane in facts.traffic:
            sent = [m.num_bytes for m in scene.marks if m.group == lane.axis]
            assert sum(sent) == pytest.approx(lane.num_bytes, rel=1e-12)
            for other, _ in partners(facts, lane.axis, int(scene.facts["rank"])):
                assert 0 <= other < facts.scenario.cluster.num_gpus
                assert other != scene.facts["rank"]
        return
    part = getattr(facts.block, f"{scene.facts['algorithm']}_forward")
    assume(facts.plan.etp == 1)
    assert scene.facts["sent_bytes"] == pytest.approx(float(part.num_bytes[0]), rel=1e-12)
    size = int(scene.facts["size"])
    arrows = sum(m.num_bytes for m in scene.marks if m.kind == "packet")
    if size <= 8:
        assert arrows / size == pytest.approx(scene.facts["sent_bytes"], rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(facts=plans())
def test_stages_copies_and_levels_are_the_plans(facts):
    shown = build_scene(facts, mechanism="pipeline", mode="overview").facts
    held = [v for k, v in shown.items() if k.startswith("stage_")]
    if facts.plan.pp <= 16:
        assert sum(held) == facts.scenario.model.num_layers
    copies = build_scene(facts, mechanism="scale", mode="overview").facts
    assert copies["dp"] * copies["gpus_each"] == facts.scenario.cluster.num_gpus
    levels = build_scene(facts, mechanism="links", mode="overview").facts
    assert len(levels) == len(facts.scenario.cluster.tiers)


@settings(max_examples=10, deadline=None)
@given(facts=plans())
def test_every_scene_can_be_built(facts):
    for mechanism in MECHANISMS:
        for mode in MODES:
            assert build_scene(facts, mechanism=mechanism, mode=mode).marks
