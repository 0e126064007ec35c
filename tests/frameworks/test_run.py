"""One emitted config really runs, and its collectives carry the bytes of the plan."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from meshplan.cost.communication import End, block_communication, data_parallel
from meshplan.emit.launch import launch
from meshplan.emit.records import Order
from meshplan.emit.targets import TARGETS, obstacles_of
from meshplan.space.complete import complete_plan
from meshplan.space.plan import Framework, PlanGrid
from space_scenarios import dense_model, scenario

TOOLS = Path(__file__).resolve().parents[2] / "tools" / "frameworks"
# Weights, gradients and activations are fp32 on the CPU, where the plan counts 16-bit ones.
WIDER = 2.0


@pytest.fixture(scope="module")
def counted(python, tmp_path_factory):
    """The run, its scenario and its plan."""
    folder = tmp_path_factory.mktemp("run")
    model = dense_model(num_layers=4, hidden=256, heads=8, kv_heads=4, ffn_hidden=768, vocab=1024)
    layers = [replace(x, mixer=replace(x.mixer, head_dim=32, v_head_dim=32)) for x in model.layers]
    model = replace(model, layers=tuple(layers))
    there = scenario(
        model, num_gpus=4, seq_len=64, global_batch=4, frameworks=("torchtitan",), gpus_per_node=4
    )
    plan = complete_plan(there, framework=Framework.TORCHTITAN, tp=2, micro_batch=2)
    order = Order(scenario=there, plan=plan)
    assert obstacles_of(order, TARGETS["torchtitan"]) == ()
    for file in launch(order, TARGETS["torchtitan"].program(order), launcher="torchrun"):
        (folder / file.name).write_text(file.text)
    done = subprocess.run(
        [
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "4",
            str(TOOLS / "run_tiny.py"),
            str(folder / "meshplan_torchtitan.py"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOOLS), "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 1, done.stderr[-3000:]
    return json.loads(lines[0]), there, plan


def test_the_model_trains(counted):
    measured, _, _ = counted
    assert measured["last_loss"] < 0.7 * measured["first_loss"]


def test_tensor_parallel_bytes(counted):
    """Whole buffers of a step: the plan's bytes are those that one device sends, V (n - 1) / n."""
    measured, there, plan = counted
    grid = PlanGrid.of([plan])
    block = block_communication(there, there.model.layers[0], grid)
    sent = block.tp_forward.num_bytes[0] + block.tp_backward.num_bytes[0]
    blocks = (
        WIDER * there.model.num_layers * plan.num_micro_batches * sent * plan.tp / (plan.tp - 1)
    )
    # embedding: one reduce-scatter forward, one all-gather backward; head: one gather of its input
    # forward and one reduce-scatter backward, and the logits, which it gathers here
    activations = 4 * plan.micro_batch * there.job.seq_len * there.model.hidden
    logits = 4 * plan.micro_batch * there.job.seq_len * there.model.vocab
    ends = plan.num_micro_batches * (4 * activations + logits)
    seen = sum(v for k, v in measured["bytes"].items() if k.startswith("tp_"))
    # gradients of the norms, 0.2% of it, are all-reduced on top
    print("tensor parallel bytes: counted", seen, "planned", blocks + ends)
    assert seen == pytest.approx(blocks + ends, rel=0.005)


def test_fsdp_bytes(counted):
    """Gathered and reduced buffers of a step, embedding and head included."""
    measured, there, plan = counted
    grid = PlanGrid.of([plan])
    parts = [(there.model.num_layers, data_parallel(there, there.model.layers[0], grid))]
    parts += [(1, data_parallel(there, end, grid)) for end in End]
    whole = plan.dp / (plan.dp - 1)
    gathered = reduced = 0.0
    for count, part in parts:
        rounds = float(part.gathers_forward[0] + part.gathers_backward[0])
        gathered += count * rounds * part.gather.num_bytes[0] * whole * WIDER
        # gradients are reduced in 32 bits by the plan too
        reduced += count * float(part.reduces[0]) * part.reduce.num_bytes[0] * whole
    seen = {k: v for k, v in measured["bytes"].items() if k.startswith("dp_")}
    gathers = sum(v for k, v in seen.items() if "gather" in k)
    reduces = sum(v for k, v in seen.items() if "reduce" in k)
    print("FSDP bytes: gathered", gathers, "planned", gathered)
    print("FSDP bytes: reduced", reduces, "planned", reduced)
    assert reduces == pytest.approx(reduced, rel=1e-6)
    assert gathers == pytest.approx(gathered, rel=1e-6)
