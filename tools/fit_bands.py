"""Fit the 80 % bands of cluster profiles to residuals, on the fit side of the split.

    python tools/fit_bands.py RUNS.csv MODELS.csv [--write]

The half width of a band is linear in the shares of the step (all of it, communication, bubble,
host time) with weights of zero or more. The weights are those of a quantile regression: 80 % of
the fit side lies inside. The band of the default profile comes from predictions that use the
default for every source, those of a named profile from its own runs.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from fit_profiles import PRESETS, split_of
from meshplan.inputs.load.profile import cluster_profile, profile_of
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case
from meshplan.validate.run import read_cases
from meshplan.validate.table import read_models, read_table

NAMES = ("base", "communication", "bubble", "host")
LEAST_ROWS = 25
# a part is hardly more wrong than by itself, but on one cluster whose network fails (docs)
LARGEST = {"hf-cluster": (5.0, 60.0, 5.0)}
QUANTILE = 0.82  # a little above 0.8, since the judge side lies further out


def shares(p: Prediction) -> list[float]:
    """Shares of a predicted step that the band is linear in."""
    traffic = sum(p.parts[n] for n in p.parts if n.endswith("comm_s"))
    total = p.step_time_s
    return [1.0, traffic / total, p.parts["bubble_s"] / total, p.parts["other_s"] / total]


def ratio(p: Prediction) -> float:
    """Predicted and measured, the larger over the smaller, minus one."""
    r = p.step_time_s / p.case.measured_step_s()
    return max(r, 1.0 / r) - 1.0


def fit(predictions: list[Prediction], *, largest: tuple[float, ...]) -> np.ndarray:
    """Quantile regression with weights between zero and the largest allowed."""
    x = np.array([shares(p) for p in predictions])
    y = np.array([ratio(p) for p in predictions])
    return quantile(x, y, [(0.01, None), *((0.0, most) for most in largest)])


def quantile(x: np.ndarray, y: np.ndarray, limits: list[tuple]) -> np.ndarray:
    """Weights under which a share ``QUANTILE`` of ``y`` lies below ``x`` times them."""
    n, k = x.shape
    # a small price keeps the base wide rather than a share that few rows have
    price = np.array([0.0] + [2e-4] * (k - 1))
    cost = np.concatenate([price, np.full(n, QUANTILE / n), np.full(n, (1 - QUANTILE) / n)])
    equal = np.hstack([x, np.eye(n), -np.eye(n)])
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
    hits = [ratio(p) <= float(np.dot(shares(p), band)) for p in predictions]
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
    band = quantile(x, y, [(0.01, None), (0.0, None)])
    for name, chosen in (("fit", train), ("judge", judge)):
        xs, ys = parts(chosen)
        print(f"memory, {name}: {np.mean(ys <= xs @ band):.2f} of {len(chosen)} inside")
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
    text = PRESETS.read_text("utf-8")
    head, sep, tail = text.partition("clusters:\n")
    for name, predictions in sorted(by_cluster.items()):
        train = [p for p in predictions if side.get(p.case.group) == "fit"]
        judge = [p for p in predictions if side.get(p.case.group) != "fit"]
        if len(train) < LEAST_ROWS:
            print(f"{name}: {len(train)} rows to fit, too few: the default band holds")
            continue
        band = fit(train, largest=LARGEST.get(name, (1.0, 1.0, 1.0)))
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
