"""What the measured runs allow: the errors and regrets that repeats of one layout leave.

A forecast of a layout is one number, and repeats of the layout are several. A perfect forecast
knows the middle of the repeats, and still misses each by what they lie apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from meshplan.validate.metrics import strict_sweeps
from meshplan.validate.predict import Prediction

DRAWS = 2000


def repeats(predictions: Sequence[Prediction]) -> list[np.ndarray]:
    """Logarithms of measured step times of the layouts that a source ran more than once.

    Rows that say the same to three digits are one run that a source lists twice.
    """
    groups: dict[tuple, set[float]] = defaultdict(set)
    for p in predictions:
        key = (p.case.source_id, p.case.scenario, p.case.plan)
        groups[key].add(float(f"{p.case.measured_step_s():.3g}"))
    return [np.log(sorted(times)) for times in groups.values() if len(times) > 1]


def least_errors(predictions: Sequence[Prediction]) -> list[float]:
    """Errors of a forecast that knows the median of the repeats of each layout.

    Of two repeats the median lies between, so that both miss by half of what they lie apart.
    """
    return [
        float(np.expm1(abs(value)))
        for times in repeats(predictions)
        for value in times - np.median(times)
    ]


def least_regret(predictions: Sequence[Prediction]) -> dict[str, float | None]:
    """Mean regret by source of a search that knows the middle of every layout.

    The measured time of each layout of a sweep stands for its middle. Runs of all layouts are
    drawn around it, with the deviations between repeats of one layout of that source; the pick is
    the layout with the best middle, its regret that among the drawn runs. None without repeats.
    """
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        by_source[p.case.source_id].append(p)
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = defaultdict(list)
    for key, layouts in strict_sweeps(predictions).items():
        middle = [np.median([p.case.measured_step_s() for p in runs]) for runs in layouts.values()]
        spread = deviations(by_source[key[0]])
        if len(spread):
            drawn = np.array(middle) * np.exp(rng.choice(spread, (DRAWS, len(middle))))
            regret = drawn[:, int(np.argmin(middle))] / drawn.min(axis=1) - 1.0
            found[key[0]].append(float(np.mean(regret)))
    return {name: float(np.mean(own)) for name, own in found.items()}


def deviations(predictions: Sequence[Prediction]) -> np.ndarray:
    """Deviations of repeats from the mean of their layout, as wide as those from the true mean."""
    found = [
        (times - times.mean()) * np.sqrt(len(times) / (len(times) - 1.0))
        for times in repeats(predictions)
    ]
    return np.concatenate(found) if found else np.zeros(0)
