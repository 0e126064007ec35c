"""Memory of passes that run beside one another, and of CUDA graphs, against a played schedule."""

from dataclasses import fields, replace

import numpy as np
import pytest

from cost_scenarios import deepseek_v3_on_gb200, mixture, plan, scenario
from meshplan.cost.memory import Event, peak_memory, screen_memory, stage_memory
from meshplan.inputs.load.framework import load_framework_memory
from meshplan.space.plan import PlanGrid, Recompute, Schedule
from space_scenarios import enumerate_plans

EXCHANGE = "megatron+overlapped-exchange"
GRAPHS = "megatron+graph-attention+graph-router"
SAVED = ("attention", "attention_core", "attention_norm", "mlp_norm", "router", "experts")
SHAPES = [(1, 1, 4), (1, 1, 1), (2, 2, 4), (4, 2, 8), (4, 2, 4), (4, 3, 8), (2, 4, 2)]


def _scene(variant, *, num_layers, **job):
    model = mixture(num_layers=num_layers)
    scene = scenario(model, cluster="64xH100", seq_len=2048, global_batch=256, **job)
    return replace(scene, variant=variant)


def _plan(pp, vpp, m, **given):
    schedule = Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B
    return plan(64, pp=pp, vpp=vpp, schedule=schedule, ep=2, num_micro_batches=m, **given)


def _passes(pp, vpp, m, stage):
    """Passes of a stage in Megatron-LM's order, as pairs that run at once (schedules.py)."""
    groups = [range(first, min(first + pp, m)) for first in range(0, m, pp)]
    forward = [(mb, chunk) for group in groups for chunk in range(vpp) for mb in group]
    backward = [(mb, vpp - 1 - chunk) for mb, chunk in forward]
    warmup = 1 if pp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp + 1
    warmup = min(warmup, len(forward))
    yield from ((ahead, None) for ahead in forward[:warmup])
    yield from zip(forward[warmup:], backward, strict=False)
    yield from ((None, back) for back in backward[len(forward) - warmup :])


def _most_alive(pp, vpp, m, stage, *, layers, before, routed):
    """Play TransformerLayerSchedulePlan.run node by node and add up what is saved."""
    alive = most = 0.0
    for ahead, back in _passes(pp, vpp, m, stage):
        for _ in range(layers):
            alive += before if ahead else 0.0  # attention, norms and router, forward
            most = max(most, alive)  # experts, backward, hold what they saved until they end
            alive -= routed if back else 0.0
            alive += routed if ahead else 0.0
            most = max(most, alive)  # attention, backward
            alive -= before if back else 0.0
    assert alive == 0.0
    return most


@pytest.mark.parametrize(("pp", "vpp", "m"), SHAPES)
def test_what_two_passes_save_is_what_a_played_schedule_holds(pp, vpp, m):
    layers = 2
    scene = _scene(EXCHANGE, num_layers=layers * pp * vpp)
    for stage in stage_memory(scene, _plan(pp, vpp, m)):
        lines = {code: stage.line(Event.BACKWARD, code) for code in SAVED}
        term = next(t for t in dict(stage.terms)[Event.BACKWARD] if t.code == "experts")
        blocks = layers * dict(term.numbers)["in_flight"]
        routed = lines["experts"] / blocks
        before = sum(lines.values()) / blocks - routed
        most = _most_alive(pp, vpp, m, stage.stage, layers=layers, before=before, routed=routed)
        beside = stage.line(Event.BACKWARD, "pass_beside")
        assert sum(lines.values()) + beside == pytest.approx(most)
        if beside:
            assert beside == before
            through = sum(stage.line(Event.BACKWARD_END, code) for code in SAVED)
            assert through == sum(lines.values())
            logits = stage.line(Event.BACKWARD_END, "logits")
            assert (logits > 0) == (stage.stage == pp - 1)


@pytest.mark.parametrize("variant", [GRAPHS, "megatron+graph-layer"])
def test_a_pool_of_graphs_stays_whole_from_event_to_event(variant):
    """What the graphs hold is the same at every event, whatever else is alive."""
    eager, graphed = _scene("megatron", num_layers=8), _scene(variant, num_layers=8)
    chosen = _plan(2, 2, 4)
    whole = variant.endswith("layer")
    pinned = SAVED if whole else SAVED[:-1]
    for before, after in zip(
        stage_memory(eager, chosen), stage_memory(graphed, chosen), strict=True
    ):
        pool = {event: after.line(event, "graph_pool") for event in after.totals}
        saved = sum(before.line(Event.BACKWARD, code) for code in pinned)
        assert pool[Event.LOADING] == 0
        assert pool[Event.REDUCTION] == pool[Event.OPTIMIZER]
        at_end = sum(before.line(Event.BACKWARD_END, code) for code in pinned)
        assert pool[Event.BACKWARD_END] + at_end == pool[Event.OPTIMIZER]
        if before.stage == 1:
            assert pool[Event.LOSS_BACKWARD] + saved == pool[Event.OPTIMIZER]
        working = before.line(Event.BACKWARD, "working")
        if whole:
            # the working set of the graphs is that of the layer
            assert pool[Event.BACKWARD] == 0
            assert pool[Event.OPTIMIZER] == saved + working
        else:
            assert 0 < pool[Event.BACKWARD] <= pool[Event.OPTIMIZER] - saved


