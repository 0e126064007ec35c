"""Megatron-LM's own argument parser, its checks, and the build of a layer on small jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import stand_ins

stand_ins.install("deep_ep")

import deep_ep
from megatron.training.arguments import (
    core_transformer_config_from_args,
    parse_args,
    validate_args,
)
from megatron_build import check_build, check_optimizer
from protocol import serve

# the dispatcher asks it for multiprocessors when a layer is made
deep_ep.Buffer.set_num_sms = staticmethod(lambda num_sms: None)
# no Transformer Engine and no apex here
LOCAL = [
    "--transformer-impl",
    "local",
    "--no-gradient-accumulation-fusion",
    "--no-persist-layer-norm",
    "--no-rope-fusion",
]


def check(case: Mapping[str, Any]) -> None:
    """Parse, validate, count micro-batches, and on small worlds make groups and a layer."""
    os.environ.update(WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"])
    sys.argv = ["pretrain_gpt.py", *case["argv"], *LOCAL]
    args = parse_args()
    args.rank = 1  # only rank 0 prints all arguments
    args = validate_args(args)
    check_optimizer(args)
    check_build(
        core_transformer_config_from_args(args),
        world=case["world"],
        data_parallel=args.data_parallel_size,
        micro_batch=args.micro_batch_size,
        global_batch=args.global_batch_size,
        optimizer_instances=args.num_distributed_optimizer_instances,
        seq_len=args.seq_length,
        pattern=args.hybrid_layer_pattern,
    )


if __name__ == "__main__":
    serve(check)
