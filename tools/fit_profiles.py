"""Fit framework and cluster profiles to measured runs, on the fit side of the split.

    python tools/fit_profiles.py RUNS.csv MODELS.csv [NAME ...] [--write]

Each profile has at most eight free numbers. The objective is the squared logarithm of predicted
over measured step time with a soft loss, a group of model and cluster weighing as the root of its
runs, and a prior that holds each number near the middle of all profiles, as far as profiles lie
apart: a source of few groups moves them little. Printed are the errors on both sides.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import least_squares

from meshplan.inputs.load import profile as loader
from meshplan.inputs.load.profile import cluster_profile, framework_profile
from meshplan.inputs.profile import Profile
from meshplan.inputs.variants import split_variant
from meshplan.validate.predict import predict
from meshplan.validate.rows import Case
from run_tables import cases_of, tables_parser

ROOT = Path(__file__).resolve().parents[1]
SPLIT = ROOT / "tests" / "accuracy" / "split.csv"
FITS = ROOT / "tools" / "fits.yaml"
PRESETS = ROOT / "src" / "meshplan" / "inputs" / "presets" / "profiles.yaml"
SHARES = {  # numbers between 0 and 1 that are varied as they are, with the width of the prior
    "contention": 0.3,
    "straggler": 0.05,
    "overlap_gradients": 0.7,
    "overlap_parameters": 0.7,
    "overlap_shards": 0.7,
    "overlap_tensor": 0.5,
    "overlap_weight_gradient": 0.7,
    "overlap_context": 0.7,
    "overlap_experts": 0.5,
}
START = {"launch_s": 4e-5, "step_s": 0.01, "micro_batch_s": 5e-4, "update_hop_s": 2e-5}
WIDTH = {  # how far profiles lie apart, as the spread of the logarithm of each number
    "update_hop_s": 2.0,
    "launch_s": 1.5,
    "step_s": 1.5,
    "micro_batch_s": 0.7,
    "latency": 0.7,
    "gemm": 0.2,
    "low_precision": 0.15,
    "scale_up": 0.3,
}
NOISE = 0.04  # what a fitted profile leaves of the time of a group


@dataclass(frozen=True)
class Fit:
    """One fit: which rows, and which numbers of which profiles are free."""

    name: str
    sources: tuple[str, ...]
    framework: str
    cluster: str
    free_framework: tuple[str, ...]
    free_cluster: tuple[str, ...]
    where: dict[str, str]


def read_fits() -> list[Fit]:
    """Read what is to be fitted."""
    entries = yaml.safe_load(FITS.read_text("utf-8"))
    return [
        Fit(
            name=name,
            sources=tuple(entry["sources"]),
            framework=entry.get("framework", ""),
            cluster=entry.get("cluster", ""),
            free_framework=tuple(entry.get("free_framework", ())),
            free_cluster=tuple(entry.get("free_cluster", ())),
            where=entry.get("where", {}),
        )
        for name, entry in entries.items()
    ]


def split_of(cases: list[Case]) -> dict[str, str]:
    """Side of each group; groups that the file lacks are dealt by size and added to it."""
    side: dict[str, str] = {}
    if SPLIT.exists():
        with SPLIT.open(encoding="utf-8") as file:
            side = {row["group"]: row["side"] for row in csv.DictReader(file)}
    sizes = Counter(case.group for case in cases if case.measured is not None)
    by_source: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        if case.group not in by_source[case.source_id] and case.group in sizes:
            by_source[case.source_id].append(case.group)
    new = False
    for groups in by_source.values():
        groups.sort(key=lambda group: (-sizes[group], group))
        for index, group in enumerate(groups):
            if group not in side:
                # fit, judge, judge, fit: both sides get large and small groups
                side[group] = "fit" if index % 4 in (0, 3) else "judge"
                new = True
    if new:
        SPLIT.parent.mkdir(parents=True, exist_ok=True)
        with SPLIT.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["group", "side"])
            writer.writerows(sorted(side.items()))
    return side


class Trial:
    """Profiles with some numbers replaced."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self.names = [("framework", n) for n in fit.free_framework]
        self.names += [("cluster", n) for n in fit.free_cluster]
        assert len(fit.free_framework) <= 8 and len(fit.free_cluster) <= 8, "at most eight each"

    def values(self, x: np.ndarray) -> dict[str, dict[str, float]]:
        """Turn a point of the search into numbers of the two profiles."""
        out: dict[str, dict[str, float]] = {"framework": {}, "cluster": {}}
        for (kind, name), value in zip(self.names, x, strict=True):
            out[kind][name] = float(value if name in SHARES else np.exp(value))
        return out

    def start(self, cases: list[Case]) -> np.ndarray:
        """Where the search starts: the shipped profile."""
        own = self.profile(cases[0], None)
        x = []
        for kind, name in self.names:
            value = getattr(getattr(own, kind), name)
            if name in SHARES:
                x.append(min(max(value, 0.001), 0.999))
            else:
                x.append(np.log(value if value > 0 else START[name]))
        return np.array(x)

    def centre(self) -> np.ndarray:
        """Values that the prior holds on to: what is sourced, then the middle of all profiles."""
        own = loader.profile_presets()["frameworks"].get(self.fit.framework) or {}
        sourced = sourced_of(self.fit.framework)
        centres = {
            "framework": framework_profile(own.get("framework", "megatron")),
            "cluster": cluster_profile("default"),
        }
        x = []
        for kind, name in self.names:
            value = getattr(centres[kind], name)
            if kind == "framework" and name in sourced:
                value = sourced[name][0]
            x.append(value if name in SHARES else np.log(value if value > 0 else START[name]))
        return np.array(x)

    def bounds(self) -> tuple[list[float], list[float]]:
        """Shares stay between 0 and 1."""
        low = [0.0 if n in SHARES else -np.inf for _, n in self.names]
        high = [1.0 if n in SHARES else np.inf for _, n in self.names]
        return low, high

    def profile(self, case: Case, x: np.ndarray | None) -> Profile:
        """Profile of a case, with the numbers of a point."""
        framework = framework_profile(case.plan.framework.name.lower(), case.scenario.variant)
        cluster = cluster_profile(case.scenario.cluster.profile)
        if x is not None:
            values = self.values(x)
            if not self.fit.framework or shares_numbers(framework.name, self.fit.framework):
                base = framework_profile(framework.framework, self.fit.framework)
                free = values["framework"].items()
                # what the variant or a setting of the job says stays
                free = {n: v for n, v in free if getattr(framework, n) == getattr(base, n)}
                framework = replace(framework, **free)
            cluster = replace(cluster, **values["cluster"])
        return Profile(framework=framework, cluster=cluster, band=loader._band("", "default"))


