"""Sweeps of a cluster that nobody measured, predicted with and without three of their runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from accuracy_page import percent
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import ClusterProfile, FrameworkProfile
from meshplan.validate.calibrate import calibrate
from meshplan.validate.predict import predict
from meshplan.validate.rows import Case
from profile_defaults import default_cluster, default_framework

LEAST_RUNS = 6
NUM_DRAWS = 3
STILL = 1e-6
"""Change of an error below which nothing moved."""


@dataclass(frozen=True)
class Calibrated:
    """Mean absolute errors of the runs of one sweep that were not given.

    Attributes:
        source_id: the source.
        sweep: the sweep.
        drawn: the three runs were drawn, and not those that stand first, middle and last.
        before: without the three runs.
        after: with them.
    """

    source_id: str
    sweep: str
    drawn: bool
    before: float
    after: float


def calibrated_sweeps(cases: list[Case]) -> list[Calibrated]:
    """Give three runs of every sweep with six runs and more, and predict the others.

    The three stand first, in the middle and last of the table, or are drawn.
    """
    groups: dict[tuple, list[Case]] = defaultdict(list)
    for case in cases:
        if case.sweep_id:
            groups[(case.source_id, case.sweep_id, *case.sweep_key)].append(case)
    found = []
    for key, own in sorted(groups.items()):
        if len(own) < LEAST_RUNS:
            continue
        own = sorted(own, key=lambda case: case.row_id)
        rng = np.random.default_rng(sum(map(ord, "".join(key))))
        chosen = [np.array([0, len(own) // 2, len(own) - 1])]
        chosen += [rng.choice(len(own), 3, replace=False) for _ in range(NUM_DRAWS)]
        name = " ".join(part for part in (key[1], *key[3:]) if part)
        for draw, given in enumerate(chosen):
            before, after = _errors(own, set(given.tolist()))
            found.append(Calibrated(key[0], name, draw > 0, before, after))
    return found


def _errors(own: list[Case], given: set[int]) -> tuple[float, float]:
    """Mean error of the others without and with some runs of a sweep.

    Both start from the defaults that were made without the source.
    """
    source = own[0].source_id

    def start(scenario, name):
        framework, cluster = _defaults(source, name, scenario.variant)
        return replace(profile_of(scenario, name), framework=framework, cluster=cluster)

    found = calibrate([own[i] for i in sorted(given)], profile=start)
    rest = [case for i, case in enumerate(own) if i not in given]
    made = [
        predict(rest, memory=False, profile=start),
        predict(
            rest,
            memory=False,
            profile=lambda s, f: replace(start(s, f), cluster=found.profile),
        ),
    ]
    before, after = (float(np.mean([abs(p.error) for p in own])) for own in made)
    return before, after


@lru_cache(maxsize=256)
def _defaults(source: str, framework: str, variant: str) -> tuple[FrameworkProfile, ClusterProfile]:
    """The defaults that were made without a source."""
    return default_framework(framework, variant, source), default_cluster(source)


def by_source(found: list[Calibrated]) -> list[list[str]]:
    """Median errors of the sweeps of each source before and after, and how many moved how."""
    rows = []
    for source in dict.fromkeys(one.source_id for one in found):
        own = [one for one in found if one.source_id == source]
        for drawn in (False, True):
            part = [one for one in own if one.drawn is drawn]
            better = sum(one.after < one.before - STILL for one in part)
            worse = sum(one.after > one.before + STILL for one in part)
            rows.append(
                [
                    source,
                    "drawn" if drawn else "first, middle, last",
                    str(len(part)),
                    *(percent(float(np.mean([getattr(o, n) for o in part]))) for n in ENDS),
                    *(percent(float(np.median([getattr(o, n) for o in part]))) for n in ENDS),
                    f"{better} / {worse}",
                ]
            )
    return rows


ENDS = ("before", "after")


def by_sweep(found: list[Calibrated]) -> list[list[str]]:
    """Errors before and after of each sweep that moved, with its first, middle and last run."""
    return [
        [one.source_id, one.sweep, percent(one.before), percent(one.after)]
        for one in found
        if not one.drawn and abs(one.after - one.before) > STILL
    ]