def test_graphs_of_attention_keep_a_mask_for_each_layer_in_flight():
    """TransformerLayer.get_layer_static_inputs: a truth value for each pair of tokens."""
    scene = _scene("megatron+graph-attention", num_layers=8)
    longer = replace(scene, job=replace(scene.job, seq_len=4096, global_batch=128))
    chosen, half = _plan(1, 1, 4), _plan(1, 1, 4, cp=2)
    masks = []
    for given, where in ((scene, chosen), (longer, chosen), (longer, half)):
        (stage,) = stage_memory(given, where)
        (eager,) = stage_memory(replace(given, variant="megatron"), where)
        saved = sum(eager.line(Event.BACKWARD, code) for code in SAVED[:3])
        inner = stage.line(Event.OPTIMIZER, "graph_pool") - saved
        masks.append(inner)
    # without the mask all of it is in proportion to the tokens of a device
    mask = 8 * 2048 * 2048
    linear = masks[0] - mask
    assert masks[1] == 2 * linear + 4 * mask
    assert masks[2] == linear + 2 * mask


def test_a_graph_of_the_router_hands_over_permuted_tokens():
    """One copy for each expert, unless the exchange itself makes them."""
    scene = _scene("megatron+graph-router", num_layers=8)
    flex = replace(scene, variant="megatron+flex+graph-router")
    chosen = _plan(1, 1, 4)
    (every,), (once,) = stage_memory(scene, chosen), stage_memory(flex, chosen)
    more = every.line(Event.OPTIMIZER, "graph_pool") - once.line(Event.OPTIMIZER, "graph_pool")
    assert more == 8 * 2 * 1024 * 2 * 2048


@pytest.mark.parametrize(("precision", "width"), [("bf16", 24), ("fp8", 16), ("nvfp4", 24)])
def test_user_buffers_stand_beside_the_allocator(precision, width):
    """initialize_ub of Transformer Engine: 12 buffers, 8 of them narrow where gathers are."""
    scene = scenario("llama-3.1-70b", cluster="64xB200", seq_len=8192, global_batch=128)
    scene = replace(scene, job=replace(scene.job, precision=precision))
    chosen = plan(64, tp=4, sp=True, pp=4, cp=2, micro_batch=2)
    (one, *_), (other, *_) = (
        stage_memory(replace(scene, variant=variant), chosen)
        for variant in ("megatron", "megatron+tp-overlap")
    )
    for event in one.totals:
        assert other.line(event, "user_buffers") == width * 8192 * 8192
        assert other.totals[event] - one.totals[event] == width * 8192 * 8192
    both = peak_memory(replace(scene, variant="megatron+tp-overlap"), PlanGrid.of([chosen]))
    alone = peak_memory(scene, PlanGrid.of([chosen]))
    assert both.allocated_bytes[0] == alone.allocated_bytes[0]
    assert both.required_bytes[0] - alone.required_bytes[0] == width * 8192 * 8192


def test_user_buffers_need_a_group_that_shares_memory():
    scene = scenario("llama-3.1-70b", cluster="64xH100", seq_len=8192, global_batch=128)
    scene = replace(scene, variant="nemo")
    for given, there in (
        ({"tp": 8, "sp": True}, True),
        ({"tp": 16, "sp": True}, False),
        ({"tp": 8}, False),
        ({"tp": 1}, False),
    ):
        (stage,) = stage_memory(scene, plan(64, **given))
        assert (stage.line(Event.BACKWARD, "user_buffers") > 0) == there


def test_the_graphs_of_deepseek_v3_hold_about_what_nvidia_says():
    """About 7 GB (arXiv 2603.07685, section 4.3.6), with what the driver allocates.

    The layout is that of Megatron-Bridge's recipe for 256 GB200.
    """
    scene, chosen = deepseek_v3_on_gb200()
    graphs = replace(scene, variant="megatron-bridge+graph-attention+graph-router")
    stages = stage_memory(graphs, chosen)
    held = max(stage.line(Event.BACKWARD, "graph_pool") for stage in stages)
    assert 5.5e9 < held < 7e9


@pytest.mark.parametrize("variant", [EXCHANGE, GRAPHS, f"{EXCHANGE}+graph-attention"])
def test_grids_screens_and_breakdowns_agree(variant):
    model = mixture(num_layers=8)
    scene = scenario(model, cluster="16xA100-80GB", seq_len=8192, global_batch=64)
    scene = replace(
        scene, variant=variant, frameworks=("megatron", "torchtitan"), axes={"cp": (1, 2)}
    )
    rng = np.random.default_rng(0)
    for plans in enumerate_plans(scene).crossed:
        flat = plans.flat()
        alone = peak_memory(scene, flat)
        rows, modes = np.nonzero(plans.legal)
        assert np.array_equal(screen_memory(scene, plans).verdict[rows, modes], alone.verdict)
        for index in rng.choice(len(flat), size=min(25, len(flat)), replace=False):
            own = PlanGrid.of([flat.plan(int(index))])
            single = peak_memory(scene, own)
            for field in fields(single):
                if field.name != "usable_bytes":
                    value = getattr(single, field.name)[0]
                    assert value == getattr(alone, field.name)[index], field.name
            stages = stage_memory(scene, flat.plan(int(index)))
            assert max(stage.peak_bytes for stage in stages) == alone.peak_bytes[index]


def test_nothing_changes_without_the_settings():
    record = load_framework_memory("megatron")
    assert not any(getattr(record, name) for name in ("runs_beside_backward", "graphs_layers"))
    chosen = _plan(2, 2, 4, recompute=Recompute.NORM)
    for stage in stage_memory(_scene("megatron", num_layers=8), chosen):
        codes = {term.code for _, terms in stage.terms for term in terms}
        assert not codes & {"pass_beside", "graph_pool"}
