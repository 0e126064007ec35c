"""Groups of ranks: every rank in one group of each family, and tiers counted as by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.space.complete import complete_plan
from meshplan.space.placement import (
    DENSE_AXES,
    EXPERT_AXES,
    axis_group,
    coordinates,
    members_per_tier,
    ranks_of_group,
    tier_groups_spanned,
)
from meshplan.space.plan import Framework, Plan, PlanGrid
from space_scenarios import cluster, dense_model, scenario

ALL_AXES = (*DENSE_AXES, *EXPERT_AXES[:-1], "dp", "dp_cp", "dp_shard_cp", "edp_shard")


def _divisor(draw, number: int) -> int:
    return draw(st.sampled_from([d for d in range(1, number + 1) if number % d == 0]))


@st.composite
def plans(draw) -> Plan:
    """Any degrees that multiply to the number of GPUs, odd ones too."""
    num_gpus = draw(st.sampled_from([1, 6, 7, 8, 12, 16, 24, 36, 48, 64, 72, 96, 100]))
    tp = _divisor(draw, num_gpus)
    pp = _divisor(draw, num_gpus // tp)
    cp = _divisor(draw, num_gpus // (tp * pp))
    dp = num_gpus // (tp * pp * cp)
    etp = _divisor(draw, num_gpus // pp)
    ep = _divisor(draw, num_gpus // (pp * etp))
    both = [d for d in range(1, dp + 1) if dp % d == 0 and (num_gpus // (pp * etp * ep)) % d == 0]
    there = scenario(dense_model(num_layers=pp), num_gpus=num_gpus)
    return complete_plan(
        there,
        framework=draw(st.sampled_from(Framework)),
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp,
        dp_replicate=draw(st.sampled_from(both)),
    )


def _size(plan: Plan) -> int:
    return plan.tp * plan.pp * plan.cp * plan.dp


@settings(max_examples=60, deadline=None)
@given(plans())
def test_every_rank_is_in_one_group_of_each_family(plan):
    for axis in ALL_AXES:
        groups = {ranks_of_group(plan, axis, rank) for rank in range(_size(plan))}
        assert sorted(rank for group in groups for rank in group) == list(range(_size(plan)))
        assert len({len(group) for group in groups}) == 1


@settings(max_examples=60, deadline=None)
@given(plans())
def test_a_group_shares_all_other_coordinates(plan):
    for grid in (DENSE_AXES, EXPERT_AXES):
        for rank in range(_size(plan)):
            own = coordinates(plan, rank)
            for axis in grid:
                mates = [coordinates(plan, mate) for mate in ranks_of_group(plan, axis, rank)]
                assert [mate[axis] for mate in mates] == list(range(len(mates)))
                for other in grid:
                    assert other == axis or {mate[other] for mate in mates} == {own[other]}


@settings(max_examples=60, deadline=None)
@given(plans())
def test_coordinates_name_a_rank_once(plan):
    for grid in (DENSE_AXES, EXPERT_AXES):
        seen = {
            tuple(coordinates(plan, rank)[axis] for axis in grid) for rank in range(_size(plan))
        }
        assert len(seen) == _size(plan)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_replicas_hold_the_same_parameters(plan):
    """The groups that average gradients are the ranks that agree in tp and pp."""
    for rank in range(_size(plan)):
        own = coordinates(plan, rank)
        same = [
            other
            for other in range(_size(plan))
            if (coordinates(plan, other)["tp"], coordinates(plan, other)["pp"])
            == (own["tp"], own["pp"])
        ]
        assert list(ranks_of_group(plan, "dp_cp", rank)) == same
        if rank > 8:
            break


def _most_touched(num_gpus: int, tier: int, size: int, stride: int) -> int:
    """Most tier groups that one group touches."""
    firsts = [rank for rank in range(num_gpus) if rank // stride % size == 0]
    return max(len({(rank + k * stride) // tier for k in range(size)}) for rank in firsts)


@settings(max_examples=150, deadline=None)
@given(
    num_gpus=st.integers(1, 160),
    gpus_per_node=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 16, 72]),
    leaf=st.sampled_from([8, 12, 18, 32, 36, 64]),
)
def test_tiers_are_counted_as_by_hand(num_gpus, gpus_per_node, leaf):
    machine = cluster(num_gpus, gpus_per_node=gpus_per_node, sizes=(leaf,))
    divisors = [d for d in range(1, num_gpus + 1) if num_gpus % d == 0]
    pairs = [(n, s) for n in divisors for s in divisors if num_gpus % (n * s) == 0]
    size, stride = (np.array(column) for column in zip(*pairs, strict=True))
    spanned = tier_groups_spanned(machine, size=size, stride=stride)
    members = members_per_tier(machine, size, stride)
    for index, (n, s) in enumerate(pairs):
        for row, tier in enumerate(machine.tiers):
            most = _most_touched(num_gpus, tier.num_gpus, n, s)
            assert spanned[row, index] == most
            assert members[row, index] == -(-n // most)
    assert (members[-1] == size).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(plans(), min_size=1, max_size=6))
def test_a_grid_gives_what_its_plans_give(many):
    grid = PlanGrid.of(many)
    for axis in ALL_AXES:
        group = axis_group(grid, axis)
        for index, plan in enumerate(many):
            alone = axis_group(PlanGrid.of([plan]), axis)
            assert (group.size[index], group.stride[index]) == (alone.size[0], alone.stride[0])
