"""What a framework does by itself when a degree is not given."""

import pytest

from meshplan.space.complete import complete_plan
from meshplan.space.plan import CpComm, Framework, Recompute, Schedule
from meshplan.space.rules import check_plan
from space_scenarios import dense_model, moe_model, scenario

M, T, D, A, N = Framework
DENSE = scenario(dense_model(num_layers=16), num_gpus=64, global_batch=256)
EXPERTS = scenario(moe_model(num_layers=16, num_experts=64), num_gpus=64, global_batch=256)


def test_the_rest_is_data_parallel():
    plan = complete_plan(DENSE, framework=M, tp=4, pp=2, micro_batch=2)
    assert (plan.dp, plan.dp_shard, plan.dp_replicate) == (8, 8, 1)
    assert plan.num_micro_batches == 256 // (8 * 2)
    assert (plan.sp, plan.zero, plan.etp, plan.ep) == (True, 1, 1, 1)
    assert (plan.schedule, plan.vpp, plan.recompute) == (Schedule.ONE_F_ONE_B, 1, Recompute.NONE)


@pytest.mark.parametrize(
    ("framework", "flat", "pipeline"), [(M, 1, 1), (T, 3, 2), (D, 3, 1), (N, 1, 1)]
)
def test_sharding_by_habit(framework, flat, pipeline):
    """torchtitan does not reshard in a pipeline, DeepSpeed's takes ZeRO-1 at most."""
    assert complete_plan(DENSE, framework=framework).zero == flat
    assert complete_plan(DENSE, framework=framework, pp=2).zero == pipeline


def test_nothing_to_shard_over_one_replica():
    plan = complete_plan(DENSE, framework=M, tp=8, pp=8)
    assert (plan.dp, plan.zero) == (1, 0)


@pytest.mark.parametrize(
    ("framework", "traffic"),
    [
        (M, CpComm.P2P),
        (T, CpComm.ALL_GATHER),
        (D, CpComm.ALL_TO_ALL),
        (A, CpComm.ALL_GATHER),
        (N, CpComm.P2P),
    ],
)
def test_context_parallel_traffic_by_framework(framework, traffic):
    assert complete_plan(DENSE, framework=framework, cp=2).cp_comm == traffic
    assert complete_plan(DENSE, framework=framework).cp_comm == CpComm.P2P


def test_experts_are_split_as_the_rest_without_ep_and_whole_with_it():
    assert complete_plan(EXPERTS, framework=M, tp=4).etp == 4
    assert complete_plan(EXPERTS, framework=M, tp=4, ep=8).etp == 1
    assert complete_plan(EXPERTS, framework=M, tp=4, ep=8, etp=2).etp == 2
    assert complete_plan(DENSE, framework=M, tp=4).etp == 1


@pytest.mark.parametrize("schedule", Schedule)
def test_schedules_bring_their_chunks(schedule):
    plan = complete_plan(DENSE, framework=T, pp=2, schedule=schedule)
    assert check_plan(DENSE, plan) == ()


def test_replicas_and_shards_follow_from_one_another():
    assert complete_plan(DENSE, framework=T, dp_replicate=4).dp_shard == 16
    assert complete_plan(DENSE, framework=T, dp_shard=8).dp_replicate == 8
    both = complete_plan(DENSE, framework=T, dp_shard=8, dp_replicate=4)
    assert both.dp == 32
    assert {v.code for v in check_plan(DENSE, both)} == {"degrees_multiply_to_gpus"}
