"""Bytes on the wire against closed forms that were traced or counted on real runtimes.

Sources: FakeTensor traces of FSDP2, tensor, context and expert parallelism and of megatron-core
0.19.2, and byte counts of real gloo ranks, as written down in the project's facts (B2 and B4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_scenarios import dense, grid, mixture, plan, scenario
from meshplan.cost.communication import (
    End,
    block_communication,
    data_parallel,
    parameters_of,
    pipeline_send,
    tied_embedding_reduce,
)
from meshplan.cost.tuning import Tuning
from meshplan.inputs.model import Moe
from meshplan.space.plan import CpComm, Framework, Recompute, Schedule

MIB = 2**20


def test_torch_tensor_parallel_traffic_of_llama_70b() -> None:
    """Llama-3.1-70B, tp 8, seq 8192, no recompute.

    Traced: 322 all-gathers that give 128 MiB and 322 reduce-scatters that leave 16 MiB, which is
    4 of each per block and one of each at the embedding and the head.
    """
    case = scenario("llama-3.1-70b", cluster="1024xH100", global_batch=128)
    plans = grid(plan(1024, tp=8, sp=True, zero=3, framework=Framework.TORCHTITAN))
    block = block_communication(case, case.model.layers[0], plans)
    one = 128 * MIB * 7 / 8
    assert block.tp_forward.num_bytes[0] == 4 * one
    assert block.tp_backward.num_bytes[0] == 4 * one


def test_megatron_gathers_the_input_of_split_products_once_more() -> None:
    """megatron-core 0.19.2: 4 pairs per block, and 1 re-gather in each split input."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(tp=8, sp=True))
    block = block_communication(case, case.model.layers[0], plans)
    one = 2 * 8192 * 4096 * 7 / 8
    total = block.tp_forward.num_bytes + block.tp_backward.num_bytes
    assert total[0] == (2 * 4 + 2) * one


def test_frozen_weights_need_no_second_gather() -> None:
    """Transformer Engine, pytorch/module/layernorm_linear.py: only with ``requires_wgrad``."""
    case = scenario("llama-3.1-8b")
    case = replace(case, job=replace(case.job, task="lora"))
    plans = grid(plan(tp=8, sp=True))
    block = block_communication(case, case.model.layers[0], plans)
    assert block.tp_backward.num_bytes[0] == 4 * 2 * 8192 * 4096 * 7 / 8
    assert block.tp_beside_input.num_bytes[0] == 0


def test_a_stack_that_keeps_what_it_gathered_does_not_gather_again() -> None:
    """Aleph-Alpha/scaling, core/nn/norm/layernorm.py: autograd keeps the gathered output."""
    case = replace(scenario("llama-3.1-8b"), variant="aleph-alpha")
    plans = grid(plan(tp=8, sp=True))
    block = block_communication(case, case.model.layers[0], plans)
    assert block.tp_backward.num_bytes[0] == 4 * 2 * 8192 * 4096 * 7 / 8


def test_without_sequence_parallelism_outputs_are_all_reduced() -> None:
    """Two all-reduces forward and two backward; full recompute repeats the forward ones."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(tp=8), plan(tp=8, recompute=Recompute.FULL))
    block = block_communication(case, case.model.layers[0], plans)
    one = 2 * 2 * 8192 * 4096 * 7 / 8
    assert list(block.tp_forward.num_bytes) == [2 * one] * 2
    assert list(block.tp_backward.num_bytes) == [2 * one] * 2
    assert list(block.tp_recompute.num_bytes) == [0.0, 2 * one]


def test_fsdp_gathers_and_reduces_llama_70b() -> None:
    """tp 8, 128 shards: all-gathers give 33149 MiB, reduce-scatters leave 262.9 MiB in fp32."""
    case = scenario("llama-3.1-70b", cluster="1024xH100", global_batch=128)
    plans = grid(plan(1024, tp=8, sp=True, zero=3, num_micro_batches=1))
    block = data_parallel(case, case.model.layers[0], plans)
    root = [data_parallel(case, end, plans) for end in End]
    assert block.gathers_forward[0] == block.gathers_backward[0] == 1
    share = 127 / 128
    gathered = (
        2 * 80 * block.gather.num_bytes[0] + sum(p.gather.num_bytes[0] for p in root)
    ) / share
    # the padding of the vocabulary and the norms make up the difference
    assert gathered / MIB == pytest.approx(33149, rel=2e-3)
    left = (80 * block.reduce.num_bytes[0] + sum(p.reduce.num_bytes[0] for p in root)) / share / 128
    assert left / MIB == pytest.approx(262.9, rel=2e-3)


def test_ddp_all_reduces_every_gradient_once() -> None:
    """Counted on gloo: ``n 2 (n - 1) / n P`` bytes over all ranks, here with fp32 gradients."""
    case = scenario(dense(), cluster="8xH100")
    plans = grid(plan(8))
    layer = case.model.layers[0]
    held, _ = parameters_of(case, layer, plans)
    assert held[0] == 12 * 1024**2 + 2 * 1024
    sent = data_parallel(case, layer, plans)
    assert sent.reduce.num_bytes[0] == 2 * 4 * held[0] * 7 / 8
    assert sent.gather.num_bytes[0] == 0
    assert sent.reduces[0] == 1


def test_a_stack_may_all_reduce_gradients_that_a_sharded_optimizer_updates() -> None:
    """Aleph-Alpha/scaling, core/optimizer/optimizer.py: ``allreduce_gradients`` with ZeRO too."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(zero=0), plan(zero=1))
    layer = case.model.layers[0]
    usual, whole = (
        data_parallel(case, layer, plans, tuning=Tuning(reduces_whole=one)).reduce.num_bytes
        for one in (False, True)
    )
    assert usual[0] == 2 * usual[1]
    assert list(whole) == [usual[0]] * 2


