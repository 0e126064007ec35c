"""Find which kinds of block published runs cover on each chip family, and how far off others are.

    python tools/fit_coverage.py RUNS.csv MODELS.csv [--write]

A kind is covered where runs that the tables describe have it, or where 80 % of the runs of a model
beyond the columns (``tools/beyond_columns.py``) lie inside the band as it is. What the others need
beyond their band, over the share of their blocks that is not covered, gives the share by which a
band grows; the quantile is raised for few models as in ``tools/fit_bands.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from beyond_columns import beyond_columns
from fit_bands import INSIDE, level_of
from fit_profiles import PRESETS
from meshplan.inputs.blocks import kinds_of
from meshplan.inputs.load.profile import profile_of, uncovered_width
from meshplan.inputs.model import Model
from meshplan.inputs.profile import Profile
from meshplan.inputs.scenario import Scenario
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case
from run_tables import cases_of, tables_parser, timed


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


def share_of_uncovered(p: Prediction, covered: dict[str, set[str]]) -> float:
    """Share of the blocks that have a kind which is not covered."""
    known = covered[p.case.scenario.cluster.device.architecture]
    return float(np.mean([bool(kinds_of(each) - known) for each in p.case.scenario.model.layers]))


def main() -> None:
    """Find both, print them, and write them to the presets where that is asked for."""
    args = tables_parser(__doc__).parse_args()
    beyond = predict(beyond_columns(args.runs, args.models), memory=False, profile=plain)
    covered = covered_by(timed(cases_of(args)), beyond)
    rest = [(p, share_of_uncovered(p, covered)) for p in beyond]
    rest = [(p, share) for p, share in rest if share > 0.0]
    needs = np.array([max(0.0, excess(p)) / share for p, share in rest])
    level = level_of([p for p, _ in rest], np.array([np.log1p(p.error) for p, _ in rest]))
    found = round(float(np.quantile(needs, level)), 3)
    before = np.mean(needs == 0.0)
    print(f"{len(rest)} runs with uncovered blocks, {before:.0%} inside the band as it was;")
    print(f"share {found} holds {np.mean(needs <= found):.0%} (level {level:.2f})")
    for architecture, names in sorted(covered.items()):
        print(f"  {architecture}: {', '.join(sorted(names))}")
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
