"""Learn how clusters differ and how runs scatter: the prior of ``meshplan calibrate``.

    python tools/fit_calibration.py RUNS.csv MODELS.csv [--write]

Every source on the fit side of the split is a cluster that nobody measured: it is predicted with
the defaults that were made without it. Of each of its sweeps, and of each group of model and
cluster that belongs to none, four runs are drawn, several times, and the numbers of the prior are
those with which three of the four predict the last one best: the mean logarithm of how likely it
is, each of the four being the last one in turn. Every source has the same weight, of which the part
of its groups of one run is lost: they do not say how runs predict each other. Toy models and times
that were put together from parts say nothing of clusters and are left out.
``tools/calibration_priors.yaml`` holds the same learned without each source that has sweeps to
judge calibration by.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from zlib import crc32

import numpy as np
import yaml
from scipy.optimize import minimize

from accuracy_calibrated import LEAST_RUNS, PRIORS, defaults_without, sweeps_of
from fit_profiles import ROOT, split_of
from meshplan.inputs.load.profile import profile_of
from meshplan.validate.calibrate import Slopes, apart_of, slopes_of
from meshplan.validate.posterior import log_evidence
from meshplan.validate.predict import predict
from meshplan.validate.prior import Prior, usual_prior
from meshplan.validate.rows import Case
from profile_defaults import TOY_SOURCES
from run_tables import cases_of, tables_parser, timed

SHIPPED = ROOT / "src" / "meshplan" / "validate" / "calibration.yaml"
DRAWN = 4  # three runs that are given and one that is predicted
LEAST_DRAWN = 2  # a run alone is predicted by no other
MOST_ROWS = 8  # of one unit
NUM_DRAWS = 8
# numbers that are learned, with a start
START = {
    "common": 0.1,
    "common_spread": 0.7,
    "network": 0.1,
    "kernels": 0.15,
    "host": 0.1,
    "each": 0.1,
    "noise": 0.05,
    "noise_spread": 1.0,
    "alike": 0.5,
    "reach": 2.0,
    "wait_chance": 0.1,
}
SHARES = ("alike", "wait_chance")  # between nought and one
KNOWN = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0)  # widths of clusters with a profile
HELD = 1.0  # how far off a start may be, which holds what few sources tell
NUM_SOURCES = 22  # as many as there are: the start weighs as one of them


@dataclass(frozen=True)
class Unit:
    """Runs of one model on one cluster: their source and group, errors and slopes."""

    key: tuple[str, ...]
    errors: np.ndarray
    slopes: Slopes
    apart: np.ndarray

    @property
    def source_id(self) -> str:
        """The source."""
        return self.key[0]


def units_of(cases: list[Case], *, known: bool = False) -> list[Unit]:
    """Group cases; errors and slopes by the defaults without their source, or by its profile."""
    groups: dict[tuple, list[Case]] = defaultdict(list)
    for case in cases:
        key = (case.sweep_id, *case.sweep_key) if case.sweep_id else (case.group,)
        groups[(case.source_id, *key)].append(case)
    found = []
    for key, own in sorted(groups.items()):
        if len(own) > MOST_ROWS:
            rng = np.random.default_rng(crc32(repr(key).encode()))
            own = [own[i] for i in sorted(rng.choice(len(own), MOST_ROWS, replace=False))]
        start = profile_of if known else defaults_without(key[0])
        found.append(
            Unit(
                key=key,
                errors=errors_of(own, start),
                slopes=slopes_of(own, profile=start),
                apart=apart_of(own),
            )
        )
    return found


def errors_of(cases: list[Case], profile) -> np.ndarray:
    """Logarithm of predicted over measured step time."""
    made = predict(cases, memory=False, profile=profile)
    return np.array([np.log(p.step_time_s / p.case.measured_step_s()) for p in made])


@dataclass(frozen=True)
class Draws:
    """Sets of runs of equal number, whose micro-batches pass through a pipeline or do not."""

    errors: np.ndarray
    moves: np.ndarray
    per_wait: np.ndarray | None
    apart: np.ndarray
    weight: np.ndarray

    def unlikely(self, prior: Prior, *, known: bool = False) -> float:
        """Minus the mean logarithm of how likely the others make each, times the weights."""
        every = np.arange(self.errors.shape[-1])
        others = np.mean([self._evidence(np.delete(every, i), prior, known) for i in every], axis=0)
        return float(self.weight @ (others - self._evidence(every, prior, known)))

    def _evidence(self, runs: np.ndarray, prior: Prior, known: bool) -> np.ndarray:
        """Logarithm of how likely some runs of each set are, by their places in it."""
        return log_evidence(
            self.errors[:, runs],
            self.moves[:, runs],
            prior=prior,
            known=known,
            share_per_wait=None if self.per_wait is None else self.per_wait[:, runs],
            apart=self.apart[:, runs][:, :, runs],
        )


def draws_of(units: list[Unit], without: Collection[str] = ()) -> list[Draws]:
    """Draw runs of every unit; each source weighs alike, and in it each unit by its runs.

    A run without others says nothing of how runs predict each other: its weight is lost.
    What is drawn of a unit does not depend on the others, so that leaving a source out changes
    nothing else.
    """
    kept = [unit for unit in units if unit.source_id not in without]
    total: dict[str, float] = defaultdict(float)
    for unit in kept:
        total[unit.source_id] += min(len(unit.errors), DRAWN)
    found = defaultdict(list)
    for unit in kept:
        size = len(unit.errors)
        number = min(size, DRAWN)
        if number < LEAST_DRAWN:
            continue
        times = NUM_DRAWS if size > DRAWN else 1
        rng = np.random.default_rng(crc32(repr(unit.key).encode()))
        for _ in range(times):
            index = np.sort(rng.choice(size, number, replace=False))
            waits = bool(unit.slopes.per_wait[index].any())
            weight = number / total[unit.source_id] / times / len(total)
            found[number, waits].append((unit, index, weight))
    return [
        Draws(
            errors=np.array([unit.errors[i] for unit, i, _ in group]),
            moves=np.array([unit.slopes.moves[i] for unit, i, _ in group]),
            per_wait=np.array([unit.slopes.per_wait[i] for unit, i, _ in group]) if waits else None,
            apart=np.array([unit.apart[np.ix_(i, i)] for unit, i, _ in group]),
            weight=np.array([weight for _, _, weight in group]),
        )
        for (_, waits), group in found.items()
    ]


def learn(draws: list[Draws], start: Prior, *, most: int) -> Prior:
    """Find the numbers with which the runs of the draws predict each other best."""
    centre = np.log(list(START.values()))

    def at(x: np.ndarray) -> dict[str, float]:
        """Numbers from their logarithms; a share is varied by its odds."""
        varied = zip(START, np.exp(x).tolist(), strict=True)
        return {name: v / (1.0 + v) if name in SHARES else v for name, v in varied}

    def objective(x: np.ndarray) -> float:
        numbers = at(x)
        away = (np.log(list(numbers.values())) - centre) / HELD
        held = 0.5 * float((away**2).sum()) / NUM_SOURCES
        return sum(some.unlikely(replace(start, **numbers)) for some in draws) + held

    begin = {name: getattr(start, name) for name in START}
    first = np.log([v / (1.0 - v) if name in SHARES else v for name, v in begin.items()])
    options = {"maxiter": most, "ftol": 1e-6, "eps": 0.003}
    found = minimize(objective, first, method="L-BFGS-B", options=options)
    return replace(start, **at(found.x))


def print_known(sides: dict[str, list[Case]], prior: Prior) -> None:
    """Print how well runs predict each other by how far clusters with a profile move."""
    draws = {
        name: draws_of(units_of([c for c in cases if has_profile(c)], known=True))
        for name, cases in sides.items()
    }
    for width in KNOWN:
        likely = {
            name: -sum(some.unlikely(replace(prior, known=width), known=True) for some in own)
            for name, own in draws.items()
        }
        shown = ", ".join(f"{name} {value:.4f}" for name, value in likely.items())
        print(f"clusters with a profile, widths times {width}: {shown}", flush=True)


def has_profile(case: Case) -> bool:
    """Whether the cluster of a run has a profile of its own."""
    return profile_of(case.scenario, case.plan.framework.name.lower()).cluster.name != "default"


def rounded(prior: Prior) -> dict[str, float]:
    """Learned numbers as they are written."""
    return {name: float(f"{getattr(prior, name):.3g}") for name in START}


def main() -> None:
    """Learn the prior, and those without one source each."""
    args = tables_parser(__doc__).parse_args()
    cases = timed(cases_of(args))
    side = split_of(cases)
    judged = sorted({key[0] for key, own in sweeps_of(cases).items() if len(own) >= LEAST_RUNS})
    runs = [c for c in cases if not c.composed and c.source_id not in TOY_SOURCES]
    train, judge = ([c for c in runs if (side[c.group] == "fit") == fit] for fit in (True, False))
    units = units_of(train)
    print(f"{len(train)} runs in {len(units)} units of {len({u.source_id for u in units})} sources")
    assumed = {k: v for k, v in yaml.safe_load(SHIPPED.read_text("utf-8"))["assumed"].items()}
    start = replace(usual_prior(), **START)
    draws = draws_of(units)
    prior = learn(draws, start, most=60)
    print("all sources:", rounded(prior), flush=True)
    print_known({"fit side": train, "judge side": judge}, prior)
    without = {}
    for source in judged:
        found = learn(draws_of(units, (source,)), prior, most=25)
        without[source] = rounded(found)
        print(f"without {source}:", without[source], flush=True)
    if args.write:
        shipped = SHIPPED.read_text("utf-8")
        line = ", ".join(f"{k}: {v:g}" for k, v in rounded(prior).items())
        shipped, n = re.subn(r"fitted: \{[^}]*\}", f"fitted: {{{line}}}", shipped)
        assert n == 1
        SHIPPED.write_text(shipped, "utf-8")
        head = PRIORS.read_text("utf-8").split("\n\n")[0] if PRIORS.exists() else "# priors"
        PRIORS.write_text(head + "\n\n" + yaml.safe_dump(without), "utf-8")
    assert {f.name for f in fields(Prior)} == {*START, *assumed}


if __name__ == "__main__":
    main()
