"""Megatron-Bridge's own recipe overrides and the checks of its config, then Megatron-Core's.

The overrides are laid over the package's plain GPT recipe, whose model gets the sizes of the case:
recipes of named models would read them from a hub.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import stand_ins

stand_ins.install("modelopt", "multistorageclient")

import megatron.core
import torch
from megatron_build import check_build
from protocol import serve

# Parts of the package that read checkpoints and data or write adapters, with what they import.
UNUSED = (
    "megatron.energon",
    "megatron.bridge.peft",
    "megatron.bridge.data.builders.energon",
    "megatron.bridge.models.conversion",
    "megatron.bridge.models.megatron_mimo",
    "megatron.bridge.training.tokenizers.tokenizer",
)
# Packages whose __init__ imports every model there is.
BARE = ("", ".models", ".models.gpt", ".models.hybrid", ".recipes")


class _Bare(types.ModuleType):
    """A package whose modules can be imported while its ``__init__`` never runs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def _prepare() -> None:
    stand_ins.stand_in_for_parts(*UNUSED)
    top = next(Path(place) / "bridge" for place in megatron.__path__)
    for part in BARE:
        name = f"megatron.bridge{part}"
        module = _Bare(name)
        module.__path__ = [str(top.joinpath(*part.split(".")[1:]))]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        setattr(sys.modules[parent], leaf, module)


_prepare()
from megatron.bridge.models.gpt_provider import GPTModelProvider

sys.modules["megatron.bridge.models"].GPTModelProvider = GPTModelProvider  # type: ignore[attr-defined]
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_pretrain_config
from megatron.bridge.training.config import runtime_config_update
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

# What a recipe may have settled otherwise, which must not outlive the overrides.
FOREIGN = {
    "tensor_model_parallel_size": 64,
    "pipeline_model_parallel_size": 64,
    "virtual_pipeline_model_parallel_size": 7,
    "context_parallel_size": 64,
    "num_layers_in_first_pipeline_stage": 1,
    "account_for_loss_in_pipeline_split": True,
    "recompute_granularity": "full",
    "recompute_method": "block",
    "recompute_num_layers": 1,
}


def check(case: Mapping[str, Any]) -> None:
    """Lay the overrides over a recipe, validate the whole config, and build on small worlds."""
    os.environ.update(WORLD_SIZE=str(case["world"]), RANK="1", LOCAL_RANK="1")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"])
    recipe = vanilla_gpt_pretrain_config()
    provider = MLAModelProvider if "kv_lora_rank" in case["model"] else GPTModelProvider
    recipe.model = provider(
        **case["model"],
        params_dtype=torch.bfloat16,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
    )
    vars(recipe.model).update(FOREIGN)
    recipe.mixed_precision = get_mixed_precision_config("bf16_with_mxfp8_mixed")
    config = process_config_with_overrides(recipe, cli_overrides=case["overrides"])
    runtime_config_update(config)
    check_build(
        config.model,
        world=case["world"],
        data_parallel=config.data_parallel_size,
        micro_batch=config.train.micro_batch_size,
        global_batch=config.train.global_batch_size,
        optimizer_instances=config.ddp.num_distributed_optimizer_instances,
        seq_len=config.model.seq_length,
    )


if __name__ == "__main__":
    serve(check)
