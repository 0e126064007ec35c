"""Write the example of the documentation: ``python tools/example_run.py FOLDER``.

A Llama 3.1 8B run on two nodes of four H100 is played three times: as it was started, with tensor
parallelism kept inside the nodes, and with a healthy device in place of the slow one. Each folder
``first``, ``second`` and ``third`` holds the launch script, the traces of all ranks and the log;
``cluster.yaml`` beside them says what machines they ran on.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from planted.faults import Base, Fault, build, played
from planted.kineto_file import write_kineto
from planted.logs import write_log
from planted.play import Played
from planted.write import Seen

MODEL, NODE, WORLD, SEQ_LEN, MICRO_BATCHES = "llama-3.1-8b", 4, 8, 8192, 4
SLOW = Fault(kind="straggler", size=1.22, ranks=(5,))
RUNS = {"first": (8, (SLOW,)), "second": (4, (SLOW,)), "third": (4, ())}
"""By folder: tensor-parallel degree, and what is broken."""

_SCRIPT = """#!/bin/bash
torchrun --nnodes 2 --nproc-per-node {node} pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
  --swiglu --normalization RMSNorm --position-embedding-type rope \\
  --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 \\
  --seq-length {seq_len} --max-position-embeddings {seq_len} \\
  --micro-batch-size 1 --global-batch-size {batch} --bf16 --optimizer adam \\
  --tensor-model-parallel-size {tp} --sequence-parallel \\
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
"""


def write_example(folder: Path) -> None:
    """Write the three runs below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = f"device: H100\ngpus: {WORLD}\ngpus_per_node: {NODE}\n"
    (folder / "cluster.yaml").write_text(cluster)
    for name, (tp, faults) in RUNS.items():
        place = folder / name
        (place / "traces").mkdir(parents=True, exist_ok=True)
        dp = WORLD // tp
        base = Base(
            name=name,
            model=MODEL,
            layers=32,
            cluster=f"{WORLD}xH100",
            node=NODE,
            framework="megatron",
            plan={"tp": tp, "zero": 1 if dp > 1 else 0},
            seq_len=SEQ_LEN,
            micro_batches=MICRO_BATCHES * tp // 4,
        )
        built = build(base, faults, seed=11)
        run = played(built)
        _write(run, place)
        write_log(built, run.step_s, (), place)
        batch = built.scenario.job.global_batch
        script = _SCRIPT.format(node=NODE, seq_len=SEQ_LEN, batch=batch, tp=tp)
        (place / "train.sh").write_text(script)


def _write(run: Played, place: Path) -> None:
    seen = Seen(
        offset_us=tuple(1e9 + 700.0 * ((rank * 5) % 8) for rank in range(WORLD)),
        gpus_per_node=NODE,
        memory_bytes=79.1 * 2**30,
        reserved_bytes=61.0 * 2**30,
    )
    for rank in range(WORLD):
        write_kineto(run, rank, seen, place / "traces")


if __name__ == "__main__":
    write_example(Path(sys.argv[1]))