def test_pipeline_sends_of_1f1b() -> None:
    """Counted on gloo in fp32: ``2 (n - 1) m s h 4`` bytes; one send is ``s h`` elements."""
    case = scenario(dense(), cluster="8xH100", seq_len=4096)
    plans = grid(plan(8, pp=4), plan(8, pp=4, tp=2), plan(8, pp=4, tp=2, sp=True), plan(8))
    sent = pipeline_send(case, plans).num_bytes
    one = 2 * 4096 * 1024
    assert list(sent) == [one, one, one / 2, 0]


@pytest.mark.parametrize("ep", [4, 8])
def test_expert_parallel_all_to_all(ep: int) -> None:
    """megatron-core, 2 blocks: ``2 x 4 x T topk h 2`` bytes = 512 MiB pass the all-to-alls."""
    case = scenario(mixture(), cluster="8xH100", seq_len=16384)
    plans = grid(plan(8, ep=ep))
    layer = case.model.layers[0]
    block = block_communication(case, layer, plans)
    buffers = (block.ep_forward.num_bytes + block.ep_backward.num_bytes) * ep / (ep - 1)
    assert 2 * buffers[0] == 512 * MIB


def test_without_sequence_parallelism_every_device_dispatches_all_tokens() -> None:
    """Megatron-LM, model_parallel_config.py: allowed with a warning, tokens are then copies."""
    case = scenario(mixture(), cluster="16xH100", seq_len=16384)
    plans = grid(plan(16, tp=2, ep=8), plan(16, tp=2, sp=True, ep=8))
    copies, split = block_communication(case, case.model.layers[0], plans).ep_forward.num_bytes
    assert copies == 2 * split


def test_latent_experts_exchange_tokens_in_their_own_width() -> None:
    """Nemotron 3 Super: 22 of 512 experts, 1,024 of 4,096 channels, there and back."""
    case = scenario("nemotron-3-super-120b-a12b", cluster="8xH100", seq_len=4096)
    layer = next(block for block in case.model.layers if isinstance(block.ffn, Moe))
    block = block_communication(case, layer, grid(plan(8, ep=8)))
    assert block.ep_forward.num_bytes[0] == 2 * 4096 * 22 * 1024 * 2 * 7 / 8


def test_context_parallel_ring() -> None:
    """cp 4: 3 passes of keys and values forward, 7 backward (3 of them, 4 of their gradients)."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(cp=4))
    block = block_communication(case, case.model.layers[0], plans)
    own = 2 * 8192 / 4 * (2 * 8 * 128)
    assert block.cp_forward.num_bytes[0] == 3 * own
    assert block.cp_backward.num_bytes[0] == 7 * own


def test_context_parallel_all_gather_and_all_to_all() -> None:
    """All-gather: keys and values whole; all-to-all: queries, keys, values and output swapped."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(cp=4, cp_comm=CpComm.ALL_GATHER), plan(cp=4, cp_comm=CpComm.ALL_TO_ALL))
    block = block_communication(case, case.model.layers[0], plans)
    kv, heads = 2 * 8192 * 2048, 2 * 8192 / 4 * (2 * 4096 + 2048)
    assert list(block.cp_forward.num_bytes) == [kv * 3 / 4, heads * 3 / 4]


