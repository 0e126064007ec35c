"""Sweeps predicted with and without three of their runs, on clusters with and without a profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import yaml

from accuracy_page import ROOT, percent, sweep_name
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.profile import ClusterProfile, FrameworkProfile, Profile
from meshplan.inputs.scenario import Scenario
from meshplan.validate.calibrate import Calibration, calibrate, slopes_of
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.prior import Prior, usual_prior
from meshplan.validate.rows import Case
from profile_defaults import default_cluster, default_framework

PRIORS = ROOT / "tools" / "calibration_priors.yaml"
LEAST_RUNS = 6
NUM_DRAWS = 20
STILL = 1e-6
"""Change of an error below which nothing moved."""


@dataclass(frozen=True)
class Calibrated:
    """Mean absolute errors of the runs of one sweep that were not given.

    Attributes:
        source_id: the source.
        sweep: the sweep.
        known: the cluster has its profile, which other runs of it and some of these made.
        drawn: the three runs were drawn, and not those that stand first, middle and last.
        before: without the three runs.
        after: with them.
        one_factor: with the one factor on all predictions that leaves least, chosen in hindsight.
        inside: share of the others inside the band that the three leave.
        half_width: of that band, as a share of the step, in the median.
    """

    source_id: str
    sweep: str
    known: bool
    drawn: bool
    before: float
    after: float
    one_factor: float
    inside: float
    half_width: float


def sweeps_of(cases: list[Case]) -> dict[tuple[str, ...], list[Case]]:
    """Runs by sweep, in the order of their rows."""
    groups: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in cases:
        if case.sweep_id:
            groups[(case.source_id, case.sweep_id, *case.sweep_key)].append(case)
    return {key: sorted(own, key=lambda c: c.row_id) for key, own in sorted(groups.items())}


def calibrated_sweeps(
    cases: list[Case], *, known: bool = False, num_draws: int = NUM_DRAWS
) -> list[Calibrated]:
    """Give three runs of every sweep with six runs and more, and predict the others.

    The three stand first, in the middle and last of the table, or are drawn. Defaults and prior
    are those that were made without the source, unless its profile is ``known``.
    """
    found = []
    for key, own in sweeps_of(cases).items():
        if len(own) < LEAST_RUNS:
            continue
        rng = np.random.default_rng(sum(map(ord, "".join(key))))
        chosen = [np.array([0, len(own) // 2, len(own) - 1])]
        chosen += [rng.choice(len(own), 3, replace=False) for _ in range(num_draws)]
        name = sweep_name(key)
        sweep = _Sweep(own, known=known)
        for draw, given in enumerate(chosen):
            found.append(Calibrated(key[0], name, known, draw > 0, *sweep.errors(np.sort(given))))
    return found


class _Sweep:
    """One sweep, on a cluster that nobody measured or on one whose profile is known."""

    def __init__(self, cases: list[Case], *, known: bool) -> None:
        source = cases[0].source_id
        self._cases, self._start = cases, profile_of if known else defaults_without(source)
        self._slopes = slopes_of(cases, profile=self._start)
        self._prior = usual_prior() if known else prior_without(source)
        made = predict(cases, memory=False, profile=self._start)
        self._before = np.array([p.error for p in made])

    def errors(self, given: np.ndarray) -> tuple[float, float, float, float, float]:
        """Mean error of the others without some runs, with them, and with the best one factor.

        Then share of the others inside the band that these runs leave, and its half width.
        """
        found = calibrate(
            [self._cases[i] for i in given],
            profile=self._start,
            slopes=self._slopes.take(given),
            prior=self._prior,
        )
        rest = [i for i in range(len(self._cases)) if i not in set(given.tolist())]
        made = self._with(found, [self._cases[i] for i in rest])
        inside = [p.low_s <= p.case.measured_step_s() <= p.high_s for p in made]
        width = [p.high_s / p.step_time_s - 1.0 for p in made]
        after = float(np.mean([abs(p.error) for p in made]))
        before = float(np.mean(np.abs(self._before[rest])))
        one_factor = least_error(1.0 + self._before[rest])
        return before, after, one_factor, float(np.mean(inside)), float(np.median(width))

    def _with(self, found: Calibration, cases: list[Case]) -> list[Prediction]:
        def calibrated(scenario: Scenario, framework: str) -> Profile:
            own = self._start(scenario, framework)
            band = replace(own.band, base=found.base_share)
            return replace(own, cluster=found.profile, band=band, residuals=found.residuals)

        return predict(cases, memory=False, profile=calibrated)


def least_error(ratios: np.ndarray) -> float:
    """Least mean error of predictions that are all changed by one factor.

    It is least where one of them is exact: the mean of ``|factor * ratio - 1|`` has its corners
    there.

    Args:
        ratios: predicted over measured, ``(n,)``.
    """
    return float(np.abs(ratios / ratios[:, None] - 1.0).mean(axis=1).min())


def defaults_without(source: str) -> Callable[[Scenario, str], Profile]:
    """The profiles that were made without a source, with the band of a cluster without profile."""

    def start(scenario: Scenario, name: str) -> Profile:
        architecture = scenario.cluster.device.architecture
        framework, cluster = _defaults(source, name, scenario.variant, architecture)
        unmeasured = replace(scenario, cluster=replace(scenario.cluster, profile="default"))
        return replace(profile_of(unmeasured, name), framework=framework, cluster=cluster)

    return start


def prior_without(source: str) -> Prior:
    """How clusters differ, as learned without a source.

    Raises:
        SystemExit: where it was never learned without that source.
    """
    learned = _priors().get(source)
    if learned is None:
        raise SystemExit(
            f"{PRIORS.name} has none without {source!r}: run tools/fit_calibration.py --write"
        )
    return replace(usual_prior(), **learned)


@lru_cache(maxsize=1)
def _priors() -> dict[str, dict[str, float]]:
    return yaml.safe_load(PRIORS.read_text("utf-8"))


@lru_cache(maxsize=256)
def _defaults(
    source: str, framework: str, variant: str, architecture: str
) -> tuple[FrameworkProfile, ClusterProfile]:
    """The defaults that were made without a source."""
    return default_framework(framework, variant, source), default_cluster(source, architecture)


def by_source(found: list[Calibrated]) -> list[list[str]]:
    """Errors of the sweeps of each source before and after, and how many moved how."""
    rows = []
    for source in dict.fromkeys(one.source_id for one in found):
        own = [one for one in found if one.source_id == source]
        for drawn in (False, True):
            part = [one for one in own if one.drawn is drawn]
            sweeps = mean_by_sweep(part)
            better = sum(one.after < one.before - STILL for one in part)
            worse = sum(one.after > one.before + STILL for one in part)
            name = max(sweeps, key=lambda s: sweeps[s][1] - sweeps[s][0])
            same = sum(abs(before - after) <= STILL for before, after, _ in sweeps.values())
            gained = sum(after < before - STILL for before, after, _ in sweeps.values())
            rows.append(
                [
                    source,
                    "drawn" if drawn else "first, middle, last",
                    str(len(part)),
                    *(percent(float(np.mean([getattr(o, n) for o in part]))) for n in ENDS),
                    *(percent(float(np.median([getattr(o, n) for o in part]))) for n in ENDS),
                    f"{better} / {worse}",
                    f"{gained} / {same} / {len(sweeps) - gained - same}",
                    " → ".join(percent(value) for value in sweeps[name][:2]),
                    percent(float(np.mean([o.inside for o in part]))),
                    percent(float(np.median([o.half_width for o in part]))),
                ]
            )
    return rows


ENDS = ("before", "after")


def mean_by_sweep(found: list[Calibrated]) -> dict[str, tuple[float, float, float]]:
    """Mean errors of each sweep over its draws: before, after, and with one factor in hindsight."""
    groups: dict[str, list[Calibrated]] = defaultdict(list)
    for one in found:
        groups[one.sweep].append(one)
    return {
        name: (
            float(np.mean([o.before for o in own])),
            float(np.mean([o.after for o in own])),
            float(np.mean([o.one_factor for o in own])),
        )
        for name, own in groups.items()
    }


def by_sweep(found: list[Calibrated], known: list[Calibrated]) -> list[list[str]]:
    """Errors before and after of each sweep, in the mean over the draws.

    Args:
        found: on clusters without a profile.
        known: on clusters that have theirs.
    """
    rows = []
    for source in dict.fromkeys(one.source_id for one in found):
        new, old = (
            mean_by_sweep([one for one in some if one.source_id == source and one.drawn])
            for some in (found, known)
        )
        for name, errors in new.items():
            before, after, _ = old[name]
            rows.append([source, name, *(percent(value) for value in (*errors, before, after))])
    return rows
