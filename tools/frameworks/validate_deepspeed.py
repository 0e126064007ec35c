"""DeepSpeed's own config, its checks of expert parallelism and of Ulysses, and transformers'."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed.comm.comm as communication
import deepspeed.runtime.config as runtime_config
import torch.distributed as dist
from deepspeed.module_inject.auto_ep_config import validate_autoep_config
from deepspeed.runtime.config import DeepSpeedConfig
from protocol import serve
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig


def check(case: Mapping[str, Any]) -> None:
    """Read the JSON as a job of that size would."""
    world = case["world"]
    # the config asks for the world size; without a backend nothing is compiled for it
    for module in (communication, runtime_config.dist):
        module.get_rank = lambda *a, **k: 0
        module.get_world_size = lambda *a, **k: world
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    given = dict(case["config"])
    tp = given.get("tensor_parallel", {}).get("autotp_size", 1)
    sp = given.get("sequence_parallel_size", 1)
    if world % (tp * sp):
        raise ValueError(f"world {world} is no multiple of {tp} * {sp}")
    # the engine gives the config the data-parallel world size through a model-parallel unit
    config = DeepSpeedConfig(given, mpu=_Unit(world // tp, sp))
    zero = config.zero_config
    validate_autoep_config(
        config.expert_parallel_config,
        world_size=world,
        pp_size=1,
        tp_size=tp,
        sp_size=sp,
        zero_stage=config.zero_optimization_stage,
        zero_offload_optimizer=zero.offload_optimizer is not None,
        zero_offload_param=zero.offload_param is not None,
    )
    _ulysses(case, sp)
    _arguments(case)


def _arguments(case: Mapping[str, Any]) -> None:
    """What the arguments of transformers ask of the file that is written."""
    said = case["arguments"]
    arguments = SimpleNamespace(
        world_size=case["world"],
        per_device_train_batch_size=int(said["--per_device_train_batch_size"]),
        gradient_accumulation_steps=int(said["--gradient_accumulation_steps"]),
        bf16=said.get("--bf16") == "true",
        fp16=said.get("--fp16") == "true",
        # the defaults of TrainingArguments
        bf16_full_eval=False,
        fp16_full_eval=False,
        save_on_each_node=False,
        max_grad_norm=1.0,
        learning_rate=5e-5,
        weight_decay=0.0,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
    )
    config = HfTrainerDeepSpeedConfig(dict(case["written"]))
    config.trainer_config_process(arguments)
    if config.mismatches:
        raise ValueError("; ".join(config.mismatches))


class _Unit:
    """The part of a model-parallel unit that the config asks."""

    def __init__(self, world: int, sp: int) -> None:
        self.world, self.sp = world, sp

    def get_data_parallel_world_size(self) -> int:
        return self.world // self.sp

    def get_sequence_data_parallel_world_size(self) -> int:
        return self.world

    def get_sequence_parallel_world_size(self) -> int:
        return self.sp


def _ulysses(case: Mapping[str, Any], sp: int) -> None:
    """What UlyssesSPAttentionHF checks when it is built."""
    if sp == 1:
        return
    from deepspeed.runtime.sequence_parallel import ulysses_sp
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    ulysses_sp.register_all_to_all_group = lambda group: None

    heads, kv_heads, head_dim = case["heads"]
    saved = ulysses_sp.dist.get_world_size
    ulysses_sp.dist.get_world_size = lambda group=None: sp
    try:
        UlyssesSPAttentionHF(
            attn=lambda *a, **k: None,
            batch_size=1,
            attn_head_count=heads,
            attn_head_size=head_dim,
            kv_head_count=kv_heads,
            num_hidden_layers=1,
            process_group=None,
            seq_length_is_variable=True,
        )
    finally:
        ulysses_sp.dist.get_world_size = saved


if __name__ == "__main__":
    serve(check)
