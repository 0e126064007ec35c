"""Fit the kernel surfaces that meshplan ships from measured kernel tables.

    python tools/fit_kernels.py --report          # print held-out errors, change nothing
    python tools/fit_kernels.py --write           # fit on all rows and write the surfaces

The tables are looked for in MESHPLAN_SHARED, or in ``../shared`` beside the repository.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.optimize import nnls
from scipy.sparse.linalg import spsolve

from meshplan.cost.surfaces.forms import (
    ATTENTION_TERMS,
    GEMM_TERMS,
    attention_terms,
    gemm_terms,
)

ROOT = Path(__file__).resolve().parents[1]
SURFACES = ROOT / "src" / "meshplan" / "cost" / "surfaces"
SOURCE = (
    "aiconfigurator-core 0.12.0 (Apache-2.0, NVIDIA CORPORATION & AFFILIATES), best latency over "
    "its serving stacks; fitted by tools/fit_kernels.py"
)
# The grid on which residuals are kept; 32768 wide was measured on one device only.
ROWS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
WIDTHS = (
    128,
    256,
    512,
    1024,
    1536,
    2048,
    2560,
    3072,
    4096,
    5120,
    6144,
    7168,
    8192,
    10240,
    12288,
    16384,
    51200,
    65536,
)
# Weight of the second differences against the squared residuals. 0.03 is the lowest held-out
# error on B200 and costs two tenths of a point on A100 (--report --smoothing 0.003).
SMOOTHING = 0.03
RESIDUAL_STEP = 0.004


def shared_folder() -> Path:
    """Folder of the kernel tables."""
    named = os.environ.get("MESHPLAN_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        raise SystemExit("measured data is absent: set MESHPLAN_SHARED or put it at ../shared")
    return folder / "data" / "kernels"


def read_gemm() -> dict[tuple[str, str], np.ndarray]:
    """Columns m, n, k, seconds by device and precision."""
    rows = defaultdict(list)
    with (shared_folder() / "gemm.csv").open() as file:
        for row in csv.DictReader(file):
            rows[row["gpu"], row["dtype"]].append(
                [float(row[c]) for c in ("m", "n", "k")] + [float(row["latency_ms"]) * 1e-3]
            )
    return {key: np.array(value) for key, value in rows.items()}


def read_attention() -> dict[tuple[str, int], np.ndarray]:
    """Columns batch, seq_len, heads, kv_heads, seconds by device and head width."""
    rows = defaultdict(list)
    with (shared_folder() / "attention_forward.csv").open() as file:
        for row in csv.DictReader(file):
            rows[row["gpu"], int(row["head_dim"])].append(
                [float(row[c]) for c in ("batch_size", "seq_len", "num_heads", "num_kv_heads")]
                + [float(row["latency_ms"]) * 1e-3]
            )
    return {key: np.array(value) for key, value in rows.items()}


def columns(terms: tuple[object, ...], num: int) -> np.ndarray:
    """Stack the terms of a form as columns."""
    return np.stack([np.broadcast_to(np.asarray(term, float), (num,)) for term in terms], axis=1)


def fit_weights(matrix: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Non-negative weights that minimise the squared relative error."""
    relative = matrix / seconds[:, None]
    scale = np.median(relative, axis=0)
    weights, _ = nnls(relative / scale, np.ones(len(seconds)))
    return weights / scale


def gemm_matrix(table: np.ndarray) -> np.ndarray:
    """Terms of the product form for each row."""
    m, n, k = table[:, 0], table[:, 1], table[:, 2]
    return columns(gemm_terms(m=m, n=n, k=k), len(table))


def attention_matrix(table: np.ndarray, head_dim: int) -> np.ndarray:
    """Terms of the attention form for each row."""
    batch, seq_len, heads, kv_heads = table[:, 0], table[:, 1], table[:, 2], table[:, 3]
    terms = attention_terms(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        query_len=seq_len,
        key_len=seq_len,
        pairs=seq_len * (seq_len + 1) / 2,
        width=float(head_dim),
    )
    return columns(terms, len(table))


def second_difference(points: tuple[int, ...]) -> sp.csr_matrix:
    """Second derivative along the logarithm of one size, weighted by the local spacing."""
    x = np.log(np.array(points, float))
    matrix = np.zeros((len(x) - 2, len(x)))
    for i in range(len(x) - 2):
        before, after = x[i + 1] - x[i], x[i + 2] - x[i + 1]
        both = before + after
        matrix[i, i : i + 3] = (2 / (before * both), -2 / (before * after), 2 / (after * both))
        matrix[i] *= (both / 2) ** 1.5
    return sp.csr_matrix(matrix)


def roughness() -> sp.csr_matrix:
    """Quadratic form of the second differences along the three sizes."""
    rows, widths = second_difference(ROWS), second_difference(WIDTHS)
    one_row, one_width = sp.eye(len(ROWS)), sp.eye(len(WIDTHS))
    parts = (
        sp.kron(sp.kron(rows, one_width), one_width),
        sp.kron(sp.kron(one_row, widths), one_width),
        sp.kron(sp.kron(one_row, one_width), widths),
    )
    return sum(part.T @ part for part in parts)