def shares_numbers(name: str, framework: str) -> bool:
    """Whether a profile is another one or takes that one's numbers as they are."""
    while name != framework:
        entry = loader.profile_presets()["frameworks"].get(name) or {}
        if entry.get("fitted") or "like" not in entry:
            return False
        name = entry["like"]
    return True


def sourced_of(name: str) -> dict[str, list]:
    """Numbers of a profile that have a source, those of the profile that it is like among them."""
    entry = loader.profile_presets()["frameworks"].get(name) or {}
    inherited = sourced_of(entry["like"]) if "like" in entry else {}
    return {**inherited, **(entry.get("sourced") or {})}


def variant_of(case: Case) -> str:
    """Name of the framework profile of a case, without settings of its job."""
    return split_variant(case.scenario.variant)[0] or case.plan.framework.name.lower()


def residuals(trial: Trial, cases: list[Case], x: np.ndarray | None) -> np.ndarray:
    """Logarithm of predicted over measured step time."""
    by_scenario = {(c.scenario, c.plan.framework.name.lower()): c for c in cases}
    found = predict(
        cases,
        memory=False,
        profile=lambda scenario, name: trial.profile(by_scenario[scenario, name], x),
    )
    return np.array([np.log(p.step_time_s / p.case.measured_step_s()) for p in found])


def prior_widths(trial: Trial) -> np.ndarray:
    """How far profiles lie apart in each free number."""
    return np.array([SHARES.get(n) or WIDTH.get(n, 0.35) for _, n in trial.names])


def weights(cases: list[Case]) -> np.ndarray:
    """Let a group of ``n`` runs weigh as much as ``sqrt(n)`` that are independent.

    Runs of one model on one cluster share most of their error.
    """
    sizes = Counter(case.group for case in cases)
    return np.array([sizes[case.group] ** -0.25 for case in cases])


def report(name: str, r: np.ndarray) -> str:
    """Summarise residuals."""
    if not len(r):
        return f"{name}: no rows"
    ape = np.abs(np.expm1(r))
    return (
        f"{name}: n={len(r)} mean={ape.mean():.3f} median={np.median(ape):.3f} "
        f"p90={np.quantile(ape, 0.9):.3f} bias={np.median(r):+.3f} sd={r.std():.3f}"
    )


