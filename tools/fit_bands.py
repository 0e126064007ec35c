"""Fit the 80 % bands of cluster profiles to residuals, on the fit side of the split.

    python tools/fit_bands.py RUNS.csv MODELS.csv [--write]

The half width of a band is linear in the shares of the step (all of it, communication, bubble,
host time), with weights of zero or more: those of a quantile regression. A profile is fitted to
the very runs whose residuals are at hand, which makes them smaller than those of a cluster or
model that nobody measured. So the residual of each group of model and cluster is the one that it
would have without its own pull on the profile (the profile moves by one Newton step). Runs of one
model err alike, so that a profile's runs count for fewer, as the variance between models tells; the
quantile is raised as the fewer there are, by ``0.8 / n`` as split conformal prediction has it, at
most to 0.9. Experts in 8 bits and fewer, whose kernels no table has, add a share of their own.

The band of the default profile comes from predictions of each source with the defaults that were
made without it, a source weighing as the root of its runs. Profiles with few runs share one band,
fitted to the runs of all profiles.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, identity

from accuracy_calibrated import defaults_without
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
from meshplan.cost.handovers import num_handovers, possible_stall_s
from meshplan.inputs.load.profile import has_low_precision_experts, profile_of
from meshplan.space.plan import PlanGrid
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case
from run_tables import cases_of, tables_parser, timed

NAMES = ("base", "communication", "bubble", "host")
LEAST_ROWS = 25
LEAST_EXPERTS = 5  # runs with experts in 8 bits and fewer that tell a cluster's own share of them
LEAST_KINDS = 3  # models, else groups, else sweeps, that tell how alike the runs of one are
LARGEST = (0.2, 0.2, 0.2)  # more would rank plans by what few residuals happen to show
INSIDE = 0.8
MOST_INSIDE = 0.9
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
    handovers = num_handovers(PlanGrid.of([p.case.plan]))
    num_nodes = p.case.scenario.cluster.num_nodes
    (stall,) = possible_stall_s(cluster, handovers, num_nodes=num_nodes).tolist()
    step, measured = p.step_time_s, p.case.measured_step_s()
    if measured > step:
        step = min(step + stall, measured)
    return float(np.log(step / measured))


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
    predictions: list[Prediction], errors: np.ndarray, weights: np.ndarray, *, level: float
) -> np.ndarray:
    """Quantile regression with weights between zero and the largest allowed."""
    x = np.array([shares(p) for p in predictions])
    y = np.expm1(np.abs(errors))
    limits = [(0.01, None), *((0.0, most) for most in LARGEST)]
    return quantile(x, y, limits, level=level, weights=weights)


def level_of(predictions: list[Prediction], errors: np.ndarray) -> float:
    """Share of the runs at hand that a band must hold to hold 80 % of further ones."""
    return min(MOST_INSIDE, INSIDE + INSIDE / effective_number(predictions, errors))


def effective_number(predictions: list[Prediction], errors: np.ndarray) -> float:
    """Independent runs that runs count for, given that those of one model err alike.

    Equation: ``n / (1 + (n0 - 1) r)`` for ``n`` runs with about ``n0`` a model, and the intraclass
    correlation ``r`` of a one-way analysis of variance (Kish, Survey Sampling, 1965, section 5.4).
    """
    kinds = (
        [p.case.scenario.model.name for p in predictions],
        [p.case.group for p in predictions],
        [" ".join((p.case.sweep_id, *p.case.sweep_key)) for p in predictions],
    )
    keys = next((keys for keys in kinds if len(set(keys)) >= LEAST_KINDS), kinds[0])
    _, index = np.unique(keys, return_inverse=True)
    size, num = np.bincount(index), len(errors)
    if len(size) == 1:
        return 1.0
    if len(size) == num:
        return float(num)
    mean = np.bincount(index, errors) / size
    between = float(size @ (mean - errors.mean()) ** 2) / (len(size) - 1)
    within = float(((errors - mean[index]) ** 2).sum()) / (num - len(size))
    each = (num - float((size**2).sum()) / num) / (len(size) - 1)
    alike = max(0.0, (between - within) / (between + (each - 1.0) * within))
    return num / (1.0 + (each - 1.0) * alike)


def quantile(
    x: np.ndarray,
    y: np.ndarray,
    limits: list[tuple],
    *,
    level: float,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Weights under which a share ``level`` of ``y`` lies below ``x`` times them."""
    n, k = x.shape
    each = np.full(n, 1.0 / n) if weights is None else weights / weights.sum()
    # a small price keeps the base wide rather than a share that few rows have
    price = np.array([0.0] + [2e-4] * (k - 1))
    cost = np.concatenate([price, level * each, (1 - level) * each])
    equal = hstack([csr_matrix(x), identity(n), -identity(n)])
    bounds = [*limits, *[(0, None)] * (2 * n)]
    found = linprog(cost, A_eq=equal, b_eq=y, bounds=bounds, method="highs")
    assert found.success, found.message
    return found.x[:k]


