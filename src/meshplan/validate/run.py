"""Validate predictions against a table of measured runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from meshplan.errors import UserError
from meshplan.validate.assume import listed_assumptions
from meshplan.validate.metrics import coverage, errors, feasibility, memory_coverage, sweeps
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case, has_full_layout, read_case, steady_bytes
from meshplan.validate.table import Row, Skip, flag

__all__ = ["NEEDED", "Skipped", "read_cases", "run"]

NEEDED = ("source_id", "gpu", "num_gpus", "tp", "pp", "global_batch", "seq_len")


class Skipped(NamedTuple):
    """A row that is not predicted.

    Attributes:
        source_id: set that it belongs to.
        reason: why.
        full_layout: it has a full layout and a time.
        sized: its peak memory was measured.
    """

    source_id: str
    reason: str
    full_layout: bool
    sized: bool


def read_cases(rows: Sequence[Row], models: Mapping[str, Row]) -> tuple[list[Case], list[Skipped]]:
    """Turn rows into cases.

    A row counts when it has a full layout, when it failed with a layout that is stated, or when
    its memory was measured and tells on how many devices it ran.

    Returns:
        Cases, and the rows that were skipped. A row whose time is in no known unit is among
        these; it is a case all the same where its memory was measured.
    """
    cases: list[Case] = []
    skipped: list[Skipped] = []
    for row in rows:
        full = has_full_layout(row, models)
        failed = flag(row, "oom") is True
        measured = bool(row.get("peak_mem_gib"))
        sized = measured and steady_bytes(row) > 0
        if not full and not failed and not sized:
            skipped.append(Skipped(row["source_id"], "no_full_layout", False, measured))
            continue
        try:
            case = read_case(row, models)
        except Skip as skip:
            skipped.append(Skipped(row["source_id"], skip.reason, full, measured))
            continue
        if full and case.measured is None and not failed:
            skipped.append(Skipped(row["source_id"], "no_time", True, False))
        if case.measured is not None or case.measured_bytes is not None or failed:
            cases.append(case)
    return cases, skipped


def run(
    rows: Sequence[Row],
    models: Mapping[str, Row],
    sources: Sequence[str] = (),
    *,
    details: bool = False,
    profile: str = "",
) -> dict[str, Any]:
    """Predict every row with a full layout and compare.

    Args:
        rows: measured runs.
        models: models by key, for rows that do not hold their own sizes.
        sources: sources to look at; all when empty.
        details: add one entry per row under ``rows``.
        profile: cluster profile to predict with, instead of that of each source.

    Returns:
        ``groups``, ``sweeps``, ``feasibility``, ``skipped``, ``skipped_by_source`` and
        ``assumptions``; errors are fractions.

    Raises:
        UserError: ``unknown_source`` when a source is not in the table.
    """
    known = {row["source_id"] for row in rows}
    for source in sources:
        if source not in known:
            raise UserError.of(
                "unknown_source", where="source", value=source, allowed=sorted(known)
            )
    if sources:
        rows = [row for row in rows if row["source_id"] in sources]
    cases, skipped = read_cases(rows, models)
    predictions = predict([case.with_profile(profile) for case in cases])
    result: dict[str, Any] = {
        "groups": _groups(predictions, skipped),
        "sweeps": sweeps(predictions),
        "feasibility": feasibility(predictions),
        "skipped": dict(Counter(one.reason for one in skipped)),
        "skipped_by_source": [
            {"source_id": source, "reason": reason, "num_rows": num_rows}
            for (source, reason), num_rows in Counter(one[:2] for one in skipped).items()
        ],
        "assumptions": _assumptions(cases),
    }
    if details:
        result["rows"] = [_row(prediction) for prediction in predictions]
    return result


def _groups(predictions: Sequence[Prediction], skipped: Iterable[Skipped]) -> list[dict[str, Any]]:
    """Errors by source and target, over the rows that have the target."""
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        by_source[prediction.case.source_id].append(prediction)
    untimed, unsized = Counter[str](), Counter[str]()
    for one in skipped:
        by_source.setdefault(one.source_id, [])
        untimed[one.source_id] += one.full_layout
        unsized[one.source_id] += one.sized
    groups = []
    for source, members in by_source.items():
        timed = [p for p in members if p.case.measured is not None]
        sized = [p for p in members if p.case.measured_bytes is not None]
        if timed or untimed[source]:
            found = {**errors([p.error for p in timed]), "coverage": coverage(timed)}
            groups.append(_group(source, "time", len(timed), untimed[source], found))
        if sized or unsized[source]:
            found = {
                **errors([p.memory_error for p in sized]),
                "coverage": memory_coverage(sized),
            }
            groups.append(_group(source, "memory", len(sized), unsized[source], found))
    return groups


def _group(
    source: str, target: str, num_predicted: int, num_skipped: int, found: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "source_id": source,
        "target": target,
        "num_rows": num_predicted + num_skipped,
        "num_predicted": num_predicted,
        **found,
    }


def _assumptions(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What was assumed for blanks, by source, with the reasons."""
    models: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        models[case.source_id].add(case.scenario.model.name)
    return [
        {"source_id": source, **entry}
        for source, names in sorted(models.items())
        for entry in listed_assumptions(source, names)
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
