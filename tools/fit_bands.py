"""Fit the 80 % bands of cluster profiles to residuals, on the fit side of the split.

    python tools/fit_bands.py RUNS.csv MODELS.csv [CLUSTER ...] [--write]

The half width of a band is linear in the shares of the step (all of it, communication, bubble,
host time), with weights of zero or more: those of a quantile regression. A profile is fitted to
the very runs whose residuals are at hand, which makes them smaller than those of a cluster or
model that nobody measured. So the residual of each group of model and cluster is the one that it
would have without its own pull on the profile (the profile moves by one Newton step), and the
quantile is raised where groups are few, by 10 % over their number. The band of the default profile
comes from predictions that use the default for every source.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, identity

from fit_profiles import (
    NOISE,
    PRESETS,
    Fit,
    Trial,
    chosen,
    prior_widths,
    read_fits,
    residuals,
    split_of,
    weights,
)
from meshplan.cost.timed import POSSIBLE
from meshplan.inputs.load.profile import cluster_profile, profile_of
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case
from meshplan.validate.run import read_cases
from meshplan.validate.table import read_models, read_table

NAMES = ("base", "communication", "bubble", "host")
LEAST_ROWS = 25
LARGEST = (0.2, 0.2, 0.2)  # more would rank plans by what few residuals happen to show
INSIDE = 0.8
FEW_GROUPS = 0.1
MEMORY_INSIDE = 0.82  # a little above 0.8, since the judge side lies further out
STEP = 1e-3


def shares(p: Prediction) -> list[float]:
    """Shares of a predicted step that the band is linear in."""
    traffic = sum(p.parts[n] for n in p.parts if n.endswith("comm_s"))
    total = p.step_time_s
    parts = (traffic, p.parts["bubble_s"], p.parts["other_s"])
    return [1.0, *(part / total for part in parts)]


def error_of(p: Prediction) -> float:
    """Logarithm of predicted over measured step time, without a stall that the band counts."""
    cluster = profile_of(p.case.scenario, p.case.plan.framework.name.lower()).cluster
    plan, measured = p.case.plan, p.case.measured_step_s()
    stall = cluster.stall_s * plan.num_micro_batches * (1.0 - 1.0 / plan.pp)
    chance = 1.0 - (1.0 - cluster.stall_share) ** p.case.scenario.cluster.num_nodes
    step = p.step_time_s
    if measured > step:
        step = min(step + stall * min(1.0, chance / POSSIBLE), measured)
    return float(np.log(step / measured))


def ratio(error: float) -> float:
    """Predicted and measured, the larger over the smaller, minus one."""
    return float(np.expm1(abs(error)))


def without_own_pull(fit: Fit, cases: list[Case]) -> dict[str, float]:
    """Errors of each group under the profile that was fitted without it, by row.

    Equation: with errors ``r``, slopes ``J``, weights ``W`` of the robust loss, prior ``P`` and
    ``g = J' W r + P (x - x0)``, leaving group ``k`` out moves the profile by
    ``A^-1 g - A_k^-1 g_k`` (the Newton step without the group, less the one with it), at most by
    the width of the prior.
    """
    trial = Trial(fit)
    x, centre, width = trial.start(cases), trial.centre(), prior_widths(trial)
    error = residuals(trial, cases, x)
    slope = np.stack(
        [(residuals(trial, cases, x + STEP * unit) - error) / STEP for unit in np.eye(len(x))],
        axis=1,
    )
    weight = (weights(cases) / NOISE) ** 2
    weight = weight / np.sqrt(1.0 + weight * error**2)  # soft l1
    prior = np.diag(1.0 / width**2)

    def newton(rows: np.ndarray) -> np.ndarray:
        pull = slope[rows].T @ (weight[rows] * error[rows]) + prior @ (x - centre)
        return np.linalg.solve(slope[rows].T @ (weight[rows, None] * slope[rows]) + prior, pull)

    groups = np.array([case.group for case in cases])
    names = set(groups)
    if len(names) == 1:
        return {}
    everyone = newton(np.ones(len(cases), dtype=bool))
    found = {}
    for name in names:
        own = groups == name
        moved = np.clip(everyone - newton(~own), -width, width)
        for i, value in zip(np.flatnonzero(own), error[own] + slope[own] @ moved, strict=True):
            found[cases[i].row_id] = float(value)
    return found


def fit(
    predictions: list[Prediction], errors: dict[str, float], *, largest: tuple[float, ...]
) -> np.ndarray:
    """Quantile regression with weights between zero and the largest allowed."""
    x = np.array([shares(p) for p in predictions])
    y = np.array([ratio(errors.get(p.case.row_id, error_of(p))) for p in predictions])
    num_groups = len({p.case.group for p in predictions})
    level = INSIDE + FEW_GROUPS / num_groups
    return quantile(x, y, [(0.01, None), *((0.0, most) for most in largest)], level=level)


def quantile(x: np.ndarray, y: np.ndarray, limits: list[tuple], *, level: float) -> np.ndarray:
    """Weights under which a share ``level`` of ``y`` lies below ``x`` times them."""
    n, k = x.shape
    # a small price keeps the base wide rather than a share that few rows have
    price = np.array([0.0] + [2e-4] * (k - 1))
    cost = np.concatenate([price, np.full(n, level / n), np.full(n, (1 - level) / n)])
    equal = hstack([csr_matrix(x), identity(n), -identity(n)])
    bounds = [*limits, *[(0, None)] * (2 * n)]
    found = linprog(cost, A_eq=equal, b_eq=y, bounds=bounds, method="highs")
    assert found.success, found.message
    return found.x[:k]


def unlike(p: Prediction) -> bool:
    """Runs whose error has a cause that no other cluster shares."""
    case = p.case
    odd_network = case.source_id == "hf-ultrascale" and case.scenario.cluster.num_gpus >= 64
    return odd_network or case.source_id == "megatron-ci-golden"


def inside(predictions: list[Prediction], band: np.ndarray) -> float:
    """Share of the runs inside a band."""
    hits = [ratio(error_of(p)) <= float(np.dot(shares(p), band)) for p in predictions]
    return sum(hits) / len(hits) if hits else float("nan")


def cases_with_memory(args: argparse.Namespace) -> list[Case]:
    """Cases whose peak memory was measured."""
    cases, _ = read_cases(read_table(args.runs, needs=()), read_models(args.models))
    return [case for case in cases if case.measured_bytes is not None]


def usable(p: Prediction) -> bool:
    """Toy models, whose memory is all constants, say nothing of real ones."""
    return p.case.source_id != "megatron-ci-golden" and p.memory_bytes > 0


def fit_memory(predictions: list[Prediction], side: dict[str, str]) -> dict[str, float]:
    """Quantile regression of the memory ratio on one and on the inverse of the size."""
    train = [p for p in predictions if side.get(p.case.group) == "fit"]
    judge = [p for p in predictions if side.get(p.case.group) != "fit"]

    def parts(chosen: list[Prediction]) -> tuple[np.ndarray, np.ndarray]:
        x = np.array([[1.0, 1e9 / p.memory_bytes] for p in chosen])
        r = np.array([p.memory_bytes / p.case.measured_bytes for p in chosen])
        return x, np.maximum(r, 1.0 / r) - 1.0

    x, y = parts(train)
    band = quantile(x, y, [(0.01, None), (0.0, None)], level=MEMORY_INSIDE)
    for name, own in (("fit", train), ("judge", judge)):
        xs, ys = parts(own)
        print(f"memory, {name}: {np.mean(ys <= xs @ band):.2f} of {len(own)} inside")
    values = {
        "memory_share": round(float(band[0]), 3),
        "memory_fixed_bytes": round(float(band[1]) * 1e9, -6),
    }
    print("memory:", values)
    return values


def main() -> None:
    """Fit the band of every profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("clusters", nargs="*", help="all when none is named")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    cases, _ = read_cases(read_table(args.runs, needs=()), read_models(args.models))
    cases = [case for case in cases if case.measured is not None]
    side = split_of(cases)
    own = predict(cases, memory=False)
    default = cluster_profile("default")
    with_default = predict(
        cases,
        memory=False,
        profile=lambda scenario, name: replace(profile_of(scenario, name), cluster=default),
    )
    by_cluster: dict[str, list[Prediction]] = defaultdict(list)
    for p in own:
        by_cluster[p.case.scenario.cluster.profile].append(p)
    # what holds for one cluster or for toy models says nothing of others
    by_cluster["default"] = [p for p in with_default if not unlike(p)]
    memory = fit_memory([p for p in predict(cases_with_memory(args)) if usable(p)], side)
    errors: dict[str, float] = {}
    for one in read_fits():
        if args.clusters and one.cluster not in args.clusters:
            continue
        train = [c for c in chosen(one, cases) if side.get(c.group) == "fit"]
        errors |= without_own_pull(one, train) if train else {}
    text = PRESETS.read_text("utf-8")
    head, sep, tail = text.partition("clusters:\n")
    for name, predictions in sorted(by_cluster.items()):
        if args.clusters and name not in args.clusters:
            continue
        train = [p for p in predictions if side.get(p.case.group) == "fit"]
        judge = [p for p in predictions if side.get(p.case.group) != "fit"]
        if len(train) < LEAST_ROWS:
            print(f"{name}: {len(train)} rows to fit, too few: the default band holds")
            continue
        band = fit(train, {} if name == "default" else errors, largest=LARGEST)
        values = {n: round(float(v), 3) for n, v in zip(NAMES, band, strict=True)}
        print(
            f"{name}: {values} inside: fit {inside(train, band):.2f} of {len(train)}, "
            f"judge {inside(judge, band):.2f} of {len(judge)}"
        )
        line = "{" + ", ".join(f"{n}: {v:g}" for n, v in values.items()) + "}"
        if name == "default":
            line = line[:-1] + "".join(f", {n}: {v:g}" for n, v in memory.items()) + "}"
            head = re.sub(r"\n  band: \{.*\}", f"\n  band: {line}", head)
        else:
            pattern = rf"(\n  {re.escape(name)}:\n(?:    (?!band).*\n)*)(?:    band: .*\n)?"
            new = re.sub(pattern, rf"\g<1>    band: {line}\n", "\n" + tail, count=1)
            tail = new[1:]
    if args.write:
        PRESETS.write_text(head + sep + tail, "utf-8")


if __name__ == "__main__":
    main()