def root_weights(predictions: list[Prediction]) -> np.ndarray:
    """Let each source weigh as the root of its runs."""
    sizes = Counter(p.case.source_id for p in predictions)
    return np.array([sizes[p.case.source_id] ** -0.5 for p in predictions])


def low_precision_experts(p: Prediction) -> bool:
    """Whether experts multiply in 8 bits or fewer."""
    return has_low_precision_experts(p.case.scenario)


def experts_share(left: np.ndarray) -> float:
    """Extra share of the step of runs with experts in few bits, by what a band leaves of them."""
    return max(0.0, float(np.quantile(left, INSIDE))) if len(left) else 0.0


def unlike(p: Prediction) -> bool:
    """Runs whose error has a cause that no other cluster shares."""
    case = p.case
    odd_network = case.source_id == "hf-ultrascale" and case.scenario.cluster.num_gpus >= 64
    return odd_network or case.composed or case.source_id == "megatron-ci-golden"


def inside(predictions: list[Prediction], band: dict[str, float], errors: np.ndarray) -> float:
    """Share of the runs inside a band."""
    hits = np.expm1(np.abs(errors)) <= [half_width(p, band) for p in predictions]
    return float(np.mean(hits)) if len(hits) else float("nan")


def half_width(p: Prediction, band: dict[str, float]) -> float:
    """Half width of a band, as a share of the step."""
    width = float(np.dot(shares(p), [band[name] for name in NAMES]))
    return width + band["experts"] * low_precision_experts(p)


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
    args = tables_parser(__doc__).parse_args()
    read = cases_of(args)
    weighed = [case for case in read if case.measured_bytes is not None]
    cases = timed(read)
    side = split_of(cases)
    memory = fit_memory([p for p in predict(weighed) if usable(p)], side)
    pulled: dict[str, float] = {}
    for one in read_fits():
        train = [c for c in chosen(one, cases) if side.get(c.group) == "fit"]
        pulled |= without_own_pull(one, train) if train else {}
    bands = fit_all(predict(cases, memory=False), pulled, side)
    bands["default"] = {**fit_default(predict_left_out(cases), side), **memory}
    print_coverage(predict(cases, memory=False), bands, side)
    if args.write:
        write(bands)


def fit_all(
    predictions: list[Prediction], pulled: dict[str, float], side: dict[str, str]
) -> dict[str, dict[str, float]]:
    """Band of every cluster with a profile."""
    train = [p for p in predictions if side.get(p.case.group) == "fit"]
    by_cluster: dict[str, list[Prediction]] = defaultdict(list)
    for p in train:
        by_cluster[p.case.scenario.cluster.profile].append(p)
    by_cluster.pop("default", None)
    shared = one_band([p for p in train if not unlike(p)], pulled, shared=True)
    print("shared by profiles with few runs:", shared)
    return {
        name: one_band(own, pulled, usual=shared) if len(own) >= LEAST_ROWS else shared
        for name, own in sorted(by_cluster.items())
    }


def one_band(
    predictions: list[Prediction],
    pulled: dict[str, float],
    *,
    shared: bool = False,
    usual: dict[str, float] | None = None,
) -> dict[str, float]:
    """Band of some runs, and what experts in few bits add to it."""
    dense = [p for p in predictions if not low_precision_experts(p)]
    rest = [p for p in predictions if low_precision_experts(p)]

    def errors(chosen: list[Prediction]) -> np.ndarray:
        return np.array([pulled.get(p.case.row_id, error_of(p)) for p in chosen])

    # profiles with few runs tell of few models, however many such profiles there are; how alike
    # runs of one model are is told by their errors as they are, since the pull of a group on the
    # profile is common to it
    as_they_are = np.array([error_of(p) for p in predictions])
    level = MOST_INSIDE if shared else level_of(predictions, as_they_are)
    weights = root_weights(dense) if shared else np.ones(len(dense))
    found = fit(dense, errors(dense), weights, level=level)
    left = np.expm1(np.abs(errors(rest))) - [np.dot(shares(p), found) for p in rest]
    few = usual is not None and len(rest) < LEAST_EXPERTS
    experts = usual["experts"] if few and usual else experts_share(left)
    if not experts:  # they are no harder to predict here, and tell as much as the others
        found = fit(predictions, errors(predictions), np.ones(len(predictions)), level=level)
    band = {n: round(float(v), 3) for n, v in zip(NAMES, found, strict=True)}
    return {**band, "experts": round(experts, 3)}


