"""What Megatron-Core checks after its config: layers, the schedule, groups, one layer built."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core import utils as core_utils
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.hybrid.hybrid_layer_allocation import (
    parse_hybrid_pattern,
    validate_segment_layers,
)
from megatron.core.num_microbatches_calculator import (
    get_num_microbatches,
    init_num_microbatches_calculator,
    unset_num_microbatches_calculator,
)
from megatron.core.optimizer.optimizer_config import OptimizerConfig
from megatron.core.pipeline_parallel import schedules
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import mamba_mixer
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules, gdn
from megatron.core.ssm.gated_delta_net import common as gated_delta_net
from megatron.core.tensor_parallel.mappings import scatter_to_sequence_parallel_region
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from packaging.version import Version
from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["check_build", "check_optimizer"]

# Transformer Engine is not here; what is asked of it is whether it is new enough.
core_utils._te_version = Version("2.9.0")


class _Stream:
    """The shared experts would have a stream of their own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


torch.cuda.Stream = _Stream  # type: ignore[assignment,misc]
# learnable sinks and what state-space mixers learn are made on the current device
torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment,return-value]


class _Norm(torch.nn.Module):
    """Stands for the fused norm of the state-space package."""

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, device="meta"))


class _Tracker:
    """Random numbers are not drawn here."""

    def fork(self) -> Any:
        return contextlib.nullcontext()


# Kernels of state-space models and of linear attention, which are never launched here.
for part in (mamba_mixer, gated_delta_net):
    part.get_cuda_rng_tracker = _Tracker  # type: ignore[attr-defined]
mamba_mixer.HAVE_MAMBA_SSM = gated_delta_net.HAVE_FLA = True  # type: ignore[attr-defined]
gdn.chunk_gated_delta_rule = _Norm  # type: ignore[attr-defined]
mamba_mixer.ExtendedRMSNorm = _Norm  # type: ignore[assignment,misc]


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


class _FusedAdam:
    """The arguments that are looked for in the optimizer of Transformer Engine 2.9."""

    def __init__(
        self,
        *,
        master_weight_dtype: Any = None,
        exp_avg_dtype: Any = None,
        exp_avg_sq_dtype: Any = None,
        use_decoupled_grad: bool = False,
    ) -> None: ...


@contextlib.contextmanager
def _transformer_engine() -> Iterator[None]:
    names = ("transformer_engine", "transformer_engine.pytorch")
    parts = {name: ModuleType(name) for name in (*names, f"{names[1]}.optimizers")}
    parts[f"{names[1]}.optimizers"].FusedAdam = _FusedAdam  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, parts):
        yield


def check_optimizer(args: Any) -> None:
    """Make the config of the optimizer from parsed arguments, as training does at its start."""
    names = [field.name for field in dataclasses.fields(OptimizerConfig)]
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    with _transformer_engine():
        OptimizerConfig(**given)


def check_build(
    config: Any,
    *,
    world: int,
    data_parallel: int,
    micro_batch: int,
    global_batch: int,
    optimizer_instances: int,
    seq_len: int,
    pattern: str | None = None,
) -> None:
    """Count micro-batches and layers, and on small worlds make process groups and a layer.

    Args:
        config: the ``TransformerConfig``.
        world: number of GPUs.
        data_parallel: replicas of the model.
        micro_batch: sequences of a micro-batch.
        global_batch: sequences of a step.
        optimizer_instances: groups of replicas that hold one whole optimizer state each.
        seq_len: tokens of a sequence.
        pattern: letters of the layers of a hybrid model.
    """
    unset_num_microbatches_calculator()
    init_num_microbatches_calculator(
        1,  # only rank 0 prints
        global_batch_size=global_batch,
        micro_batch_size=micro_batch,
        data_parallel_size=data_parallel,
    )
    if pattern is None:
        _layers(config)
    else:
        _letters(config, pattern)
    _schedule(config)
    if world <= LARGEST_BUILT:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        try:
            _build(config, optimizer_instances, seq_len, pattern)
        finally:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()


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


def _letters(config: Any, pattern: str) -> None:
    """What each virtual stage of a hybrid model takes of its pattern: every layer once."""
    main = parse_hybrid_pattern(pattern).main_pattern
    vpp, pp = config.virtual_pipeline_model_parallel_size or 1, config.pipeline_model_parallel_size
    built = [len(validate_segment_layers(part)) for part in main.split("|")]
    if len(built) != vpp * pp or sum(built) != config.num_layers:
        raise ValueError(f"{built} of {config.num_layers} layers are built in {vpp} x {pp} stages")


def _schedule(config: Any) -> None:
    """The order of micro-batches, which an interleaved pipeline works out at its first step."""
    vpp, pp = config.virtual_pipeline_model_parallel_size, config.pipeline_model_parallel_size
    if not vpp or vpp == 1:
        return
    group = config.microbatch_group_size_per_vp_stage or pp
    names = {
        "num_microbatches": get_num_microbatches(),
        "pipeline_parallel_size": pp,
        "config": SimpleNamespace(microbatch_group_size_per_vp_stage=group),
    }
    for part in INTERLEAVING:
        exec(part, names)


def _mixers(config: Any, pattern: str) -> None:
    """Build the mixers of a hybrid model that are no attention."""
    groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
    linear = {
        "in_proj": tensor_parallel.ColumnParallelLinear,
        "out_proj": tensor_parallel.RowParallelLinear,
    }
    with torch.device("meta"):
        if "M" in pattern:
            parts = mamba_mixer.MambaMixerSubmodules(**linear)
            mamba_mixer.MambaMixer(
                config, parts, config.hidden_size, layer_number=1, pg_collection=groups
            )
        if "G" in pattern:
            parts = GatedDeltaNetSubmodules(**linear, out_norm=WrappedTorchNorm)
            GatedDeltaNet(config, parts, layer_number=1, pg_collection=groups)


def _scatter(config: Any, seq_len: int) -> None:
    """Split what the embedding hands on over tensor-parallel ranks, as the first step does."""
    if config.sequence_parallel:
        tokens = seq_len // config.context_parallel_size
        scatter_to_sequence_parallel_region(torch.empty(tokens, 1, 1, device="meta"))


def _build(config: Any, optimizer_instances: int, seq_len: int, pattern: str | None) -> None:
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=config.virtual_pipeline_model_parallel_size,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=optimizer_instances,
        create_gloo_process_groups=False,
    )
    _scatter(config, seq_len)
    config.use_cpu_initialization, config.perform_initialization = True, False
    # the norm of the local implementation knows no sequence parallelism; its rule stands above
    config.sequence_parallel = False
    if pattern is not None:
        _mixers(config, pattern)
        if "*" not in pattern:
            return
    if config.context_parallel_size > 1 or config.multi_latent_attention:
        return  # attention of the local implementation has neither
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=False,
        qk_layernorm=config.qk_layernorm,
        normalization=config.normalization,
    )
    with torch.device("meta"):
        spec.module(config=config, submodules=spec.submodules, layer_number=1, vp_stage=0)
