"""What a job sets of the exchange of tokens and of CUDA graphs, in the time of a step."""

from dataclasses import replace

import numpy as np
import pytest

from meshplan.cost.compute import embedding_time, head_time, layer_time
from meshplan.cost.step import step_time
from meshplan.cost.tuning import Tuning
from meshplan.errors import UserError
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.profile import framework_profile
from meshplan.inputs.scenario import Scenario
from space_scenarios import enumerate_plans


def _mixture(variant: str, *, cluster: str = "8xB200", ep: int = 8, precision: str = "mxfp8"):
    """One step of Qwen3-30B-A3B under Megatron-Bridge and what the job sets."""
    scenario = Scenario(
        model=load_model("qwen3-30b-a3b"),
        cluster=parse_cluster(cluster),
        job=Job(seq_len=4096, global_batch=512, precision=precision),
        frameworks=("megatron",),
        variant=variant,
    )
    grid = enumerate_plans(scenario).grid
    mask = (grid.ep == ep) & (grid.tp == 1) & (grid.pp == 1) & (grid.cp == 1) & (grid.etp == 1)
    mask &= (grid.micro_batch == 1) & (grid.recompute == 0) & (grid.zero == 1)
    return step_time(scenario, grid.take(np.flatnonzero(mask)[:1]))


def test_graphs_take_the_host_off_the_path_of_small_micro_batches():
    """Qwen3-30B-A3B with one sequence on 8 B200: 28.2 s with a graph of the router alone [1]_, and
    14.5 s with graphs of whole layers and dropped tokens.

    References:
        .. [1] Megatron-Bridge docs/performance-summary.md, containers 25.11 and 25.09.
    """
    router = _mixture("megatron-bridge+alltoall+graph-router").step_time_s[0]
    layer = _mixture("megatron-bridge+alltoall+graph-layer").step_time_s[0]
    more = _mixture("megatron-bridge+alltoall+graph-attention+graph-router").step_time_s[0]
    assert router / layer == pytest.approx(28.2 / 14.5, rel=0.15)
    assert layer < more < router


def test_no_graph_of_a_block_launches_the_ends():
    """Megatron-LM's ``_layer_is_graphable``: layers of the decoder and of MTP blocks alone."""
    scenario = _dense("megatron")
    grid = enumerate_plans(scenario).grid.take(np.arange(1))
    eager = Tuning(launch_s=1e-5)
    graphs = replace(eager, graph_attention=True, graph_router=True)
    for ends in (embedding_time, head_time):
        without, within = (ends(scenario, grid, tuning=tuning) for tuning in (eager, graphs))
        assert without.host_forward_s[0] > 0
        assert within.host_forward_s[0] == without.host_forward_s[0]
    block = [
        layer_time(scenario, scenario.model.layers[0], grid, tuning=tuning).host_forward_s[0]
        for tuning in (eager, graphs)
    ]
    assert block[1] < block[0]


def test_tokens_that_travel_once_and_behind_computation():
    """An exchange over nodes takes longer for every copy, and hides behind another micro-batch."""
    at = {"cluster": "16xH100", "ep": 16, "precision": "fp8"}
    once = _mixture("megatron-bridge", **at).ep_comm_s[0]
    every = _mixture("megatron-bridge+alltoall", **at).ep_comm_s[0]
    hidden = _mixture("megatron-bridge+alltoall+overlapped-exchange", **at).ep_comm_s[0]
    # NCCL and HybridEP on 16 GPUs take 5774 and 1485 us with 4 of 8 groups (arXiv:2603.07685)
    assert 3.0 < every / once < 4.5
    assert 0.3 * every < hidden < 0.9 * every


def test_an_overlapped_exchange_changes_no_other_traffic():
    """Reductions of gradients run beside computation as before, in models without experts too."""
    for variant in ("megatron", "megatron-bridge"):
        grid = enumerate_plans(_dense(variant)).grid
        one, other = (
            step_time(scenario, grid)
            for scenario in (_dense(variant), _dense(f"{variant}+overlapped-exchange"))
        )
        assert (one.dp_comm_s > 0).any()
        assert (one.dp_comm_s == other.dp_comm_s).all()
        assert (one.step_time_s == other.step_time_s).all()


def _dense(variant: str) -> Scenario:
    return Scenario(
        model=load_model("llama-3.2-1b"),
        cluster=parse_cluster("16xH100"),
        job=Job(seq_len=4096, global_batch=64),
        frameworks=("megatron",),
        axes={"tp": (1,), "pp": (1,), "cp": (1,)},
        variant=variant,
    )


def test_unknown_settings_of_a_variant_are_refused():
    with pytest.raises(UserError) as caught:
        framework_profile("megatron", "megatron-bridge+graph")
    assert "+graph-layer" in str(caught.value.problems[0].allowed)


@pytest.mark.parametrize("setting", ["bf16-gradients", "graph-layer"])
def test_settings_of_another_framework_are_refused(setting):
    for framework in ("torchtitan", "megatron"):
        with pytest.raises(UserError) as caught:
            framework_profile(framework, f"torchtitan+{setting}")
        assert f"+{setting}" not in caught.value.problems[0].allowed
    # a plan of another framework than the variant's is judged without it
    assert framework_profile("torchtitan", f"megatron+{setting}").name == "torchtitan"