def predict_left_out(cases: list[Case]) -> list[Prediction]:
    """Predict each source with the defaults that were made without it."""
    by_source: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_source[case.source_id].append(case)
    found = []
    for source, own in by_source.items():
        found += predict(own, memory=False, profile=defaults_without(source))
    return found


def fit_default(predictions: list[Prediction], side: dict[str, str]) -> dict[str, float]:
    """Band of a cluster that nobody measured, and how it holds by source."""
    # what holds for one cluster or for toy models says nothing of others
    usual = [p for p in predictions if not unlike(p)]
    train = [p for p in usual if side.get(p.case.group) == "fit"]
    plain = {p.case.row_id: plain_error(p) for p in train}
    dense = [p for p in train if not low_precision_experts(p)]
    rest = [p for p in train if low_precision_experts(p)]
    limits = [(0.01, None), *((0.0, most) for most in LARGEST)]
    found = quantile(
        np.array([shares(p) for p in dense]),
        np.expm1(np.abs([plain[p.case.row_id] for p in dense])),
        limits,
        level=INSIDE,
        weights=root_weights(dense),
    )
    left = np.array([np.expm1(abs(plain[p.case.row_id])) - np.dot(shares(p), found) for p in rest])
    band = {n: round(float(v), 3) for n, v in zip(NAMES, found, strict=True)}
    band["experts"] = round(experts_share(left), 3)
    print("default:", band)
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for p in usual:
        by_source[p.case.source_id].append(p)
    for part in ("fit", "judge"):
        shown = {}
        for source, own in sorted(by_source.items()):
            of = [p for p in own if (side.get(p.case.group) == "fit") == (part == "fit")]
            if of:
                shown[source] = inside(of, band, np.array([plain_error(p) for p in of]))
        rows = [p for p in usual if (side.get(p.case.group) == "fit") == (part == "fit")]
        whole = inside(rows, band, np.array([plain_error(p) for p in rows]))
        print(f"left out, {part}: {whole:.2f} of {len(rows)} runs,", end=" ")
        print(f"{np.mean(list(shown.values())):.2f} in the mean of {len(shown)} sources")
        print("  ", ", ".join(f"{source} {value:.2f}" for source, value in shown.items()))
    return band


def plain_error(p: Prediction) -> float:
    """Logarithm of predicted over measured step time."""
    return float(np.log(p.step_time_s / p.case.measured_step_s()))


def print_coverage(
    predictions: list[Prediction], bands: dict[str, dict[str, float]], side: dict[str, str]
) -> None:
    """How the bands hold, by cluster and side."""
    by_cluster: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        by_cluster[p.case.scenario.cluster.profile].append(p)
    for name, own in sorted(by_cluster.items()):
        band, parts = bands[name], []
        for part in ("fit", "judge"):
            of = [p for p in own if (side.get(p.case.group) == "fit") == (part == "fit")]
            errors = np.array([error_of(p) for p in of])
            parts.append(f"{part} {inside(of, band, errors):.2f} of {len(of)}")
        width = float(np.median([half_width(p, band) for p in own]))
        print(f"{name}: {band} median {width:.3f} inside: {', '.join(parts)}")


def write(bands: dict[str, dict[str, float]]) -> None:
    """Put the bands into the presets."""
    text = PRESETS.read_text("utf-8")
    head, sep, tail = text.partition("clusters:\n")
    for name, values in bands.items():
        line = "{" + ", ".join(f"{n}: {v:g}" for n, v in values.items()) + "}"
        if name == "default":
            head, n = re.subn(r"\n  band: \{.*\}", f"\n  band: {line}", head)
        else:
            pattern = rf"(\n  {re.escape(name)}:\n(?:    (?!band).*\n)*)(?:    band: .*\n)?"
            new, n = re.subn(pattern, rf"\g<1>    band: {line}\n", "\n" + tail, count=1)
            tail = new[1:]
        assert n == 1, name
    PRESETS.write_text(head + sep + tail, "utf-8")


if __name__ == "__main__":
    main()
