"""Errors of predictions, ranking of layouts, and feasibility."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from meshplan.space.plan import Plan
from meshplan.validate.predict import Prediction

__all__ = [
    "Layouts",
    "coverage",
    "errors",
    "feasibility",
    "memory_coverage",
    "spearman",
    "strict_sweeps",
    "sweeps",
]

_LEAST_LAYOUTS = 3
Layouts = dict[Plan, list[Prediction]]


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


def memory_coverage(predictions: Iterable[Prediction]) -> float | None:
    """Return the share of measured peaks inside the predicted band."""
    inside = [
        p.memory_low_bytes <= p.case.measured_bytes <= p.memory_high_bytes
        for p in predictions
        if p.case.measured_bytes is not None
    ]
    return sum(inside) / len(inside) if inside else None


def strict_sweeps(predictions: Iterable[Prediction]) -> dict[tuple[str, ...], Layouts]:
    """Collect the runs of strict sweeps by layout.

    Returns:
        By ``(source_id, sweep_id, *sweep_key)``, the runs of each layout.
    """
    rows: dict[tuple[str, ...], Layouts] = defaultdict(lambda: defaultdict(list))
    for prediction in predictions:
        case = prediction.case
        if case.sweep_id and case.measured is not None:
            key = (case.source_id, case.sweep_id, *case.sweep_key)
            rows[key][case.plan].append(prediction)
    return {key: layouts for key, layouts in rows.items() if len(layouts) >= _LEAST_LAYOUTS}


def sweeps(predictions: Iterable[Prediction]) -> list[dict[str, object]]:
    """Rank the layouts of every strict sweep.

    A strict sweep has one model, cluster, batch and attention, and three layouts or more; repeats
    of a layout count once, with their median. The pick is the layout whose pessimistic end of the
    band is lowest. Its regret is its measured time over the best one, minus one. All layouts of a
    sweep ran, so that memory is out of the question; ``regret_fitting`` is the regret of a search
    that does not know so, and picks one that is tight in memory or called too large only where no
    other is left.
    """
    result: list[dict[str, object]] = []
    for key, layouts in strict_sweeps(predictions).items():
        measured = [median(m.case.measured_step_s() for m in group) for group in layouts.values()]
        ranked = [group[0].high_s for group in layouts.values()]
        fitting = [(not group[0].called_fitting, group[0].high_s) for group in layouts.values()]
        pick = min(range(len(ranked)), key=ranked.__getitem__)
        careful = min(range(len(fitting)), key=fitting.__getitem__)
        result.append(
            {
                "source_id": key[0],
                "sweep_id": key[1],
                "attention_impl": key[3],
                "num_layouts": len(layouts),
                "regret": measured[pick] / min(measured) - 1.0,
                "regret_fitting": measured[careful] / min(measured) - 1.0,
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
