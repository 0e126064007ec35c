"""Measure the accuracy of step times on a table of runs and write the page about it.

    python tools/accuracy.py RUNS.csv MODELS.csv [--write]

Prints what each set of runs was to reach and what it reaches on the two sides of the split, every
source predicted with the default profile that was made without it, ranking, bands and the worst
groups; ``--write`` puts the tables into docs/en/accuracy.md and docs/zh/accuracy.md.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fit_profiles import split_of
from meshplan.inputs.load.profile import profile_of
from meshplan.validate.calibrate import calibrate
from meshplan.validate.metrics import coverage, sweeps
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case
from meshplan.validate.run import read_cases
from meshplan.validate.table import read_models, read_table
from profile_defaults import default_cluster, default_framework

ROOT = Path(__file__).resolve().parents[1]
MOST_SWEEPS = 6


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


def percent(value: float | None) -> str:
    """Print a fraction."""
    return "-" if value is None or not np.isfinite(value) else f"{100 * value:.1f} %"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


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
        mark = "yes" if whole <= target.limit else "no"
        rows.append(
            [
                target.name,
                target.statistic,
                percent(target.limit),
                str(len(own)),
                percent(whole),
                *parts,
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
        cluster = default_cluster(name)
        found = predict(
            own,
            memory=False,
            profile=lambda s, f, name=name, cluster=cluster: replace(
                profile_of(s, f), framework=default_framework(f, name), cluster=cluster
            ),
        )
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
                str(len(ranks)),
                percent(float(np.mean(regrets)) if regrets else None),
            ]
        )
    return rows


def ranking(predictions: list[Prediction]) -> tuple[list[list[str]], list[dict]]:
    """Regret and rank correlation by source."""
    found = sweeps(predictions)
    rows = []
    groups: dict[str, list[dict]] = defaultdict(list)
    for sweep in found:
        groups[str(sweep["source_id"])].append(sweep)
    groups["all strict sweeps"] = found
    for name, own in groups.items():
        regret = [float(s["regret"]) for s in own]
        rank = [float(s["spearman"]) for s in own if s["spearman"] is not None]
        rows.append(
            [
                name,
                str(len(own)),
                percent(float(np.mean(regret))),
                percent(float(np.median(regret))),
                f"{np.median(rank):.2f}" if rank else "-",
            ]
        )
    return rows, found


def changed_picks(predictions: list[Prediction]) -> tuple[int, int]:
    """Strict sweeps in which the band changes the pick."""
    groups: dict[tuple, list[Prediction]] = defaultdict(list)
    for p in predictions:
        if p.case.sweep_id:
            groups[(p.case.source_id, p.case.sweep_id, *p.case.sweep_key)].append(p)
    strict = [g for g in groups.values() if len({p.case.plan for p in g}) >= 3]
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


def calibrated(cases: list[Case]) -> list[list[str]]:
    """Sweeps whose cluster nobody measured: three runs given, the others predicted."""
    groups: dict[tuple, list[Case]] = defaultdict(list)
    for case in cases:
        if case.sweep_id:
            groups[(case.source_id, case.sweep_id, *case.sweep_key)].append(case)
    results: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key, own in sorted(groups.items()):
        if len(own) < 6 or len(results[key[0]]) >= MOST_SWEEPS:
            continue
        own = sorted((without_profile(case) for case in own), key=lambda case: case.row_id)
        given = [own[0], own[len(own) // 2], own[-1]]
        rest = [case for case in own if case not in given]
        found = calibrate(given)
        before = predict(rest, memory=False)
        after = predict(
            rest,
            memory=False,
            profile=lambda s, f, found=found: replace(profile_of(s, f), cluster=found.profile),
        )
        means = [float(np.mean([abs(p.error) for p in made])) for made in (before, after)]
        results[key[0]].append((means[0], means[1]))
    rows = []
    for name, pairs in results.items():
        if pairs:
            better = sum(after < before for before, after in pairs)
            means = np.mean(pairs, axis=0)
            rows.append(
                [
                    name,
                    str(len(pairs)),
                    percent(means[0]),
                    percent(means[1]),
                    f"{better} / {len(pairs)}",
                ]
            )
    return rows


def without_profile(case: Case) -> Case:
    """The same run on a cluster that nobody measured."""
    cluster = replace(case.scenario.cluster, profile="default")
    return replace(case, scenario=replace(case.scenario, cluster=cluster))


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


HEADERS = {
    "en": {
        "reached": [
            "set",
            "statistic",
            "target",
            "rows",
            "all",
            "fit side",
            "judge side",
            "reached",
        ],
        "left_out": [
            "source",
            "rows",
            "mean error",
            "median error",
            "bias",
            "sweeps",
            "mean regret",
        ],
        "ranking": ["source", "sweeps", "mean regret", "median regret", "rank correlation"],
        "bands": [
            "profile",
            "rows",
            "median half width",
            "inside, fit side",
            "inside, judge side",
            "inside, all",
        ],
        "calibrated": ["source", "sweeps", "mean error before", "mean error after", "improved"],
        "worst": ["group", "rows", "median error", "bias", "largest parts of the prediction"],
    },
    "zh": {
        "reached": ["数据集", "统计量", "目标", "行数", "全部", "拟合侧", "评判侧", "达标"],
        "left_out": ["来源", "行数", "平均误差", "误差中位数", "偏差", "扫描组", "平均遗憾"],
        "ranking": ["来源", "扫描组", "平均遗憾", "遗憾中位数", "秩相关"],
        "bands": ["档案", "行数", "半宽中位数", "落入（拟合侧）", "落入（评判侧）", "落入（全部）"],
        "calibrated": ["来源", "扫描组", "校准前平均误差", "校准后平均误差", "改善的组"],
        "worst": ["组", "行数", "误差中位数", "偏差", "预测中占比最大的部分"],
    },
}
WORDS = {
    "mean": "平均",
    "median": "中位数",
    "yes": "是",
    "no": "否",
    "all strict sweeps": "全部严格扫描组",
    "all": "全部",
}


def write(tables: dict[str, list[list[str]]], facts: dict[str, str]) -> None:
    """Put the tables and counts between their marks in the pages."""
    for lang, headers in HEADERS.items():
        path = ROOT / "docs" / lang / "accuracy.md"
        text = path.read_text("utf-8")
        for name, rows in tables.items():
            shown = [
                [WORDS.get(cell, cell) if lang == "zh" else cell for cell in row] for row in rows
            ]
            block = f"<!-- table: {name} -->\n{table(headers[name], shown)}\n<!-- end -->"
            text, n = re.subn(
                rf"<!-- table: {name} -->\n.*?<!-- end -->", lambda _, b=block: b, text, flags=re.S
            )
            assert n == 1, (lang, name)
        for name, value in facts.items():
            text, n = re.subn(
                rf"<!-- {name} -->.*?<!-- / -->", f"<!-- {name} -->{value}<!-- / -->", text
            )
            assert n >= 1, (lang, name)
        path.write_text(text, "utf-8")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    models = read_models(args.models)
    rows = read_table(args.runs, needs=())
    cases, skipped = read_cases(rows, models)
    num_full = sum(full for _, _, full in skipped)
    cases = [case for case in cases if case.measured is not None]
    side = split_of(cases)
    predictions = predict(cases, memory=False)
    rank_rows, found = ranking(predictions)
    tables = {
        "reached": reached(predictions, side, hf_rows(cases)),
        "ranking": rank_rows,
        "bands": bands(predictions, side),
        "left_out": left_out(cases),
        "calibrated": calibrated(cases),
        "worst": worst(predictions),
    }
    hf = [float(s["regret"]) for s in found if s["source_id"] == "hf-ultrascale"]
    changed, strict = changed_picks(predictions)
    facts = {
        "predicted": f"{len(cases)}",
        "full": f"{len(cases) + num_full}",
        "share": percent(len(cases) / (len(cases) + num_full)),
        "changed": f"{changed}",
        "strict": f"{strict}",
    }
    for name, shown in tables.items():
        print(f"\n{name}\n{table(HEADERS['en'][name], shown)}")
    print("\nhf-ultrascale median regret", percent(float(np.median(hf))) if hf else "-", facts)
    if args.write:
        write(tables, facts)


if __name__ == "__main__":
    main()
