"""Accelerate's own config loader, launch checks, ParallelismConfig and FSDP plugin."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DistributedType
from accelerate.utils.dataclasses import AORecipeKwargs, FP8BackendType
from accelerate.utils.launch import setup_fp8_env
from protocol import serve


def check(case: Mapping[str, Any]) -> None:
    """Load the YAML and follow its parallelism as far as the prepared accelerator."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        file.write(case["yaml"])
    try:
        config = load_config_from_file(file.name)
        parser = launch_command_parser()
        arguments = parser.parse_args(["--config_file", file.name, "train.py"])
        arguments, *_ = _validate_launch_command(arguments)
    finally:
        os.unlink(file.name)
    assert config.num_processes == case["world"] == arguments.num_processes
    sizes = {
        key.removeprefix("parallelism_config_"): value
        for key, value in config.parallelism_config.items()
        if key.endswith(("_size", "_backend"))
    }
    parallelism = ParallelismConfig(**sizes)
    _fp8(config, arguments)
    fsdp = config.distributed_type == DistributedType.FSDP
    if fsdp:
        FullyShardedDataParallelPlugin(
            fsdp_version=config.fsdp_config["fsdp_version"],
            reshard_after_forward=config.fsdp_config["fsdp_reshard_after_forward"],
            auto_wrap_policy="transformer_based_wrap",
            activation_checkpointing=config.fsdp_config["fsdp_activation_checkpointing"],
            cpu_offload=config.fsdp_config["fsdp_offload_params"],
        )
    if config.parallelism_config:
        accelerator = SimpleNamespace(
            multi_device=config.distributed_type == DistributedType.MULTI_GPU,
            num_processes=config.num_processes,
            is_fsdp2=fsdp,
            is_main_process=False,
            distributed_type=config.distributed_type,
        )
        parallelism._validate_accelerator(accelerator)


def _fp8(config: Any, arguments: Any) -> None:
    """How the launcher hands fp8 on, and the names that the accelerator then reads."""
    if config.mixed_precision != "fp8":
        assert not config.fp8_config
        return
    environment = setup_fp8_env(arguments, {})
    backend = FP8BackendType(environment["ACCELERATE_FP8_BACKEND"])
    assert backend is FP8BackendType.AO, "what is emitted is torchao's"
    known = {f"ACCELERATE_FP8_{field.name.upper()}" for field in fields(AORecipeKwargs)}
    for key in config.fp8_config:
        name = f"ACCELERATE_FP8_{key.upper()}"
        if name != "ACCELERATE_FP8_BACKEND" and name not in known:
            raise ValueError(f"unknown option of fp8: {key}")
        assert name in environment, f"{key} does not arrive"


if __name__ == "__main__":
    serve(check)
