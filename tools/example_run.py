"""Write the traces of a made-up slow run: ``python tools/example_run.py FOLDER``.

Llama-3.1-8B with FSDP on 16 H100 in two nodes that 2x100 Gb Ethernet joins, played by the simulator
of the planted faults with times of the cost model. docs/<lang>/diagnose.md walks through it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from planted.faults import Base, build, played
from planted.write import Seen, write_kineto

RUN = Base(
    name="example",
    model="llama-3.1-8b",
    layers=32,
    cluster="16xH100",
    framework="torchtitan",
    plan={"zero": 3, "dp_shard": 16},
    seq_len=8192,
    micro_batches=1,
    network="2x100GbE",
)


def main() -> None:
    """Write one trace per rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    built = build(RUN, (), seed=1)
    run = played(built)
    device, world = built.scenario.cluster.device, len(run.steps)
    seen = Seen(
        offset_us=tuple(1e9 + 731.0 * rank for rank in range(world)),
        device="NVIDIA H100 80GB HBM3",
        gpus_per_node=built.scenario.cluster.gpus_per_node,
        memory_bytes=device.usable_bytes,
        reserved_bytes=0.9 * device.usable_bytes,
    )
    for rank in range(world):
        write_kineto(run, rank, seen, folder)


if __name__ == "__main__":
    main()
