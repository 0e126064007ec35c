"""Find which kinds of block published runs cover on each chip family, and how far off others are.

    python tools/fit_coverage.py RUNS.csv MODELS.csv [--write]

A kind is covered where runs that the tables describe have it, or where 80 % of the runs of a model
beyond the columns (``tools/beyond_columns.py``) lie inside the band as it is. By how much the band
grows for others is what a chip family of which nobody published a run would need: each family is
left out in turn, its runs are predicted with the defaults that are made without its clusters and
its frameworks, and the mean over the families is taken of what 80 % of their runs need beyond the
band. Toy models are left out, and runs that wait or do not (hf-ultrascale).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from beyond_columns import beyond_columns
from fit_bands import INSIDE
from fit_profiles import PRESETS
from meshplan.inputs.blocks import kinds_of
from meshplan.inputs.load.profile import cluster_profile, profile_of, uncovered_width
from meshplan.inputs.model import Model
from meshplan.inputs.profile import Profile
from meshplan.inputs.scenario import Scenario
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case
from profile_defaults import TOY_SOURCES, cluster_medians, default_framework, fitted_on
from run_tables import cases_of, tables_parser, timed

WAITING = ("hf-ultrascale",)


def kinds(model: Model) -> frozenset[str]:
    """Kinds of all blocks of a model."""
    return frozenset(kind for layer in model.layers for kind in kinds_of(layer))


def plain(scenario: Scenario, framework: str) -> Profile:
    """The profile with the band that it has where every kind is covered."""
    found = profile_of(scenario, framework)
    base = found.band.base - uncovered_width(scenario)
    return replace(found, band=replace(found.band, base=base))


def excess(p: Prediction) -> float:
    """How far outside its band a run lies, as a share of the predicted step."""
    ratio = p.case.measured_step_s() / p.step_time_s
    return max(ratio, 1.0 / ratio) - p.high_s / p.step_time_s


def covered_by(cases: Iterable[Case], beyond: Iterable[Prediction]) -> dict[str, set[str]]:
    """Kinds by architecture: all that the tables describe, and those that their band holds."""
    found: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        scenario = case.scenario
        found[scenario.cluster.device.architecture] |= kinds(scenario.model)
    inside: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for p in beyond:
        for kind in kinds(p.case.scenario.model):
            inside[p.case.scenario.cluster.device.architecture, kind].append(excess(p) <= 0.0)
    for (architecture, kind), hits in inside.items():
        if np.mean(hits) >= INSIDE:
            found[architecture].add(kind)
    return found


def needed_by_unknown_chips(cases: list[Case]) -> dict[str, float]:
    """What 80 % of the runs of each chip family need beyond their band were there no other runs."""
    families: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if case.source_id not in (*TOY_SOURCES, *WAITING):
            families[case.scenario.cluster.device.architecture].append(case)
    found = {}
    for family, own in sorted(families.items()):
        profiles = {case.scenario.profile or case.scenario.cluster.profile for case in own}
        needs = []
        for source in sorted({case.source_id for case in own}):
            runs = [case for case in own if case.source_id == source]
            unknown = without(source, clusters=profiles - {"default"})
            needs += [excess(p) for p in predict(runs, memory=False, profile=unknown)]
        found[family] = float(np.quantile(np.maximum(needs, 0.0), INSIDE))
    return found


def without(source: str, *, clusters: set[str]) -> Callable[[Scenario, str], Profile]:
    """Profiles made without some clusters, and without what a source told of frameworks."""
    known = cluster_medians(clusters)

    def profile(scenario: Scenario, name: str) -> Profile:
        cluster = replace(scenario.cluster, profile="default")
        own = plain(replace(scenario, cluster=cluster, profile=""), name)
        framework = own.framework
        if framework.name in fitted_on(source)[0]:
            framework = default_framework(name, scenario.variant, source)
        return replace(
            own, framework=framework, cluster=replace(cluster_profile("default"), **known)
        )

    return profile


def main() -> None:
    """Find both, print them, and write them to the presets where that is asked for."""
    args = tables_parser(__doc__).parse_args()
    cases = timed(cases_of(args))
    beyond = predict(beyond_columns(args.runs, args.models), memory=False, profile=plain)
    inside = [excess(p) <= 0.0 for p in beyond]
    print(f"{len(beyond)} runs beyond the columns, {np.mean(inside):.0%} inside the band")
    covered = covered_by(cases, beyond)
    for architecture, names in sorted(covered.items()):
        print(f"  {architecture}: {', '.join(sorted(names))}")
    needed = needed_by_unknown_chips(cases)
    found = round(float(np.mean(list(needed.values()))), 3)
    print(f"share {found}:", ", ".join(f"{name} {need:.3f}" for name, need in needed.items()))
    if args.write:
        write(found, covered)


def write(share: float, covered: dict[str, set[str]]) -> None:
    """Put both into the presets."""
    lines = [f"    {name}: [{', '.join(sorted(own))}]\n" for name, own in sorted(covered.items())]
    made = f"\n  share: {share:g}\n  kinds:\n{''.join(lines)}settings:\n"
    text = PRESETS.read_text("utf-8")
    new, num = re.subn(
        r"\n  share: [^\n]*\n  kinds:(?:[^\n]*)\n(?:    .*\n)*settings:\n", made, text
    )
    assert num == 1
    PRESETS.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
