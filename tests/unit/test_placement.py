"""Rank groups as the frameworks document them."""

import numpy as np
import pytest

from meshplan.space.complete import complete_plan
from meshplan.space.placement import AxisName, members_per_tier, ranks_of_group
from meshplan.space.plan import Framework, Plan
from space_scenarios import cluster, dense_model, moe_model, scenario


def plan(num_gpus: int, framework: Framework = Framework.MEGATRON, **given: int):
    model = moe_model() if given.get("ep", 1) > 1 else dense_model(num_layers=8)
    return complete_plan(scenario(model, num_gpus=num_gpus), framework=framework, **given)


def groups_of(plan: Plan, axis: AxisName) -> list[tuple[int, ...]]:
    """All groups of an axis, in the order of their first ranks."""
    ranks = range(plan.tp * plan.cp * plan.dp * plan.pp)
    return sorted({ranks_of_group(plan, axis, rank) for rank in ranks})


def test_megatron_documented_groups():
    """The example of initialize_model_parallel: 16 GPUs, tp 2, pp 4."""
    tp2pp4 = plan(16, tp=2, pp=4)
    assert groups_of(tp2pp4, "tp") == [(r, r + 1) for r in range(0, 16, 2)]
    assert groups_of(tp2pp4, "pp") == [(r, r + 4, r + 8, r + 12) for r in range(4)]
    assert groups_of(tp2pp4, "dp")[:4] == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_deepspeed_documented_expert_groups():
    """_get_expert_parallel_ranks: 16 ranks, model degree 1, expert degree 4."""
    ep4 = plan(16, Framework.DEEPSPEED, ep=4)
    assert groups_of(ep4, "ep") == [tuple(range(r, r + 4)) for r in range(0, 16, 4)]
    assert groups_of(ep4, "edp") == [(r, r + 4, r + 8, r + 12) for r in range(4)]


def test_torchtitan_mesh_puts_replicas_outside_shards():
    hsdp = plan(16, Framework.TORCHTITAN, tp=2, dp_replicate=2)
    assert groups_of(hsdp, "dp_shard") == [
        (0, 2, 4, 6),
        (1, 3, 5, 7),
        (8, 10, 12, 14),
        (9, 11, 13, 15),
    ]
    assert groups_of(hsdp, "dp_replicate")[0] == (0, 8)


def test_experts_fold_over_the_dense_grid():
    """etp 1, ep 8 over tp 4 * cp 2: an expert group spans tensor-parallel ranks."""
    folded = plan(16, tp=4, cp=2, ep=8, etp=1)
    assert groups_of(folded, "ep") == [tuple(range(8)), tuple(range(8, 16))]
    assert groups_of(folded, "edp")[0] == (0, 8)


@pytest.mark.parametrize(
    ("size", "stride", "in_node"),
    [
        (8, 1, 8),  # tp in a node
        (16, 1, 8),  # tp over two nodes
        (4, 8, 1),  # dp with tp 8: each GPU of a node in a group of its own
        (8, 4, 2),  # dp with tp 4
        (2, 16, 1),  # pp
        (2, 1, 2),
    ],
)
def test_members_in_nodes_of_eight(size, stride, in_node):
    machine = cluster(32)
    pair = (np.array([size]), np.array([stride]))
    assert members_per_tier(machine, *pair)[0, 0] == in_node


def test_groups_of_six_straddle_nodes_of_eight():
    """Ranks 6 to 11 lie on two nodes: 2 + 4, which counts as 3 and 3."""
    machine = cluster(24)
    pair = (np.array([6]), np.array([1]))
    assert members_per_tier(machine, *pair).tolist() == [[3], [6]]


def test_part_filled_node():
    machine = cluster(12)
    assert [tier.num_gpus for tier in machine.tiers] == [8, 12]
    assert members_per_tier(machine, np.array([12, 4]), np.array([1, 1])).tolist() == [
        [6, 4],
        [12, 4],
    ]
