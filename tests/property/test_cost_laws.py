"""Laws of the cost model that hold for every plan."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_scenarios import dense, mixture, scenario
from meshplan.cost.communication import (
    BlockCommunication,
    block_communication,
    data_parallel,
    pipeline_send,
)
from meshplan.cost.compute import LayerTime, embedding_time, head_time, layer_time, with_host
from meshplan.cost.factoring import factor
from meshplan.cost.optimizer import optimizer_time
from meshplan.cost.surfaces import gemm_surface
from meshplan.cost.tuning import Tuning
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import CpComm, Framework, Plan, PlanGrid, Recompute, Schedule

# a busy machine generates slowly, which says nothing of the laws
CHECKS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CASES = {
    "dense": scenario("llama-3.1-8b"),
    "small": scenario(dense(), cluster="64xA100-80GB", seq_len=2048),
    "mixture": scenario(mixture(num_experts=16), cluster="64xB200", precision="fp8"),
}
RECOMPUTE = (
    Recompute.NONE,
    Recompute.CORE_ATTENTION,
    Recompute.NORM | Recompute.MLP,
    Recompute.MOE,
    Recompute.SELECTIVE_OP,
    Recompute.FULL,
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan of 64 GPUs, legal for a framework or not."""
    powers = (1, 2, 4, 8)
    tp, cp, pp = (draw(st.sampled_from(powers)) for _ in range(3))
    dp = max(64 // (tp * cp * pp), 1)
    replicate = draw(st.sampled_from([d for d in powers if dp % d == 0]))
    ranks = tp * cp * dp // replicate
    etp = draw(st.sampled_from([d for d in (1, 2) if ranks % d == 0]))
    ep = draw(st.sampled_from([d for d in powers if ranks % (d * etp) == 0]))
    return Plan(
        framework=draw(st.sampled_from(list(Framework))),
        tp=tp,
        sp=tp > 1 and draw(st.booleans()),
        pp=pp,
        vpp=1,
        schedule=Schedule.ONE_F_ONE_B,
        cp=cp,
        cp_comm=draw(st.sampled_from(list(CpComm))),
        ep=ep,
        etp=etp,
        dp=dp,
        dp_shard=dp // replicate,
        dp_replicate=replicate,
        zero=draw(st.sampled_from((0, 1, 2, 3))),
        micro_batch=draw(st.sampled_from((1, 2, 4))),
        num_micro_batches=draw(st.sampled_from((1, 4, 8))),
        recompute=draw(st.sampled_from(RECOMPUTE)),
    )


def all_arrays(case: Scenario, grid: PlanGrid, tuning: Tuning) -> dict[str, np.ndarray]:
    """Every array that the cost of a plan is built from."""
    layer = case.model.layers[0]
    arrays: dict[str, np.ndarray] = {}
    for name, time in (
        ("layer", layer_time(case, layer, grid, tuning=tuning)),
        ("embedding", embedding_time(case, grid, tuning=tuning)),
        ("head", head_time(case, grid, tuning=tuning)),
    ):
        for field in fields(LayerTime):
            arrays[f"{name}.{field.name}"] = getattr(time, field.name)
    block = block_communication(case, layer, grid, tuning=tuning)
    for field in fields(BlockCommunication):
        traffic = getattr(block, field.name)
        arrays[f"{field.name}.bytes"] = traffic.num_bytes
        arrays[f"{field.name}.seconds"] = traffic.seconds
    replicas = data_parallel(case, layer, grid, tuning=tuning)
    for name in ("reduce", "gather"):
        arrays[f"{name}.bytes"] = getattr(replicas, name).num_bytes
        arrays[f"{name}.seconds"] = getattr(replicas, name).seconds
    for name in ("reduces", "gathers_forward", "gathers_backward", "gathers_update"):
        arrays[name] = getattr(replicas, name)
    arrays["send"] = pipeline_send(case, grid, tuning=tuning).seconds
    arrays["optimizer"] = optimizer_time(case, layer, grid, tuning=tuning)
    return arrays


@pytest.mark.parametrize("name", list(CASES))
@CHECKS
@given(many=st.lists(plans(), min_size=2, max_size=9))
def test_many_plans_cost_what_each_costs_alone(name: str, many: list[Plan]) -> None:
    """Bit for bit, so that a grid and an estimate agree."""
    case = CASES[name]
    together = all_arrays(case, PlanGrid.of(many), Tuning())
    for index, one in enumerate(many):
        alone = all_arrays(case, PlanGrid.of([one]), Tuning())
        for key, values in together.items():
            assert values.shape == (len(many),), key
            assert values[index] == alone[key][0], key
            assert np.isfinite(values[index]) and values[index] >= 0, key


@pytest.mark.parametrize("name", list(CASES))
@CHECKS
@given(one=plans())
def test_faster_hardware_never_costs_more(name: str, one: Plan) -> None:
    case, grid = CASES[name], PlanGrid.of([one])
    slow = all_arrays(case, grid, Tuning())
    fast = all_arrays(
        case,
        grid,
        Tuning(gemm=1.3, attention=1.3, memory_bound=1.3, scale_up=1.3, scale_out=1.3, latency=0.5),
    )
    for key, values in slow.items():
        if key.endswith("bytes") or "gathers" in key or key == "reduces":
            assert fast[key][0] == values[0], key
        else:
            assert fast[key][0] <= values[0] * (1 + 1e-12), key


@pytest.mark.parametrize("name", list(CASES))
@CHECKS
@given(one=plans())
def test_recompute_repeats_part_of_the_forward_pass(name: str, one: Plan) -> None:
    case = CASES[name]
    layer = case.model.layers[0]
    # torch's checkpoint leaves out the last product of a block and knows no modules
    native = PlanGrid.of([one]).is_torch_native[0]
    known = (Recompute.NONE, Recompute.SELECTIVE_OP, Recompute.FULL) if native else RECOMPUTE
    modes = PlanGrid.of([replace(one, recompute=mode) for mode in known])
    time = layer_time(case, layer, modes)
    assert time.recompute_s[0] == 0
    assert np.all(time.recompute_s <= time.forward_s * (1 + 1e-12))
    assert time.recompute_s[-1] == time.recompute_s.max()
    assert len(set(time.forward_s.tolist())) == 1


@CHECKS
@given(one=plans())
def test_splitting_a_block_shrinks_its_products(one: Plan) -> None:
    """Twice the tensor parallelism costs more than half and not more than the whole."""
    case = CASES["dense"]
    layer = case.model.layers[0]
    base = replace(one, tp=2, sp=True, cp=1, pp=1, ep=1, etp=1, dp=32, dp_shard=32, dp_replicate=1)
    pair = PlanGrid.of([base, replace(base, tp=4, dp=16, dp_shard=16)])
    seconds = layer_time(case, layer, pair).forward_s
    assert 0.49 * seconds[0] < seconds[1] < seconds[0]


def test_the_host_sets_the_pace_of_small_work() -> None:
    """Computation and traffic of a pass take at least as long as its launches, and no longer."""
    case = CASES["small"]
    grid = PlanGrid.of([replace(_plain(), tp=8, dp=8, dp_shard=8)])
    idle = layer_time(case, case.model.layers[0], grid, tuning=Tuning(launch_s=20e-6))
    none = np.zeros(1)
    waiting = with_host(idle, forward_s=none, backward_s=none, recompute_s=none)
    assert waiting.forward_s[0] > idle.forward_s[0]
    assert waiting.forward_s[0] == pytest.approx(idle.host_forward_s[0])
    assert waiting.backward_s[0] == pytest.approx(idle.host_backward_s[0])
    traffic = np.ones(1)
    busy = with_host(idle, forward_s=traffic, backward_s=traffic, recompute_s=traffic)
    assert busy.forward_s[0] == idle.forward_s[0]
    large = CASES["dense"]
    block = large.model.layers[0]
    slow = layer_time(large, block, PlanGrid.of([_plain()]), tuning=Tuning(launch_s=5e-6))
    same = with_host(slow, forward_s=none, backward_s=none, recompute_s=none)
    assert same.forward_s[0] == slow.forward_s[0]


def _plain() -> Plan:
    return Plan(
        framework=Framework.MEGATRON,
        tp=1,
        sp=False,
        pp=1,
        vpp=1,
        schedule=Schedule.ONE_F_ONE_B,
        cp=1,
        cp_comm=CpComm.P2P,
        ep=1,
        etp=1,
        dp=64,
        dp_shard=64,
        dp_replicate=1,
        zero=0,
        micro_batch=1,
        num_micro_batches=1,
        recompute=Recompute.NONE,
    )


@CHECKS
@given(many=st.lists(plans(), min_size=1, max_size=40))
def test_factoring_finds_every_plan_again(many: list[Plan]) -> None:
    grid = PlanGrid.of(many)
    names = ("tp", "cp", "micro_batch", "recompute", "framework")
    factored = factor(grid, names, few=1)
    for name in names:
        found = factored.expand(getattr(factored.grid, name).astype(np.float64))
        assert np.array_equal(found, getattr(grid, name))
    distinct = {tuple(getattr(one, name) for name in names) for one in many}
    assert len(factored.grid) == len(distinct)


@CHECKS
@given(many=st.lists(plans(), min_size=1, max_size=40))
def test_plans_of_few_rows_are_factored_as_they_are_one_by_one(many: list[Plan]) -> None:
    rows, modes = PlanGrid.of(many), [0, int(Recompute.FULL), int(Recompute.NORM)]
    row = np.repeat(np.arange(len(rows)), len(modes))[1:]
    columns = {"recompute": np.tile(modes, len(rows))[1:]}
    made = PlanGrid.with_rows(rows, row, columns)
    plain = replace(rows.take(row), **columns)
    assert list(made) == list(plain)
    for names in (("tp", "micro_batch"), ("recompute",), ("pp", "recompute", "zero")):
        ours, theirs = factor(made, names, few=1), factor(plain, names, few=1)
        assert len(ours.grid) == len(theirs.grid)
        for name in names:
            found = ours.expand(getattr(ours.grid, name).astype(np.float64))
            assert np.array_equal(found, getattr(plain, name))
    assert made.shared
    assert not plain.shared
    assert not replace(made, tp=plain.tp).shared
    twice = PlanGrid.concatenate([made, made])
    assert len(factor(twice, ("tp", "recompute"), few=1).grid) == len(
        factor(plain, ("tp", "recompute"), few=1).grid
    )


def test_a_large_grid_asks_each_surface_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 plans with 12 distinct shapes: a surface sees the 3 products of 12, not 100,000."""
    case = CASES["dense"]
    num = 100_000
    rng = np.random.default_rng(0)
    one = PlanGrid.of([_plain()]).take(np.zeros(num, dtype=np.int64))
    tp = rng.choice(np.array([1, 2, 4, 8]), num)
    grid = replace(
        one,
        tp=tp,
        dp=64 // tp,
        dp_shard=64 // tp,
        micro_batch=rng.choice(np.array([1, 2, 4]), num),
        recompute=rng.choice(np.array([0, 256]), num),
        num_micro_batches=rng.integers(1, 100, num),
    )
    surface = type(gemm_surface(case.cluster.device, "bf16"))
    seen: list[int] = []
    original = surface.seconds

    def counted(self: object, **shape: np.ndarray) -> np.ndarray:
        seen.append(int(np.broadcast(*map(np.asarray, shape.values())).size))
        return original(self, **shape)  # type: ignore[arg-type]

    monkeypatch.setattr(surface, "seconds", counted)
    layer_time(case, case.model.layers[0], grid)
    assert seen and max(seen) <= 3 * 12
