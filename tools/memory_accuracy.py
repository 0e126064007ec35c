"""Compare predicted with measured peak memory, per source, with the worst rows.

usage: python tools/memory_accuracy.py [--source ID ...] [--worst N] [--toys]

Reads ``data/measured`` of the folder that MESHPLAN_SHARED names, or of ``../shared``. Rows are read
as ``meshplan validate`` reads them; models of Megatron-LM's own tests below 1,024 channels, where
constants decide, are left out unless asked for, and so are rows that their source notes as not
reproducible.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshplan.units import GIB
from meshplan.validate.memory import memory_as_measured
from meshplan.validate.rows import Case, read_case, steady_bytes
from meshplan.validate.table import Row, Skip, count, read_models, read_table

LEAST_HIDDEN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row with its prediction [bytes]."""

    case: Case
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1.0


def compare(
    folder: Path, sources: list[str] | None = None, *, toys: bool = False
) -> tuple[dict[str, list[Compared]], Counter[str]]:
    """Predict every row of a folder of measurements that has a peak memory.

    Returns:
        Rows by source, and how many were left out by reason.
    """
    models = read_models(folder / "models.csv")
    found: dict[str, list[Compared]] = defaultdict(list)
    skipped: Counter[str] = Counter()
    for row in read_table(folder / "runs.csv", needs=("source_id", "peak_mem_gib")):
        source = row["source_id"]
        if not row["peak_mem_gib"] or (sources and source not in sources):
            continue
        reason = left_out(row, toys=toys)
        if reason:
            skipped[f"{source}: {reason}"] += 1
            continue
        try:
            case = read_case(row, models)
        except Skip as skip:
            skipped[f"{source}: {skip.reason}"] += 1
            continue
        predicted = memory_as_measured(
            case.scenario,
            case.plan,
            kind=case.memory_kind,
            where=case.memory_where,
        )
        assert case.measured_bytes is not None
        found[source].append(Compared(case=case, predicted=predicted, measured=case.measured_bytes))
    return found, skipped


def left_out(row: Row, *, toys: bool) -> str:
    """Why a row is not looked at; empty when it is."""
    notes = row.get("notes", "")
    if "not be reproduced" in notes or "not reproducible" in notes:
        return "noted as not reproducible"
    full = count(row, "num_gpus") and count(row, "global_batch")
    if not (count(row, "seq_len") and (full or steady_bytes(row))):
        return "no full layout"
    small = (count(row, "hidden") or LEAST_HIDDEN) < LEAST_HIDDEN
    return "toy model" if small and not toys and row["source_id"] == "megatron-ci-golden" else ""


def measured_folder() -> Path:
    """Where the measured rows lie."""
    shared = os.environ.get("MESHPLAN_SHARED", Path(__file__).resolve().parents[2] / "shared")
    return Path(shared) / "data" / "measured"


def describe(row: Compared) -> str:
    """One line about a row."""
    p = row.case.plan
    return (
        f"{row.case.row_id} {row.error:+.1%} measured {row.measured / GIB:.2f} "
        f"predicted {row.predicted / GIB:.2f} GiB {row.case.scenario.model.name} tp{p.tp} "
        f"pp{p.pp} vpp{p.vpp} cp{p.cp} ep{p.ep} dp{p.dp} zero{p.zero} mbs{p.micro_batch} "
        f"m{p.num_micro_batches} {p.schedule.name.lower()} {p.recompute!r}"
    )


def main() -> None:
    """Print the table and the worst rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", action="append")
    parser.add_argument("--worst", type=int, default=3)
    parser.add_argument("--toys", action="store_true")
    args = parser.parse_args()
    found, skipped = compare(measured_folder(), args.source, toys=args.toys)
    print(f"{'source':24s} {'n':>4s} {'mean':>7s} {'median':>7s} {'p90':>7s} {'bias':>7s}")
    for source, rows in found.items():
        signed = np.array([row.error for row in rows])
        size = np.abs(signed)
        print(
            f"{source:24s} {len(rows):4d} {size.mean():7.1%} {np.median(size):7.1%} "
            f"{np.quantile(size, 0.9):7.1%} {np.median(signed):+7.1%}"
        )
    for rows in found.values():
        for row in sorted(rows, key=lambda r: -abs(r.error))[: args.worst]:
            print(describe(row))
    for reason, number in sorted(skipped.items()):
        print(f"left out {number}: {reason}")


if __name__ == "__main__":
    main()