def chosen(fit: Fit, cases: list[Case]) -> list[Case]:
    """Rows that a fit is about."""
    own = [c for c in cases if c.source_id in fit.sources and c.measured is not None]
    if fit.framework:
        own = [c for c in own if shares_numbers(variant_of(c), fit.framework)]
    if "architecture" in fit.where:
        wanted = fit.where["architecture"]
        own = [c for c in own if c.scenario.cluster.device.architecture.startswith(wanted)]
    if "device" in fit.where:
        own = [c for c in own if c.scenario.cluster.device.name == fit.where["device"]]
    if "least_gpus" in fit.where:
        own = [c for c in own if c.scenario.cluster.num_gpus >= int(fit.where["least_gpus"])]
    if "within" in fit.where:
        best: dict[str, float] = {}
        for c in own:
            best[c.sweep_id] = min(best.get(c.sweep_id, 1e9), c.measured_step_s())
        own = [
            c for c in own if c.measured_step_s() <= float(fit.where["within"]) * best[c.sweep_id]
        ]
    if "zero" in fit.where:
        own = [c for c in own if c.plan.zero == int(fit.where["zero"])]
    if "most_pp" in fit.where:
        own = [c for c in own if c.plan.pp <= int(fit.where["most_pp"])]
    if "most_gpus" in fit.where:
        own = [c for c in own if c.scenario.cluster.num_gpus <= int(fit.where["most_gpus"])]
    return own


def fit_one(fit: Fit, cases: list[Case], side: dict[str, str], most: int) -> dict:
    """Fit one profile and print both sides."""
    own = chosen(fit, cases)
    train = [c for c in own if side.get(c.group) == "fit"]
    judge = [c for c in own if side.get(c.group) != "fit"]
    if len(train) > most:
        rng = np.random.default_rng(0)
        keep = set(rng.choice(len(train), most, replace=False).tolist())
        train = [c for i, c in enumerate(train) if i in keep]
    trial = Trial(fit)
    w = weights(train)
    centre = trial.centre()
    width = prior_widths(trial)

    def objective(x: np.ndarray) -> np.ndarray:
        return np.concatenate([w * residuals(trial, train, x) / NOISE, (x - centre) / width])

    print(f"== {fit.name}: {len(train)} rows to fit, {len(judge)} to judge")
    print("  before", report("fit", residuals(trial, train, None)))
    if judge:
        print("        ", report("judge", residuals(trial, judge, None)))
    solution = least_squares(
        objective,
        trial.start(own),
        bounds=trial.bounds(),
        loss="soft_l1",
        diff_step=1e-3,
        max_nfev=6,
    )
    x = solution.x
    print("  after ", report("fit", residuals(trial, train, x)))
    if judge:
        print("        ", report("judge", residuals(trial, judge, x)))
    values = trial.values(x)
    rounded = {k: {n: float(f"{v:.3g}") for n, v in d.items()} for k, d in values.items()}
    print("  ", rounded)
    sys.stdout.flush()
    return rounded


def write(fit: Fit, values: dict) -> None:
    """Put fitted numbers into the presets; what other tools fitted stays."""
    import re

    text = PRESETS.read_text("utf-8")
    for kind, key in (("framework", fit.framework), ("cluster", fit.cluster)):
        if not values[kind]:
            continue
        kept = (loader.profile_presets()[f"{kind}s"][key] or {}).get("fitted") or {}
        line = ", ".join(f"{n}: {v:g}" for n, v in {**kept, **values[kind]}.items())
        head, sep, tail = text.partition("clusters:\n")
        part = head if kind == "framework" else "\n" + tail
        pattern = rf"(\n  {re.escape(key)}:\n(?:    .*\n)*?)    fitted: \{{.*\}}\n"
        part, n = re.subn(pattern, rf"\g<1>    fitted: {{{line}}}\n", part, count=1)
        assert n == 1, f"{kind} {key}: no line `fitted: {{}}` in the presets"
        text = part + sep + tail if kind == "framework" else head + sep + part[1:]
    PRESETS.write_text(text, "utf-8")


def main() -> None:
    """Fit the profiles that are named, or all."""
    parser = tables_parser(__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--most", type=int, default=250)
    args = parser.parse_args()
    cases = cases_of(args)
    side = split_of(cases)
    for fit in read_fits():
        if args.names and fit.name not in args.names:
            continue
        values = fit_one(fit, cases, side, args.most)
        if args.write:
            write(fit, values)
            loader.profile_presets.cache_clear()
            loader._shipped.cache_clear()
            framework_profile.cache_clear()


if __name__ == "__main__":
    main()
