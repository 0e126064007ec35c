"""torchtitan's own config manager, device mesh, model config and pipeline schedules."""

from __future__ import annotations

import ast
import csv
import inspect
import os
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import stand_ins

stand_ins.install()

import torch.distributed as dist
from protocol import serve
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.components import quantization
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.trainer import Trainer

MODULE = "meshplan_torchtitan"
# Groups of all ranks are made one by one, which takes too long on larger worlds.
LARGEST_MESH = 64
FOLDER = tempfile.mkdtemp()
CAPABILITY = [9, 0]
for part in (quantization.float8, quantization.mx):
    part.has_cuda_capability = lambda *least: list(least) <= CAPABILITY
sys.path.insert(0, FOLDER)


def _trainer_check(text: str) -> Any:
    """A check that stands inside ``Trainer.__init__``, compiled alone."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(Trainer.__init__)))
    wanted = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert | ast.If) and text in ast.unparse(node)
    ]
    assert len(wanted) == 1, f"torchtitan has changed: {text} stands {len(wanted)} times"
    return compile(ast.Module([wanted[0]], []), "torchtitan/trainer.py", "exec")


SEQUENCE = _trainer_check("Training sequence length")
BATCH = _trainer_check("global batch size must be multiple")


def check(case: Mapping[str, Any]) -> None:
    """Everything of a run that comes before the model is put on devices."""
    sys.modules.pop(MODULE, None)
    CAPABILITY[:] = case["capability"]
    path = Path(FOLDER) / f"{MODULE}.py"
    path.write_text(case["module"])
    path.with_name("meshplan_schedule.csv").write_text(case["table"])
    os.utime(path, (case["id"] + 1, case["id"] + 1))  # so that no cached bytecode is taken
    config = ConfigManager().parse_args(["--module", MODULE, "--config", "train"])
    world, parallelism = case["world"], config.parallelism
    dims = ParallelDims.from_config(parallelism, world)
    if world <= LARGEST_MESH:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        dims.build_mesh()
    sp = dims.tp if parallelism.enable_sequence_parallel else 1
    names = {
        "config": config,
        "seq_len_divisor": sp * (2 * dims.cp if dims.cp > 1 else 1),
        "global_batch_size": config.training.global_batch_size,
        "batch_degree": dims.dp_replicate * dims.dp_shard,
    }
    exec(SEQUENCE, names)
    exec(BATCH, names)
    config.model_spec.model.update_from_config(config=config)
    config._validate_cuda_graphs()
    if dims.pp > 1:
        _pipeline(config, dims.pp)


def _pipeline(config: Any, pp: int) -> None:
    parallelism = config.parallelism
    schedule = parallelism.pipeline_parallel_schedule
    parts = len(parallelism.module_fqns_per_model_part)
    if parts % pp:
        raise ValueError(f"{parts} stages on {pp} ranks")
    per_rank = parts // pp
    multi = issubclass(get_schedule_class(schedule), PipelineScheduleMulti)
    if multi != (per_rank > 1):
        raise ValueError(f"{schedule} with {per_rank} stages per rank")
    number = config.training.local_batch_size // parallelism.pipeline_parallel_microbatch_size
    if table := parallelism.pipeline_parallel_schedule_csv:
        _table(table, pp=pp, number=number)
    get_schedule_ops(schedule, pp, number, num_stages_per_rank=per_rank, with_comms=False)


def _table(path: str, *, pp: int, number: int) -> None:
    """Check a table as the runtime does, add its traffic and look for a deadlock."""
    with open(path, newline="") as file:
        actions = {
            rank: [schedules._Action.from_str(cell) for cell in row]
            for rank, row in enumerate(csv.reader(file))
        }
    ranks = schedules._validate_schedule(actions, pp, pp, number)
    where = ranks.__getitem__
    traffic = schedules._add_send_recv(actions, stage_to_rank=where, num_stages=pp)
    schedules._simulate_comms_compute(traffic, stage_to_rank=where, num_stages=pp)


if __name__ == "__main__":
    serve(check)
