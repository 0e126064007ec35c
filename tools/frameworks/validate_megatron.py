"""Megatron-LM's own argument parser, its checks, and the build of a layer on small jobs."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import textwrap
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import stand_ins

stand_ins.install()

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.num_microbatches_calculator import (
    get_num_microbatches,
    init_num_microbatches_calculator,
    unset_num_microbatches_calculator,
)
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.training.arguments import (
    core_transformer_config_from_args,
    parse_args,
    validate_args,
)
from protocol import serve
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.cuda.Stream = lambda *a, **k: None  # the shared experts would have one of their own

# no Transformer Engine and no apex here
LOCAL = [
    "--transformer-impl",
    "local",
    "--no-gradient-accumulation-fusion",
    "--no-persist-layer-norm",
    "--no-rope-fusion",
]


def _interleaving_checks() -> list[Any]:
    """What an interleaved pipeline checks at its first step, compiled alone."""
    function = schedules.forward_backward_pipelining_with_interleaving
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body
    first = next(
        i
        for i, node in enumerate(body)
        if "microbatch_group_size_per_vp_stage" in ast.unparse(node)
    )
    last = max(i for i, node in enumerate(body) if "dependency bubbles" in ast.unparse(node))
    return [compile(ast.Module(body[first : last + 1], []), "schedules.py", "exec")]


INTERLEAVING = _interleaving_checks()
# Groups of all ranks are made one by one, which takes too long on larger worlds.
LARGEST_BUILT = 64


def check(case: Mapping[str, Any]) -> None:
    """Parse, validate, count micro-batches, and on small worlds make groups and a layer."""
    os.environ.update(WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"])
    sys.argv = ["pretrain_gpt.py", *case["argv"], *LOCAL]
    args = parse_args()
    args.rank = 1  # only rank 0 prints all arguments
    args = validate_args(args)
    config = core_transformer_config_from_args(args)
    unset_num_microbatches_calculator()
    init_num_microbatches_calculator(
        args.rank,
        global_batch_size=args.global_batch_size,
        micro_batch_size=args.micro_batch_size,
        data_parallel_size=args.data_parallel_size,
    )
    _layers(config)
    _schedule(args)
    if case["world"] <= LARGEST_BUILT:
        _build(args, config)


def _layers(config: Any) -> None:
    """Layers that each stage builds: all of the model's, and every one once."""
    if config.pipeline_model_parallel_layout is not None:
        return  # the layout counts its layers itself when it is read
    vpp = config.virtual_pipeline_model_parallel_size or 1
    built = sum(
        get_num_layers_to_build(config, vp_stage=stage, pp_rank=rank)
        for rank in range(config.pipeline_model_parallel_size)
        for stage in range(vpp)
    )
    if built != config.num_layers:
        raise ValueError(f"{built} of {config.num_layers} layers are built")


def _schedule(args: Any) -> None:
    """The order of micro-batches, which an interleaved pipeline works out at its first step."""
    vpp = args.virtual_pipeline_model_parallel_size
    if not vpp or vpp == 1:
        return
    group = args.microbatch_group_size_per_vp_stage or args.pipeline_model_parallel_size
    names = {
        "num_microbatches": get_num_microbatches(),
        "pipeline_parallel_size": args.pipeline_model_parallel_size,
        "config": SimpleNamespace(microbatch_group_size_per_vp_stage=group),
    }
    for part in INTERLEAVING:
        exec(part, names)


def _build(args: Any, config: Any) -> None:
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=args.world_size)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        create_gloo_process_groups=False,
    )
    if args.context_parallel_size > 1 or args.multi_latent_attention:
        return  # attention of the local implementation has neither
    # the norm of the local implementation knows no sequence parallelism; its rule stands above
    config.sequence_parallel = False
    config.use_cpu_initialization, config.perform_initialization = True, False
    spec = get_gpt_layer_local_spec(
        num_experts=args.num_experts,
        moe_grouped_gemm=False,
        qk_layernorm=args.qk_layernorm,
        normalization=args.normalization,
    )
    with torch.device("meta"):
        spec.module(config=config, submodules=spec.submodules, layer_number=1, vp_stage=0)


if __name__ == "__main__":
    serve(check)