def test_sharded_gradients_are_reduced_every_micro_batch() -> None:
    """From ZeRO-2 on; the distributed optimizer of Megatron-LM reduces once per step."""
    case = scenario("llama-3.1-8b")
    plans = grid(
        plan(framework=Framework.DEEPSPEED, zero=2, num_micro_batches=4),
        plan(framework=Framework.DEEPSPEED, zero=1, num_micro_batches=4),
        plan(framework=Framework.MEGATRON, zero=1, num_micro_batches=4),
        plan(framework=Framework.MEGATRON, zero=2, num_micro_batches=4),
        plan(framework=Framework.NANOTRON, zero=0, pp=2, num_micro_batches=4),
        plan(framework=Framework.TORCHTITAN, zero=3, num_micro_batches=4),
        plan(framework=Framework.TORCHTITAN, zero=3, pp=2, num_micro_batches=4),
    )
    sent = data_parallel(case, case.model.layers[0], plans)
    assert list(sent.reduces) == [4, 1, 1, 4, 4, 4, 1]
    assert list(sent.gathers_forward) == [0, 0, 0, 0, 0, 4, 1]
    assert list(sent.gathers_backward) == [0, 0, 0, 0, 0, 4, 0]
    assert list(sent.gathers_update) == [1, 1, 1, 1, 0, 0, 0]


def test_accelerate_reduces_after_the_last_micro_batch() -> None:
    """``no_sync`` of all but the last; parameters that FSDP reshards are gathered each time.

    torchtitan has no such context: trainer.py train_step calls forward_backward_step as it is.
    """
    case = scenario("llama-3.1-8b")
    plans = grid(
        plan(framework=Framework.ACCELERATE, zero=3, num_micro_batches=4),
        plan(framework=Framework.ACCELERATE, zero=2, num_micro_batches=4),
        plan(framework=Framework.ACCELERATE, zero=0, num_micro_batches=4),
        plan(framework=Framework.TORCHTITAN, zero=2, num_micro_batches=4),
        plan(framework=Framework.TORCHTITAN, zero=2, pp=2, num_micro_batches=4),
    )
    sent = data_parallel(case, case.model.layers[0], plans)
    assert list(sent.reduces) == [1, 1, 1, 4, 1]
    assert list(sent.gathers_forward) == [4, 4, 0, 4, 0]
    assert list(sent.gathers_backward) == [4, 0, 0, 0, 0]
    assert list(sent.gathers_update) == [0, 0, 0, 0, 1]
    composer = replace(case, variant="llm-foundry")
    assert list(data_parallel(composer, case.model.layers[0], plans).reduces[:2]) == [4, 4]


def test_hsdp_reduces_shards_over_replicas() -> None:
    """HSDP: a reduce-scatter among 8 shards, then an all-reduce of the shard among 8 replicas."""
    case = scenario("llama-3.1-8b")
    plans = grid(plan(framework=Framework.TORCHTITAN, zero=3, dp_replicate=8))
    layer = case.model.layers[0]
    held, _ = parameters_of(case, layer, plans)
    sent = data_parallel(case, layer, plans).reduce.num_bytes[0]
    assert sent == pytest.approx(4 * held[0] * 7 / 8 + 2 * 4 * held[0] / 8 * 7 / 8, rel=1e-12)


def test_tied_embedding_is_summed_between_the_ends() -> None:
    """One all-reduce of two ranks per step: a device sends the gradients of its embedding once."""
    tied, untied = (scenario(dense(tied=flag), cluster="8xH100") for flag in (True, False))
    plans = grid(plan(8, pp=4, schedule=Schedule.ONE_F_ONE_B), plan(8))
    held, _ = parameters_of(tied, End.EMBEDDING, plans)
    assert list(tied_embedding_reduce(tied, plans).num_bytes) == [4 * held[0], 0]
    assert not np.any(tied_embedding_reduce(untied, plans).num_bytes)


def test_mtp_blocks_share_the_gradients_of_their_copy_of_the_embedding() -> None:
    """Megatron-LM's ``setup_embeddings_and_output_layer``: the copy is kept in step with the first.

    The copy and the joins are reduced and updated with the head.
    """
    case = scenario("deepseek-v3", cluster="64xH100", seq_len=4096)
    plans = grid(
        plan(pp=4, ep=8),
        plan(ep=8),
        plan(pp=4, ep=8, zero=2, framework=Framework.TORCHTITAN),
    )
    table, joins = 129_280 * 7168, 2 * 7168**2 + 3 * 7168
    assert list(tied_embedding_reduce(case, plans).num_bytes) == [4 * table, 0, 0]
    held, _ = parameters_of(case, End.HEAD, plans)
    alone = table + 7168 + joins
    assert list(held) == [alone + table, alone, alone]
