"""Fit how fast kernels along a sequence run, from measured kernel tables.

    pip download --no-deps aiconfigurator-core==0.12.0 && unzip aiconfigurator_core-*.whl -d tables
    python tools/fit_scans.py tables            # print what was measured, and its spread
    python tools/fit_scans.py tables --write    # and write src/meshplan/cost/surfaces/scans.json

The tables are Parquet files; they are read with ``pyarrow``, which nothing else here needs.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

SCANS = Path(__file__).resolve().parents[1] / "src/meshplan/cost/surfaces/scans.json"
REFERENCE = "h100_sxm"
FOLDER = "aiconfigurator_core/systems/data"
TABLES = {
    # kind: file of the stack, kernel, what tells shapes apart, smallest number of tokens
    "delta_rule": ("gdn_perf", "chunk_gated_delta_rule", ("num_k_heads", "num_v_heads")),
    "convolution": ("mamba2_perf", "causal_conv1d_fn", ("nheads", "d_state", "n_groups")),
}
STACK = "linear_attention/trtllm/1.3.0rc20"
FEWEST_TOKENS = 16384
SHORTEST = 1024
PROFILE = (
    "GiscardBiamby/Automodel-scalingai-f26, mfu/results/20260928-172950_final8_nsys: a training "
    "step of Nemotron 3 Nano on eight H100, 12,288 tokens a device in sequences of 4,096, "
    "mamba-ssm 2.3.0 and causal-conv1d 1.6.0; "
)
# Seconds in the 23 blocks of that step, and the bytes that the model counts for one of them.
STEP = {"blocks": 23, "tokens": 12288, "inner": 4096, "keys": 1024, "chunk": 128, "state": 128}
CONVOLUTION_S, ALL_S = 8.75e-3 + 8.40e-3, 71.5e-3


def measured(folder: Path, kind: str) -> dict[str, dict[tuple[float, ...], float]]:
    """Milliseconds by device and shape of long sequences."""
    import pyarrow.parquet as parquet

    name, kernel, shape = TABLES[kind]
    found: dict[str, dict[tuple[float, ...], float]] = defaultdict(dict)
    for file in sorted(folder.glob(f"{FOLDER}/*/{STACK}/{name}.parquet")):
        device = file.relative_to(folder / FOLDER).parts[0]
        for row in parquet.read_table(file).to_pylist():
            if row["kernel_source"] != kernel or row["phase"] != "context":
                continue
            if row["num_tokens"] < FEWEST_TOKENS or row["seq_len"] < SHORTEST:
                continue
            key = (*(row[c] for c in shape), row["batch_size"], row["seq_len"])
            found[device][key] = min(row["latency"], found[device].get(key, np.inf))
    return found


def ratios(table: dict[str, dict[tuple[float, ...], float]]) -> dict[str, np.ndarray]:
    """Speed over that of the reference, for the shapes that all devices have."""
    shapes = sorted(set.intersection(*(set(rows) for rows in table.values())))
    base = np.array([table[REFERENCE][key] for key in shapes])
    return {
        device: base / np.array([rows[key] for key in shapes]) for device, rows in table.items()
    }


def reached() -> dict[str, float]:
    """Bytes per second of the two kinds in the profiled step [bytes/s]."""
    tokens, inner, keys = STEP["tokens"], STEP["inner"], STEP["keys"]
    share = STEP["state"] / STEP["chunk"]
    widths = inner * (28.0 + 46.0 * share) + keys * (46.0 + 32.0 / share)
    seconds = (ALL_S - CONVOLUTION_S) / STEP["blocks"]
    # forward, again in the backward pass, and its gradient: 4, 4 and 6 bytes an element
    convolved = 14.0 * tokens * (inner + 2.0 * keys)
    return {
        "state_space": tokens * widths / seconds,
        "convolution": convolved / (CONVOLUTION_S / STEP["blocks"]),
    }


def delta_rule(table: dict[str, dict[tuple[float, ...], float]]) -> float:
    """Bytes per second of the delta rule on the reference, heads of 128 channels [bytes/s]."""
    found = []
    for (_, heads, batch, seq_len), milliseconds in table[REFERENCE].items():
        widths = heads * 128.0 * (2.0 + 1.0 + 2.0 * 128.0 / 64.0)
        found.append(4.0 * batch * seq_len * widths / (milliseconds * 1e-3))
    return float(np.median(found))


def document(folder: Path) -> dict[str, object]:
    """What is shipped."""
    source = f"aiconfigurator-core 0.12.0 (Apache-2.0, NVIDIA CORPORATION & AFFILIATES), {STACK}"
    tables = {kind: measured(folder, kind) for kind in TABLES}
    speeds, values = {}, reached() | {"delta_rule": delta_rule(tables["delta_rule"])}
    for kind, table in tables.items():
        over = ratios(table)
        found = {device: float(np.median(each)) for device, each in over.items()}
        speeds[kind] = {
            "value": {device: round(value, 3) for device, value in sorted(found.items())},
            "unit": "1",
            "source": f"{source}/{TABLES[kind][0]}, kernel {TABLES[kind][1]}: median over "
            f"{len(over[REFERENCE])} shapes of {FEWEST_TOKENS:,} tokens and more",
            "kind": "measured",
        }
    sources = {
        "state_space": PROFILE + "71.5 ms of Mamba kernels less the convolutions, in 23 blocks",
        "convolution": PROFILE + "8.75 ms of convolutions forward and again, 8.40 ms backward",
        "delta_rule": f"{source}/gdn_perf: median on an idle device",
    }
    likes = {"state_space": "delta_rule"}
    return {
        "reference": REFERENCE,
        "reached": {
            kind: {
                "value": float(f"{values[kind]:.4g}"),
                "unit": "bytes/s",
                "source": sources[kind],
                "kind": "measured",
                "scales_like": likes.get(kind, kind),
            }
            for kind in sources
        },
        "speed_over_reference": speeds,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the unpacked package")
    parser.add_argument("--write", action="store_true", help="write the shipped file")
    arguments = parser.parse_args()
    for kind in TABLES:
        for device, values in ratios(measured(arguments.folder, kind)).items():
            low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
            print(f"{kind:12} {device:20} {middle:.3f}  ({low:.3f} to {high:.3f})")
    found = document(arguments.folder)
    if arguments.write:
        SCANS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found["reached"], indent=1))


if __name__ == "__main__":
    main()
