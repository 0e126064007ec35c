"""Pieces of the search: order, families, sizes, what flips a choice, what makes a plan fit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from meshplan.cost.memory import Verdict
from meshplan.inputs.load.scenario import load_scenario
from meshplan.search.answer import answer, decided_by, with_alternatives
from meshplan.search.carry import carry, with_degree
from meshplan.search.economics import run_cost
from meshplan.search.evaluate import evaluate, pessimistic, screen
from meshplan.search.family import family_ids
from meshplan.search.fitting import some_plan_fits
from meshplan.search.neighbours import neighbours
from meshplan.search.objective import TIE, complexity, crowding, field_order, pack, tie_step
from meshplan.search.pareto import front
from meshplan.search.prospects import Values
from meshplan.search.remedy import remedies_for_plan, remedies_for_scenario
from meshplan.search.sensitivity import find_flips, winner
from meshplan.search.sizes import candidate_sizes, resize_cluster, with_gpus
from meshplan.space.plan import Offload, PlanGrid, Recompute, Schedule
from meshplan.space.rules.check import idle_fields
from space_scenarios import enumerate_plans


def scenario_of(**changes):
    asked = {
        "model": "llama-3.1-8b",
        "cluster": "16xH100",
        "job": {"seq_len": 8192, "global_batch": 64},
        "axes": {"cp": [1], "micro_batch": [1, 2]},
    }
    return load_scenario({**asked, **changes})


@pytest.fixture(scope="module")
def found():
    return with_alternatives(answer(scenario_of(), top=5), top=5)


@pytest.fixture(scope="module")
def plan(found):
    return found.entries[0].plan


def grid_of(plan, **columns):
    """A grid that varies some fields of a plan."""
    names, values = columns.keys(), zip(*columns.values(), strict=True)
    return PlanGrid.of([replace(plan, **dict(zip(names, row, strict=True))) for row in values])


def test_more_moving_parts_count_more(plan):
    plain = replace(plan, tp=1, pp=1, vpp=1, cp=1, recompute=Recompute.NONE, zero=1)
    grid = PlanGrid.of(
        [
            plain,
            replace(plain, tp=2, sp=True),
            replace(plain, tp=2, sp=False),
            replace(plain, tp=2, sp=True, pp=2),
            replace(plain, tp=2, sp=True, pp=2, vpp=2, schedule=Schedule.INTERLEAVED),
            replace(plain, tp=2, sp=True, pp=2, vpp=2, schedule=Schedule.ZBV),
            replace(plain, recompute=Recompute.FULL),
            replace(plain, recompute=Recompute.FULL, recompute_layers=2),
            replace(plain, recompute=Recompute.NORM | Recompute.MLP),
            replace(plain, offload=Offload.OPTIMIZER),
        ]
    )
    assert complexity(grid).tolist() == [0, 1, 2, 2, 3, 4, 1, 2, 2, 2]


def test_a_memory_that_is_all_but_full_counts():
    peaks = np.array([0.90, 0.9499, 0.9501, 1.0]) * 80e9
    assert crowding(peaks, usable_bytes=80e9).tolist() == [0, 0, 2, 2]


def test_field_order_does_not_depend_on_the_order_of_the_grid():
    grid = enumerate_plans(scenario_of()).grid
    shuffle = np.random.default_rng(0).permutation(len(grid))
    assert np.array_equal(field_order(grid)[shuffle], field_order(grid.take(shuffle)))
    assert sorted(field_order(grid).tolist()) == list(range(len(grid)))


def test_packed_words_compare_like_their_columns():
    rng = np.random.default_rng(2)
    columns = [rng.integers(-5, 10**high, 300) for high in (1, 6, 9, 12, 2)]
    words = pack(columns)
    assert len(words) > 1  # too wide for one
    expected = np.lexsort(columns[::-1])
    assert np.array_equal(np.lexsort(words[::-1]), expected)


def test_ties_are_counted_from_the_best():
    value = np.array([1.0, 1.0 + 0.9 * TIE, 1.0 + 1.1 * TIE, 2.0, np.inf])
    steps = tie_step(value, best=1.0)
    assert steps[:3].tolist() == [0, 0, 1]
    assert steps[2] < steps[3] < steps[4]


def test_families_ignore_knobs_and_tell_layouts_apart(plan):
    same = grid_of(
        plan, micro_batch=[1, 2, 4], recompute=[Recompute.NONE, Recompute.FULL, Recompute.NORM]
    )
    assert len(set(family_ids(same).tolist())) == 1
    layouts = grid_of(plan, tp=[1, 2, 1, 1], zero=[1, 1, 2, 3])
    ids = family_ids(layouts).tolist()
    assert ids[0] == ids[2] and len(set(ids)) == 3


@pytest.mark.parametrize("num_gpus", [1, 2, 6, 7, 8, 12, 64, 100, 1024])
def test_sizes_end_at_the_cluster_and_use_whole_nodes(num_gpus):
    cluster = scenario_of(cluster=f"{num_gpus}xH100").cluster
    sizes = candidate_sizes(cluster)
    assert sizes[0] == 1 and sizes[-1] == num_gpus and list(sizes) == sorted(set(sizes))
    for size in sizes[:-1]:
        assert size % cluster.gpus_per_node == 0 or cluster.gpus_per_node % size == 0


@pytest.mark.parametrize("num_gpus", [1, 4, 8, 16, 24, 2048])
def test_a_resized_cluster_is_a_cluster(num_gpus):
    cluster = resize_cluster(scenario_of(cluster="64xH100").cluster, num_gpus=num_gpus)
    spans = [tier.num_gpus for tier in cluster.tiers]
    assert spans[-1] == num_gpus == cluster.num_gpus
    assert spans == sorted(set(spans))
    assert cluster.gpus_per_node == min(8, num_gpus)


def test_a_grown_cluster_is_the_larger_one_of_its_name():
    small = scenario_of(cluster="64xH100").cluster
    grown = resize_cluster(small, num_gpus=4096)
    assert grown == scenario_of(cluster="4096xH100").cluster
    assert len(grown.tiers) > len(small.tiers)
    racks = scenario_of(cluster="2xgb200-nvl72").cluster
    assert resize_cluster(racks, num_gpus=432) == scenario_of(cluster="6xgb200-nvl72").cluster
    slow = scenario_of(cluster={"base": "16xH100", "network": "25GbE"}).cluster
    grown = resize_cluster(slow, num_gpus=4096)
    assert grown.num_gpus == 4096 and grown.tiers[-1].bandwidth_bytes_per_s == 25e9 / 8 / 8
    spelled = [
        {"fabric": "nvlink", "gpus": 8, "bandwidth_per_gpu": "450 GB/s"},
        {"fabric": "infiniband", "gpus": 16, "bandwidth_per_gpu": "50 GB/s"},
    ]
    own = scenario_of(cluster={"device": "H100", "gpus": 16, "tiers": spelled}).cluster
    assert [tier.num_gpus for tier in resize_cluster(own, num_gpus=4096).tiers] == [8, 4096]
    priced = replace(small, device=replace(small.device, usd_per_hour=3.0))
    assert resize_cluster(priced, num_gpus=128).device.usd_per_hour == 3.0


@pytest.mark.parametrize("num_gpus", [4, 8, 16, 32])
def test_a_cut_cluster_gives_the_times_of_the_cluster_itself(num_gpus):
    scenario = scenario_of(cluster="64xH100")
    cut = with_gpus(scenario, num_gpus)
    own = scenario_of(cluster=f"{num_gpus}xH100")
    grid = enumerate_plans(own).grid
    grid = grid.take(np.arange(0, len(grid), max(1, len(grid) // 50)))
    ours, theirs = evaluate(cut, grid), evaluate(own, grid)
    assert np.array_equal(ours.time.step_time_s, theirs.time.step_time_s)
    assert np.array_equal(ours.memory.peak_bytes, theirs.memory.peak_bytes)


def test_cost_of_a_run():
    job = {"seq_len": 4096, "global_batch": 256, "total_tokens": 2**20 * 86400}
    scenario = scenario_of(job={**job, "deadline_days": 2})
    device = replace(scenario.cluster.device, usd_per_hour=2.0)
    scenario = replace(scenario, cluster=replace(scenario.cluster, device=device))
    cost = run_cost(scenario, step_time_s=1.0)  # 2**20 tokens a second
    assert cost is not None
    assert (cost.days, cost.gpu_hours, cost.cost_usd) == (1.0, 24 * 16, 24 * 16 * 2.0)
    assert cost.meets_deadline is True
    late = run_cost(scenario, step_time_s=2.1)
    assert late is not None and late.meets_deadline is False
    assert (cost.gpus_in_time, late.gpus_in_time) == (None, 17), "16 GPUs take 2.1 days for 2"
    assert run_cost(scenario_of(), step_time_s=1.0) is None


def test_adapt_keeps_degrees_and_follows_the_cluster(plan):
    scenario = scenario_of(cluster="32xH100")
    carried = carry(plan, scenario)
    assert carried is not None
    assert carried.tp * carried.pp * carried.cp * carried.dp == 32
    assert carried.dp * carried.micro_batch * carried.num_micro_batches == 64
    assert carry(replace(plan, tp=5), scenario) is None
    assert carry(replace(plan, micro_batch=3), scenario) is None


def test_neighbours_differ_in_one_knob(found, plan):
    for near in neighbours(found.scenario, plan):
        other = near.result.grid.plan(0)
        assert getattr(other, near.knob) != getattr(plan, near.knob) or near.knob == "recompute"
        alone = evaluate(found.scenario, PlanGrid.of([other]))
        assert alone.time.step_time_s[0] == near.result.time.step_time_s[0]


def test_no_plan_with_another_degree_beats_the_one_named(found, plan):
    """Against an exhaustive, exact evaluation of every plan that fits."""
    grid = enumerate_plans(found.scenario).grid
    every = evaluate(found.scenario, grid)
    value = np.where(every.memory.verdict == Verdict.FITS, pessimistic(every.time), np.inf)
    assert found.alternatives
    seen = set()
    for near in found.alternatives:
        seen.add((near.knob, near.direction))
        other = near.result.grid.plan(0)
        having = (grid.recompute == int(other.recompute)) & (grid.recompute_layers == 0)
        if near.knob != "recompute":
            having = getattr(grid, near.knob) == getattr(other, near.knob)
            assert (getattr(other, near.knob) - getattr(plan, near.knob)) * near.direction > 0
        assert pessimistic(near.result.time)[0] <= value[having].min() * (1 + TIE)
        assert near.result.memory.verdict[0] == Verdict.FITS
    # a direction that is not named holds no plan that fits
    for knob in ("tp", "pp", "zero", "micro_batch"):
        column, now = getattr(grid, knob), getattr(plan, knob)
        for direction in (-1, 1):
            there = np.isfinite(value[(column - now) * direction > 0]).any()
            assert there == ((knob, direction) in seen)


def test_an_alternative_of_the_answer_is_the_plan_that_the_answer_lists():
    scenario = scenario_of(model="llama-3.1-70b", cluster="64xH100", axes={})
    found = with_alternatives(answer(scenario, top=5), top=5)
    assert found.alternatives
    for near in found.alternatives:
        if near.knob in ("tp", "pp", "cp"):
            value = getattr(near.result.grid.plan(0), near.knob)
            listed = [e.plan for e in found.entries if getattr(e.plan, near.knob) == value]
            assert not listed or listed[0] == near.result.grid.plan(0)


def test_front_of_made_up_points():
    time = np.array([1.0, 2.0, 2.0, 3.0, 1.5, np.inf])
    memory = np.array([9, 5, 4, 4, 9, 1])
    times = SimpleNamespace(
        quick=lambda i: time[i] * 0.8, closed=lambda i: time[i] * 0.9, exact=lambda i: time[i]
    )
    picked = front(Values(times, len(time)), memory=memory, field=np.arange(6))
    assert picked.tolist() == [0, 2]


def test_each_flip_is_true(found):
    """Just before the change the choice stands, at the change it does not."""
    plans = found.rivals
    assert winner(found.scenario, plans).rank == 0
    flips = find_flips(found.scenario, plans)
    assert flips
    seen = {flip.change for flip in flips}
    assert "device_memory" in seen
    for flip in flips:
        assert flip.rank != 0
        assert flip.before * flip.factor == pytest.approx(flip.after)
        if flip.rank is not None and flip.gain is not None:
            assert flip.gain > TIE


def test_memory_flip_is_the_peak_of_the_choice(found):
    flip = next(f for f in find_flips(found.scenario, found.rivals) if f.change == "device_memory")
    peak = float(found.entries[0].result.memory.peak_bytes[0])
    assert flip.after == peak
    for usable, stands in ((peak, True), (peak * (1 - 1e-9), False)):
        device = replace(found.scenario.cluster.device, usable_bytes=usable)
        cluster = replace(found.scenario.cluster, device=device)
        outcome = winner(replace(found.scenario, cluster=cluster), found.rivals)
        assert (outcome.rank == 0) == stands


def test_batch_acts_through_the_number_of_micro_batches_alone(found, plan):
    """What lets the search evaluate plans for several batches together."""
    job = replace(found.scenario.job, global_batch=128)
    larger = replace(found.scenario, job=job)
    carried = carry(plan, larger)
    assert carried is not None
    one = PlanGrid.of([carried])
    ours, theirs = evaluate(found.scenario, one), evaluate(larger, one)
    assert ours.time.high_s[0] == theirs.time.high_s[0]
    assert ours.memory.peak_bytes[0] == theirs.memory.peak_bytes[0]


def test_remedies_of_a_plan_change_one_thing():
    scenario = scenario_of(model="llama-3.1-70b", cluster="64xH100", axes={})
    grid = enumerate_plans(replace(scenario, axes={"tp": (4,), "pp": (4,), "zero": (1,)})).grid
    base = grid.plan(0)
    assert evaluate(scenario, PlanGrid.of([base])).memory.verdict[0] == Verdict.OOM
    remedies = remedies_for_plan(scenario, base)
    assert {"recompute", "tp"} <= {remedy.kind for remedy in remedies}
    for remedy in remedies:
        assert remedy.peak_bytes <= remedy.usable_bytes
        if remedy.kind in ("recompute", "zero", "offload"):
            changed = {
                name
                for name in ("tp", "pp", "cp", "zero", "offload", "micro_batch")
                if getattr(remedy.plan, name) != getattr(base, name)
            }
            assert changed <= {remedy.kind}


def small(**job):
    """Eight billion parameters on one card of 24 GB."""
    job = {"seq_len": 4096, "global_batch": 8, **job}
    return scenario_of(cluster="1xRTX4090", job=job, axes={})


def test_where_no_single_change_helps_other_jobs_and_more_gpus_are_named():
    scenario = small()
    plan = enumerate_plans(scenario).grid.plan(0)
    remedies = remedies_for_plan(scenario, plan)
    by_kind = {remedy.kind for remedy in remedies}
    assert {"num_gpus", "job"} <= by_kind
    tasks = [r.after["task"] for r in remedies if r.kind == "job" and "task" in r.after]
    assert tasks == ["lora", "qlora"]
    for remedy in remedies:
        assert remedy.peak_bytes <= remedy.usable_bytes
    for remedy in (r for r in remedies if r.kind == "job"):
        changes = {k: v for k, v in remedy.after.items() if k != "framework"}
        lora = {"lora_rank": 16} if "task" in changes else {}
        changed = replace(scenario, job=replace(scenario.job, **changes, **lora))
        alone = evaluate(changed, PlanGrid.of([remedy.plan]))
        assert alone.memory.verdict[0] == Verdict.FITS
        assert alone.memory.peak_bytes[0] == remedy.peak_bytes


def test_a_pair_of_changes_is_named_only_where_neither_is_enough():
    scenario = small(seq_len=65536, global_batch=1, task="lora")
    (remedy,) = [r for r in remedies_for_scenario(scenario) if r.kind == "job"]
    assert {"task", "seq_len"} <= remedy.after.keys()
    alone = {k: v for k, v in remedy.after.items() if k not in ("seq_len", "framework")}
    job = replace(scenario.job, **alone)
    assert not answer(replace(scenario, job=job), top=1).counts.num_fits
    short = replace(scenario.job, seq_len=remedy.after["seq_len"])
    assert not answer(replace(scenario, job=short), top=1).counts.num_fits


def test_another_job_changes_the_framework_only_where_the_framework_alone_is_not_enough():
    scenario = scenario_of(model="llama-3.1-70b", cluster="8xH100", axes={})
    found = remedies_for_scenario(scenario)
    enough = {r.after for r in found if r.kind == "framework"}
    others = {r.after["framework"] for r in found if r.kind == "job" and "framework" in r.after}
    assert enough, "offloaded parameters make it fit in some framework"
    assert not enough & others


def test_another_plan_on_the_same_gpus_comes_before_other_jobs():
    scenario = scenario_of(cluster="8xRTX4090", axes={})
    plan = enumerate_plans(replace(scenario, axes={"tp": (2,), "pp": (1,)})).grid.plan(0)
    remedies = remedies_for_plan(scenario, plan)
    assert remedies[-1].kind == "plan"
    assert not any(remedy.kind == "job" for remedy in remedies)


def test_fewest_gpus_that_fit_are_fewest():
    scenario = scenario_of(model="llama-3.1-70b", cluster="8xH100", axes={"offload": ("none",)})
    remedy = next(r for r in remedies_for_scenario(scenario) if r.kind == "num_gpus")
    below = [s for s in candidate_sizes(scenario.cluster, up_to=512) if 8 <= s < remedy.after]
    for size in below:
        assert not answer(with_gpus(scenario, size), top=1).counts.num_fits


def test_fewest_gpus_count_the_plans_that_offload():
    job = {"seq_len": 4096, "global_batch": 64}
    asked = {"model": "llama-3.1-8b", "cluster": "1xA100-40GB", "job": job}
    sizes = [r.after for r in remedies_for_scenario(load_scenario(asked)) if r.kind == "num_gpus"]
    assert sizes == [2]
    assert screen(load_scenario({**asked, "cluster": "2xA100-40GB"})).num_fits


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed", "accelerate"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8, 16])
def test_whether_a_plan_fits_is_what_the_search_finds(framework, model, num_gpus):
    job = {"seq_len": 512, "global_batch": 64}
    asked = {"model": model, "cluster": f"{num_gpus}xA100-40GB", "job": job}
    scenario = load_scenario({**asked, "frameworks": [framework]})
    assert some_plan_fits(scenario) == bool(screen(scenario).num_fits)


def test_the_thriftiest_settings_need_not_have_the_lowest_peak():
    # the optimizer on the host and no recompute fit FSDP here, full recompute does not
    job = {"seq_len": 512, "global_batch": 64}
    asked = {"model": "mixtral-8x7b", "cluster": "16xH100", "job": job}
    scenario = load_scenario({**asked, "frameworks": ["accelerate"]})
    device = replace(scenario.cluster.device, memory_bytes=25e9, usable_bytes=20e9)
    small = replace(scenario, cluster=replace(scenario.cluster, device=device))
    assert screen(small).num_fits and some_plan_fits(small)


def test_a_degree_is_changed_by_name(plan):
    for knob in ("tp", "pp", "cp", "ep", "micro_batch", "zero"):
        assert getattr(with_degree(plan, knob, 2), knob) == 2
    assert with_degree(plan, "zero", 3) == replace(plan, zero=3)
    with pytest.raises(ValueError, match="vpp"):
        with_degree(plan, "vpp", 2)


def test_fewest_gpus_meet_the_deadline_and_less_would_not():
    job = {"seq_len": 8192, "global_batch": 64, "total_tokens": 1e11, "deadline_days": 10}
    scenario = scenario_of(cluster="64xH100", objective="fewest_gpus", job=job)
    found = answer(scenario, top=3)
    assert found.entries
    size = found.entries[0].scenario.cluster.num_gpus
    assert size < 64
    for tried in found.sizes:
        assert (tried.days is not None and tried.days <= 10) == (tried.num_gpus >= size)


def test_cheapest_takes_the_fewest_gpu_hours_in_time():
    job = {"seq_len": 8192, "global_batch": 64, "total_tokens": 1e11, "deadline_days": 10}
    scenario = scenario_of(cluster="64xH100", objective="cheapest", job=job)
    found = answer(scenario, top=4)
    hours = [entry.value_s * entry.scenario.cluster.num_gpus for entry in found.entries]
    assert hours == sorted(hours)
    for entry in found.entries:
        cost = run_cost(entry.scenario, step_time_s=entry.value_s)
        assert cost is not None and cost.meets_deadline
    fastest = answer(replace(scenario, objective="fastest"), top=1).entries[0]
    assert hours[0] <= fastest.value_s * 64


def test_cheapest_goes_by_the_prediction_where_no_slow_end_is_in_time():
    job = {"seq_len": 8192, "global_batch": 64, "total_tokens": 1e11}
    asked = {"cluster": "64xH100", "objective": "cheapest"}
    whole = answer(scenario_of(cluster="64xH100", job=job), top=1).entries[0]
    predicted, slow = (
        run_cost(whole.scenario, step_time_s=time_s)
        for time_s in (whole.step_time_s, whole.value_s)
    )
    assert predicted is not None and slow is not None
    days = (predicted.days + slow.days) / 2
    found = answer(scenario_of(**asked, job={**job, "deadline_days": days}), top=4)
    best, *others = found.entries
    assert best.scenario.cluster.num_gpus == 64 and best.plan == whole.plan
    assert {decided_by(found.scenario, best, other) for other in others} <= {
        "deadline",
        "gpu_hours",
    }
    # not even the prediction is in time: the fastest is the least late
    late = answer(scenario_of(**asked, job={**job, "deadline_days": predicted.days / 2}), top=4)
    assert late.entries[0].plan == whole.plan
    assert decided_by(late.scenario, *late.entries[:2]) == "step_time"


def test_a_deadline_nobody_meets_gives_no_plan():
    job = {"seq_len": 8192, "global_batch": 64, "total_tokens": 1e15, "deadline_days": 1}
    found = answer(scenario_of(objective="fewest_gpus", job=job), top=3)
    assert not found.entries
    assert [tried.num_gpus for tried in found.sizes][-1] == 16


def test_decisions_have_a_reason(found):
    best = found.entries[0]
    for other in found.entries[1:]:
        reason = decided_by(found.scenario, best, other)
        if reason == "simplicity":
            assert other.value_s <= best.value_s * (1 + TIE) ** 2
        elif reason == "error_band":
            assert other.step_time_s < best.step_time_s
        else:
            assert reason == "step_time" and other.step_time_s >= best.step_time_s


def test_values_are_the_pessimistic_ends(found):
    for entry in found.entries:
        assert entry.value_s == pessimistic(entry.result.time)[0] > entry.step_time_s


@pytest.mark.parametrize("objective", ["fastest", "cheapest", "fewest_gpus", "pareto"])
def test_a_search_tells_how_far_it_is(objective):
    where = scenario_of(cluster="32xH100", objective=objective)
    told = []
    answer(where, top=1, progress=told.append)
    assert told == sorted(told)
    assert all(0.0 <= share <= 1.0 for share in told)
    sizes = 1 if objective in ("fastest", "fewest_gpus") else len(candidate_sizes(where.cluster))
    assert len(told) >= 3 * sizes
    # the smallest of the sizes is enough here, so that the others are not looked at
    assert objective == "fewest_gpus" or told[-1] >= 0.9


@pytest.mark.parametrize("framework", ["deepspeed", "torchtitan"])
def test_a_single_gpu_shards_where_only_that_offloads(framework):
    request = {
        "model": "llama-3.1-8b",
        "cluster": "1xRTX-4090",
        "job": {"seq_len": 4096, "global_batch": 16},
        "frameworks": [framework],
    }
    given = load_scenario(request)
    found = screen(given)
    # what torch's policy gathers and casts does not fit this card, so that only one is ranked
    assert bool(found.num_fits) == (framework == "deepspeed")
    least = (found.grid if found.num_fits else found.smallest).plan(0)
    assert least.offload == Offload.OPTIMIZER | Offload.PARAMETERS
    assert least.zero
    assert not idle_fields(given, least)
    # what stays on the device gains nothing from shards over one of them
    plain = enumerate_plans(given).grid
    assert len(plain)
    assert not plain.zero.any()


def test_a_batch_that_the_gpus_cannot_share_names_the_nearest_that_they_can():
    job = {"seq_len": 4096, "global_batch": 256}
    scenario = scenario_of(cluster="7xH100", job=job)
    found = answer(scenario, top=1)
    flips = find_flips(scenario, found.rivals)
    shared = {flip.after: flip for flip in flips if flip.after in (252, 259)}
    assert set(shared) == {252, 259}
    for flip in shared.values():
        assert flip.change == "global_batch"
        assert flip.plan is not None and flip.plan.dp == 7


def test_flips_are_looked_for_where_nothing_fits_any_other_batch():
    """LoRA of 70B on one H200: what fits at this batch is alone with it."""
    request = {
        "model": "llama-3.1-70b",
        "cluster": "1xH200",
        "job": {"seq_len": 2048, "global_batch": 16, "task": "lora"},
    }
    found = answer(load_scenario(request), top=1)
    assert found.entries
    assert isinstance(find_flips(found.entries[0].scenario, found.rivals), tuple)


def test_a_plan_keeps_its_tokens_where_sequences_are_half_as_long():
    """A plan is not beaten by itself with two sequences instead of one of twice the length."""
    scenario = load_scenario(
        {
            "model": "llama-3.1-8b",
            "cluster": "16xH100",
            "job": {"seq_len": 8192, "global_batch": 64},
            "axes": {"cp": [1, 2]},
        }
    )
    found = answer(scenario, top=3)
    plans = [entry.plan for entry in found.entries]
    flips = [f for f in find_flips(scenario, plans) if f.change == "seq_len"]
    job = replace(scenario.job, seq_len=4096, global_batch=128)
    short = replace(scenario, job=job)
    as_before = carry(plans[0], short)
    same_tokens = carry(replace(plans[0], micro_batch=2 * plans[0].micro_batch), short)
    slow, fast = (
        pessimistic(evaluate(short, PlanGrid.of([plan])).time)[0]
        for plan in (as_before, same_tokens)
    )
    assert slow > fast * (1 + TIE)  # so that it would have been beaten by itself
    for flip in (f for f in flips if f.factor == 0.5):
        assert flip.plan != same_tokens
        value = pessimistic(evaluate(short, PlanGrid.of([flip.plan])).time)[0]
        assert flip.gain == pytest.approx(fast / value - 1, rel=1e-9)
