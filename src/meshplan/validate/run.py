"""Validate predictions against a table of measured runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshplan.errors import UserError
from meshplan.validate.assume import listed_assumptions
from meshplan.validate.metrics import coverage, errors, feasibility, sweeps
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case, has_full_layout, read_case, steady_bytes
from meshplan.validate.table import Row, Skip, read_models, read_table

__all__ = ["NEEDED", "read_cases", "run"]

NEEDED = ("source_id", "gpu", "num_gpus", "tp", "pp", "global_batch", "seq_len")


def read_cases(
    rows: Sequence[Row], models: Mapping[str, Row]
) -> tuple[list[Case], list[tuple[str, str, bool]]]:
    """Turn rows into cases.

    A row counts when it has a full layout, when it failed with a layout that is stated, or when
    its memory was measured and tells on how many devices it ran.

    Returns:
        Cases, and ``(source_id, reason, full layout)`` of the rows that were skipped.
    """
    cases, skipped = [], []
    for row in rows:
        full = has_full_layout(row, models)
        failed = row.get("oom") == "True"
        sized = bool(row.get("peak_mem_gib")) and steady_bytes(row) > 0
        if not full and not failed and not sized:
            skipped.append((row["source_id"], "no_full_layout", False))
            continue
        try:
            cases.append(read_case(row, models))
        except Skip as skip:
            skipped.append((row["source_id"], skip.reason, full))
    return cases, skipped


def run(
    runs_csv: Path, models_csv: Path, sources: Sequence[str] = (), *, details: bool = False
) -> dict[str, Any]:
    """Predict every row with a full layout and compare.

    Args:
        runs_csv: table of measured runs.
        models_csv: table of models.
        sources: sources to look at; all when empty.
        details: add one entry per row under ``rows``.

    Returns:
        ``groups``, ``sweeps``, ``feasibility``, ``skipped`` and ``assumptions``; errors are
        fractions.

    Raises:
        UserError: when a table cannot be read, or a source is not in it.
    """
    models = read_models(models_csv)
    rows = read_table(runs_csv, needs=NEEDED)
    known = {row["source_id"] for row in rows}
    for source in sources:
        if source not in known:
            raise UserError.of(
                "unknown_source", where="source", value=source, allowed=sorted(known)
            )
    if sources:
        rows = [row for row in rows if row["source_id"] in sources]
    cases, skipped = read_cases(rows, models)
    predictions = predict(cases)
    full = Counter(source for source, _, is_full in skipped if is_full)
    result: dict[str, Any] = {
        "groups": _groups(predictions, full),
        "sweeps": sweeps(predictions),
        "feasibility": feasibility(predictions),
        "skipped": dict(Counter(reason for _, reason, _ in skipped)),
        "assumptions": _assumptions({case.source_id for case in cases}),
    }
    if details:
        result["rows"] = [_row(prediction) for prediction in predictions]
    return result


def _groups(predictions: Sequence[Prediction], skipped: Counter[str]) -> list[dict[str, Any]]:
    """Errors by source and target."""
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        by_source[prediction.case.source_id].append(prediction)
    for source in skipped:
        by_source.setdefault(source, [])
    groups = []
    for source, members in by_source.items():
        timed = [p for p in members if p.case.measured is not None]
        sized = [p for p in members if p.case.measured_bytes is not None]
        if timed or skipped[source]:
            groups.append(
                {
                    "source_id": source,
                    "target": "time",
                    "num_rows": len(timed) + skipped[source],
                    "num_predicted": len(timed),
                    **errors([p.error for p in timed]),
                    "coverage": coverage(timed),
                }
            )
        if sized:
            groups.append(
                {
                    "source_id": source,
                    "target": "memory",
                    "num_rows": len(sized),
                    "num_predicted": len(sized),
                    **errors([p.memory_error for p in sized]),
                }
            )
    return groups


def _assumptions(sources: set[str]) -> list[dict[str, Any]]:
    """What was assumed for blanks, by source, with the reasons."""
    return [
        {"source_id": source, **entry}
        for source in sorted(sources)
        for entry in listed_assumptions(source)
    ]


def _row(prediction: Prediction) -> dict[str, Any]:
    case = prediction.case
    return {
        "row_id": case.row_id,
        "source_id": case.source_id,
        "group": case.group,
        "step_time_s": prediction.step_time_s,
        "measured_step_time_s": None if case.measured is None else case.measured_step_s(),
        "error": None if case.measured is None else prediction.error,
        "low_s": prediction.low_s,
        "high_s": prediction.high_s,
        "peak_bytes": prediction.peak_bytes,
        "measured_bytes": case.measured_bytes,
        "parts": prediction.parts,
    }