def residual_surface(
    table: np.ndarray, weights: np.ndarray, *, smoothing: float = SMOOTHING
) -> np.ndarray:
    """Smooth logarithm of measured over fitted time on the grid of ROWS x WIDTHS x WIDTHS."""
    shape = (len(ROWS), len(WIDTHS), len(WIDTHS))
    values, known = np.zeros(shape), np.zeros(shape)
    fitted = gemm_matrix(table) @ weights
    for (m, n, k, seconds), base in zip(table, fitted, strict=True):
        if n in WIDTHS and k in WIDTHS:
            place = (ROWS.index(int(m)), WIDTHS.index(int(n)), WIDTHS.index(int(k)))
            values[place], known[place] = np.log(seconds / base), 1.0
    system = sp.diags(known.ravel()) + smoothing * roughness()
    solution = spsolve(system.tocsc(), (known * values).ravel())
    return solution.reshape(shape)


def lookup(surface: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The residual at rows of the table that lie on the grid."""
    m = np.searchsorted(ROWS, table[:, 0])
    n, k = np.searchsorted(WIDTHS, table[:, 1]), np.searchsorted(WIDTHS, table[:, 2])
    return surface[m, n, k]


def on_grid(table: np.ndarray) -> np.ndarray:
    """Rows whose widths are on the residual grid."""
    return np.isin(table[:, 1], WIDTHS) & np.isin(table[:, 2], WIDTHS)


def quantise(surface: np.ndarray) -> np.ndarray:
    """Round residuals to one byte each."""
    return np.clip(np.rint(surface / RESIDUAL_STEP), -127, 127).astype(np.int8)


def spread(errors: np.ndarray) -> str:
    """Print relative errors as mean, median, 90th percentile and bias."""
    size = np.abs(errors)
    return (
        f"mean {size.mean():6.1%}  median {np.median(size):6.1%}  "
        f"p90 {np.quantile(size, 0.9):6.1%}  bias {errors.mean():+6.1%}  n {len(errors)}"
    )


def held_out_gemm(table: np.ndarray, *, smoothing: float) -> np.ndarray:
    """Relative errors of whole slices (all rows of one width) that were left out of the fit."""
    table = table[on_grid(table)]
    errors = []
    for column, sizes in ((1, WIDTHS[2:-2:4]), (2, WIDTHS[3:-2:4]), (0, ROWS[2:-1:3])):
        for size in sizes:
            out = table[:, column] == size
            if not out.any():
                continue
            weights = fit_weights(gemm_matrix(table[~out]), table[~out, 3])
            surface = residual_surface(table[~out], weights, smoothing=smoothing)
            predicted = gemm_matrix(table[out]) @ weights * np.exp(lookup(surface, table[out]))
            errors.append(predicted / table[out, 3] - 1.0)
    return np.concatenate(errors)


def held_out_attention(table: np.ndarray, head_dim: int) -> np.ndarray:
    """Relative errors of all rows of one sequence length that were left out of the fit."""
    errors = []
    for seq_len in np.unique(table[:, 1])[1:-1]:
        out = table[:, 1] == seq_len
        weights = fit_weights(attention_matrix(table[~out], head_dim), table[~out, 4])
        errors.append(attention_matrix(table[out], head_dim) @ weights / table[out, 4] - 1.0)
    return np.concatenate(errors)


def report(devices: list[str], smoothing: float) -> None:
    """Print held-out errors of every surface."""
    print("matrix products: whole widths and row counts held out")
    for (device, precision), table in sorted(read_gemm().items()):
        if not devices or device in devices:
            errors = held_out_gemm(table, smoothing=smoothing)
            print(f"  {device:20} {precision:10} {spread(errors)}")
    print("attention forward: whole sequence lengths held out")
    for (device, head_dim), table in sorted(read_attention().items()):
        if not devices or device in devices:
            print(f"  {device:20} {head_dim:10} {spread(held_out_attention(table, head_dim))}")


def write() -> None:
    """Fit on all rows and write the shipped files."""
    gemm, residuals = {}, {}
    for (device, precision), table in sorted(read_gemm().items()):
        weights = fit_weights(gemm_matrix(table), table[:, 3])
        surface = residual_surface(table[on_grid(table)], weights)
        gemm.setdefault(device, {})[precision] = [float(f"{w:.6g}") for w in weights]
        residuals[f"{device}/{precision}"] = quantise(surface)
    attention = {}
    for (device, head_dim), table in sorted(read_attention().items()):
        weights = fit_weights(attention_matrix(table, head_dim), table[:, 4])
        attention.setdefault(device, {})[str(head_dim)] = [float(f"{w:.6g}") for w in weights]
    document = {
        "source": SOURCE,
        "kind": "fitted",
        "unit": "s",
        "gemm_terms": GEMM_TERMS,
        "attention_terms": ATTENTION_TERMS,
        "rows": ROWS,
        "widths": WIDTHS,
        "residual_step": RESIDUAL_STEP,
        "gemm": gemm,
        "attention": attention,
    }
    text = json.dumps(document, indent=1)
    (SURFACES / "kernels.json").write_text(text + "\n", encoding="utf-8")
    np.savez_compressed(SURFACES / "gemm_residuals.npz", **residuals)
    for name in ("kernels.json", "gemm_residuals.npz"):
        print(f"{name}: {(SURFACES / name).stat().st_size / 1024:.0f} KiB")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="print held-out errors")
    parser.add_argument("--write", action="store_true", help="fit on all rows and write")
    parser.add_argument("--device", action="append", default=[], help="report on this one only")
    parser.add_argument("--smoothing", type=float, default=SMOOTHING, help="report with this one")
    arguments = parser.parse_args()
    if arguments.report:
        report(arguments.device, arguments.smoothing)
    if arguments.write:
        write()


if __name__ == "__main__":
    main()
