"""Errors of predictions, ranking of layouts, and feasibility."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from meshplan.validate.predict import Prediction

__all__ = ["coverage", "errors", "feasibility", "spearman", "sweeps"]

_LEAST_LAYOUTS = 3


def errors(values: Sequence[float]) -> dict[str, float | None]:
    """Summarise relative errors, all as fractions.

    Args:
        values: predicted over measured, minus one.

    Returns:
        ``mape``, ``median_ape``, ``p90_ape`` and ``bias`` (the mean); None without values.
    """
    if not values:
        return {"mape": None, "median_ape": None, "p90_ape": None, "bias": None}
    signed = np.array(values)
    absolute = np.abs(signed)
    return {
        "mape": float(np.mean(absolute)),
        "median_ape": float(np.median(absolute)),
        "p90_ape": float(np.quantile(absolute, 0.9)),
        "bias": float(np.mean(signed)),
    }


def coverage(predictions: Iterable[Prediction]) -> float | None:
    """Return the share of measured step times inside the predicted band."""
    inside = [
        p.low_s <= p.case.measured_step_s() <= p.high_s
        for p in predictions
        if p.case.measured is not None
    ]
    return sum(inside) / len(inside) if inside else None


def sweeps(predictions: Iterable[Prediction]) -> list[dict[str, object]]:
    """Rank the layouts of every strict sweep.

    A strict sweep has one model, cluster, batch and attention, and three layouts or more; repeats
    of a layout count once, with their median. The pick is, as in a search, the layout whose
    pessimistic end of the band is lowest among those that fit; one that is tight in memory is
    picked only where none fits. Its regret is its measured time over the best one, minus one.
    """
    rows: dict[tuple[object, ...], list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        case = prediction.case
        if case.sweep_id and case.measured is not None:
            rows[(case.source_id, case.sweep_id, *case.sweep_key)].append(prediction)
    result: list[dict[str, object]] = []
    for key, members in rows.items():
        layouts: dict[object, list[Prediction]] = defaultdict(list)
        for member in members:
            layouts[member.case.plan].append(member)
        if len(layouts) < _LEAST_LAYOUTS:
            continue
        measured = [median(m.case.measured_step_s() for m in group) for group in layouts.values()]
        ranked = [group[0].high_s for group in layouts.values()]
        order = [(not group[0].called_fitting, group[0].high_s) for group in layouts.values()]
        pick = min(range(len(order)), key=order.__getitem__)
        result.append(
            {
                "source_id": key[0],
                "sweep_id": key[1],
                "attention_impl": key[3],
                "num_layouts": len(layouts),
                "regret": measured[pick] / min(measured) - 1.0,
                "spearman": spearman(measured, ranked),
            }
        )
    return result


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return the rank correlation of two lists, ties by mean rank; None when one is constant."""
    ranks = np.array([_ranks(left), _ranks(right)])
    deviation = ranks - ranks.mean(axis=1, keepdims=True)
    scale = np.sqrt((deviation**2).sum(axis=1).prod())
    return float((deviation[0] * deviation[1]).sum() / scale) if scale > 0 else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for i in order[start : end + 1]:
            ranks[i] = (start + end) / 2.0
        start = end + 1
    return ranks


def feasibility(predictions: Iterable[Prediction]) -> list[dict[str, object]]:
    """Count verdicts against what happened, for sources that report runs out of memory.

    ``false_oom`` are runs that fitted and were called out of memory, ``missed_oom`` runs out of
    memory that were called fitting; a tight plan is called neither.
    """
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        by_source[prediction.case.source_id].append(prediction)
    result: list[dict[str, object]] = []
    for source_id, members in by_source.items():
        failed = [p for p in members if p.case.out_of_memory]
        fitted = [p for p in members if not p.case.out_of_memory]
        if failed:
            result.append(
                {
                    "source_id": source_id,
                    "num_fit": len(fitted),
                    "num_oom": len(failed),
                    "false_oom": sum(not p.fits for p in fitted),
                    "missed_oom": sum(p.called_fitting for p in failed),
                }
            )
    return result
