"""What the page about accuracy measures, each as the rows of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accuracy_calibrated import defaults_without
from accuracy_floor import least_errors, least_regret, least_regrets
from accuracy_page import percent
from meshplan.validate.metrics import coverage, strict_sweeps, sweeps
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case, read_case
from meshplan.validate.table import Row, Skip


@dataclass(frozen=True)
class Target:
    """One set of runs, the statistic that judges it and what it is to reach."""

    name: str
    statistic: str
    limit: float
    keep: Callable[[Case], bool]


def source(*names: str) -> Callable[[Case], bool]:
    """Keep the cases of some sources."""
    return lambda case: case.source_id in names


NVIDIA = source("nvidia-nemo-megatron", "megatron-bridge-perf-summary")
TARGETS = [
    Target(
        "vtrain, 64 GPUs and more",
        "mean",
        0.08,
        lambda c: c.source_id == "vtrain" and c.scenario.cluster.num_gpus >= 64,
    ),
    Target(
        "vtrain, single node",
        "mean",
        0.10,
        lambda c: c.source_id == "vtrain" and c.scenario.cluster.num_gpus <= 8,
    ),
    Target("aleph-alpha-layouts", "median", 0.08, source("aleph-alpha-layouts")),
    Target("llm-foundry-bench, deduplicated", "mean", 0.08, source("llm-foundry-bench")),
    Target(
        "nvidia-nemo-megatron, megatron-bridge, dense",
        "median",
        0.08,
        lambda c: NVIDIA(c) and not c.scenario.model.is_moe,
    ),
    Target(
        "nvidia-nemo-megatron, megatron-bridge, MoE",
        "median",
        0.12,
        lambda c: NVIDIA(c) and c.scenario.model.is_moe,
    ),
    Target("moe-parallel-folding", "median", 0.15, source("moe-parallel-folding")),
    Target("korthikanti2022", "mean", 0.06, source("korthikanti2022")),
    Target("sc21", "mean", 0.08, source("sc21")),
    Target("mlperf-training", "median", 0.10, source("mlperf-training")),
    Target("simumax", "mean", 0.05, source("simumax")),
    Target("torchtitan, zero-bubble", "mean", 0.08, source("torchtitan-torchao", "zero-bubble")),
    Target("hf-ultrascale: ZeRO-1, up to 128 GPUs, within 2x", "median", 0.15, lambda c: False),
]


def statistic(name: str, values: list[float]) -> float:
    """Mean or median of the absolute errors."""
    absolute = np.abs(values)
    return float(np.mean(absolute) if name == "mean" else np.median(absolute))


def contradicting(
    rows: Sequence[Row], models: Mapping[str, Row], predictions: Sequence[Prediction]
) -> dict[str, str]:
    """Count the rows that contradict their recipe, and what they would change as printed."""
    found = []
    for row in rows:
        try:
            read_case(row, models)
        except Skip as skip:
            if skip.reason == "contradicts_its_recipe":
                found.append(read_case(row, models, as_printed=True))
    extra = predict([case for case in found if case.measured is not None])
    facts = {
        "contradicting": f"{len(extra)}",
        "contradicting_mean": percent(statistic("mean", [p.error for p in extra])),
        "contradicting_oom": f"{sum(not p.fits for p in extra)}",
    }
    for target in TARGETS:
        if any(target.keep(p.case) for p in extra):
            kind = "moe" if "MoE" in target.name else "dense"
            errors = [p.error for p in (*predictions, *extra) if target.keep(p.case)]
            facts[f"{kind}_as_printed"] = percent(statistic(target.statistic, errors))
    return facts


def regret_fitting(cases: Sequence[Case]) -> str:
    """Mean regret of a search that passes over layouts that it calls tight or too large."""
    found = sweeps(predict([case for case in cases if case.sweep_id]))
    return percent(float(np.mean([float(str(s["regret_fitting"])) for s in found])))


def hf_rows(cases: list[Case]) -> set[str]:
    """Rows of hf-ultrascale within 2x of the best of their sweep, ZeRO-1, up to 128 GPUs."""
    own = [c for c in cases if c.source_id == "hf-ultrascale" and c.measured]
    best: dict[str, float] = {}
    for c in own:
        best[c.sweep_id] = min(best.get(c.sweep_id, np.inf), c.measured_step_s())
    return {
        c.row_id
        for c in own
        if c.plan.zero == 1
        and c.scenario.cluster.num_gpus <= 128
        and c.measured_step_s() <= 2 * best[c.sweep_id]
    }


def deduplicated(predictions: list[Prediction]) -> list[Prediction]:
    """One row per run: tables repeat rows between their revisions."""
    seen, kept = set(), []
    for p in predictions:
        key = (p.case.scenario, p.case.plan, p.case.measured)
        if key not in seen:
            seen.add(key)
            kept.append(p)
    return kept


def reached(
    predictions: list[Prediction], side: dict[str, str], chosen: set[str]
) -> list[list[str]]:
    """Judge every target on both sides of the split."""
    rows = []
    for target in TARGETS:
        own = [p for p in predictions if target.keep(p.case)]
        if target.name.startswith("hf-"):
            own = [p for p in predictions if p.case.row_id in chosen]
        if target.name.startswith("llm"):
            own = deduplicated(own)
        sides = [
            [p.error for p in own if (side.get(p.case.group) == "fit") == f] for f in (True, False)
        ]
        whole = statistic(target.statistic, [p.error for p in own])
        parts = [percent(statistic(target.statistic, s)) if s else "-" for s in sides]
        least = least_errors(own)
        floor = percent(statistic(target.statistic, least)) if least else "-"
        mark = "yes" if whole <= target.limit else "no"
        rows.append(
            [
                target.name,
                target.statistic,
                percent(target.limit),
                str(len(own)),
                percent(whole),
                *parts,
                floor,
                mark,
            ]
        )
    return rows


def left_out(cases: list[Case]) -> list[list[str]]:
    """Every source with defaults that were made without it."""
    by_source: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_source[case.source_id].append(case)
    rows = []
    for name, own in sorted(by_source.items()):
        found = predict(own, memory=False, profile=defaults_without(name))
        errors = [p.error for p in found]
        ranks = sweeps(found)
        regrets = [float(s["regret"]) for s in ranks]
        rows.append(
            [
                name,
                str(len(own)),
                percent(statistic("mean", errors)),
                percent(statistic("median", errors)),
                percent(float(np.mean(errors))),
                percent(coverage(found)),
                str(len(ranks)),
                percent(float(np.mean(regrets)) if regrets else None),
            ]
        )
    return rows


SCATTERED = "hf-ultrascale"
"""Source whose repeats of one layout lie several times apart."""
ALL = "all strict sweeps"
REST = f"all but {SCATTERED}"


def ranking(predictions: list[Prediction]) -> tuple[list[list[str]], list[dict]]:
    """Regret and rank correlation by source."""
    found = sweeps(predictions)
    rows = []
    groups: dict[str, list[dict]] = defaultdict(list)
    for sweep in found:
        groups[str(sweep["source_id"])].append(sweep)
    groups[REST] = [sweep for sweep in found if sweep["source_id"] != SCATTERED]
    groups[ALL] = found
    least = least_regret(predictions)
    # sources of which no layout was run twice count as if their runs did not scatter
    least[ALL] = sum(least_regrets(predictions).values()) / max(len(found), 1)
    for name, own in groups.items():
        regret = [float(s["regret"]) for s in own]
        rank = [float(s["spearman"]) for s in own if s["spearman"] is not None]
        rows.append(
            [
                name,
                str(len(own)),
                percent(float(np.mean(regret))),
                percent(float(np.median(regret))),
                percent(least.get(name)),
                f"{np.median(rank):.2f}" if rank else "-",
            ]
        )
    return rows, found


def changed_picks(predictions: list[Prediction]) -> tuple[int, int]:
    """Strict sweeps in which the band changes the pick."""
    strict = [
        [p for runs in layouts.values() for p in runs]
        for layouts in strict_sweeps(predictions).values()
    ]
    changed = sum(
        min(g, key=lambda p: p.step_time_s).case.plan != min(g, key=lambda p: p.high_s).case.plan
        for g in strict
    )
    return changed, len(strict)


def bands(predictions: list[Prediction], side: dict[str, str]) -> list[list[str]]:
    """Width and coverage of the bands by profile."""
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        groups[p.case.scenario.cluster.profile].append(p)
    rows = []
    for name, own in [*sorted(groups.items()), ("all", predictions)]:
        sides = [[p for p in own if (side.get(p.case.group) == "fit") == f] for f in (True, False)]
        width = float(np.median([p.high_s / p.step_time_s - 1 for p in own]))
        rows.append(
            [
                name,
                str(len(own)),
                percent(width),
                *(percent(coverage(s)) for s in sides),
                percent(coverage(own)),
            ]
        )
    return rows


def worst(predictions: list[Prediction]) -> list[list[str]]:
    """Groups with the largest median error, of three rows and more."""
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        groups[p.case.group].append(p)
    rated = [
        (float(np.median([abs(p.error) for p in g])), name, g)
        for name, g in groups.items()
        if len(g) >= 3
    ]
    rows = []
    for value, name, own in sorted(rated, key=lambda r: -r[0])[:12]:
        parts = defaultdict(float)
        for p in own:
            for part, seconds in p.parts.items():
                parts[part] += seconds / p.step_time_s / len(own)
        most = sorted(parts.items(), key=lambda x: -x[1])[:3]
        bias = float(np.median([p.error for p in own]))
        rows.append(
            [
                name.replace("|", ", "),
                str(len(own)),
                percent(value),
                f"{100 * bias:+.0f} %",
                ", ".join(f"{k[:-2]} {100 * v:.0f} %" for k, v in most),
            ]
        )
    return rows
