"""What the measured runs allow: the errors and regrets that repeats of one layout leave.

A forecast of a layout is one number, and repeats of the layout are several. A perfect forecast
knows the middle of the repeats, and still misses each by what they lie apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from accuracy_page import percent, sweep_name
from meshplan.space.plan import Plan
from meshplan.validate.metrics import Layouts, strict_sweeps
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


def least_regrets(predictions: Sequence[Prediction]) -> dict[tuple[str, ...], float]:
    """Expected regret in each strict sweep of a search that knows the middle of every layout.

    The measured time of each layout of a sweep stands for its middle. Runs of all layouts are
    drawn around it, with the deviations between repeats of one layout of that source; the pick is
    the layout with the best middle, its regret that among the drawn runs. Sweeps of sources
    without repeats are left out.
    """
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        by_source[p.case.source_id].append(p)
    spreads = {name: deviations(own) for name, own in by_source.items()}
    rng = np.random.default_rng(0)
    found = {}
    for key, layouts in strict_sweeps(predictions).items():
        middle = np.array(list(measured_times(layouts).values()))
        spread = spreads[key[0]]
        if len(spread):
            drawn = middle * np.exp(rng.choice(spread, (DRAWS, len(middle))))
            regret = drawn[:, int(np.argmin(middle))] / drawn.min(axis=1) - 1.0
            found[key] = float(np.mean(regret))
    return found


def least_regret(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Mean of :func:`least_regrets` by source."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for key, regret in least_regrets(predictions).items():
        by_source[key[0]].append(regret)
    return {name: float(np.mean(own)) for name, own in by_source.items()}


def measured_times(layouts: Layouts) -> dict[Plan, float]:
    """Median measured step time of each layout [s]."""
    return {
        plan: float(np.median([p.case.measured_step_s() for p in runs]))
        for plan, runs in layouts.items()
    }


def worst_picks(predictions: Sequence[Prediction], most: int = 12) -> list[list[str]]:
    """The strict sweeps with the largest regret: what was picked, and what was fastest."""
    least = least_regrets(predictions)
    rows = []
    for key, layouts in strict_sweeps(predictions).items():
        times = measured_times(layouts)
        pick = min(layouts, key=lambda plan, layouts=layouts: layouts[plan][0].high_s)
        best = min(times, key=times.__getitem__)
        told = [describe(plan, times[plan], layouts[plan][0]) for plan in (pick, best)]
        regret = times[pick] / times[best] - 1.0
        rows.append((regret, sweep_name(key), len(layouts), least.get(key), told))
    rows.sort(key=lambda row: -row[0])
    return [
        [name, str(count), percent(regret), percent(floor), *told]
        for regret, name, count, floor, told in rows[:most]
    ]


def describe(plan: Plan, measured_s: float, prediction: Prediction) -> str:
    """A layout, its measured and its predicted step time."""
    degrees = f"TP {plan.tp} PP {plan.pp} DP {plan.dp}"
    batches = f"{plan.num_micro_batches} x {plan.micro_batch}"
    times = f"{measured_s:.3g} s ({prediction.step_time_s:.3g} s)"
    again = " recompute" if plan.recompute else ""
    return f"{degrees} ZeRO-{plan.zero} {batches}{again}: {times}"


def deviations(predictions: Sequence[Prediction]) -> np.ndarray:
    """Deviations of repeats from the mean of their layout, as wide as those from the true mean."""
    found = [
        (times - times.mean()) * np.sqrt(len(times) / (len(times) - 1.0))
        for times in repeats(predictions)
    ]
    return np.concatenate(found) if found else np.zeros(0)
