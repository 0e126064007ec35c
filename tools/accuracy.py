"""Measure the accuracy of step times on a table of runs and write the page about it.

    python tools/accuracy.py RUNS.csv MODELS.csv [--write]

Prints what each set of runs was to reach and what it reaches on the two sides of the split, every
source predicted with the default profile that was made without it, ranking, bands, what three runs
of a sweep bring, what repeats of a layout leave to any forecast, and the worst groups; ``--write``
puts the tables into docs/en/accuracy.md and docs/zh/accuracy.md.
"""

from __future__ import annotations

import numpy as np

from accuracy_calibrated import by_source, by_sweep, calibrated_sweeps
from accuracy_floor import worst_picks
from accuracy_measures import (
    bands,
    changed_picks,
    contradicting,
    hf_rows,
    left_out,
    ranking,
    reached,
    regret_fitting,
    worst,
)
from accuracy_page import HEADERS, percent, table, write
from fit_profiles import split_of
from meshplan.validate.predict import predict
from meshplan.validate.run import read_cases
from meshplan.validate.table import read_models, read_table
from run_tables import tables_parser, timed


def main() -> None:
    """Measure, print and write."""
    args = tables_parser(__doc__).parse_args()
    models = read_models(args.models)
    rows = read_table(args.runs, needs=())
    cases, skipped = read_cases(rows, models)
    num_full = sum(one.full_layout for one in skipped)
    cases = timed(cases)
    side = split_of(cases)
    predictions = predict(cases, memory=False)
    rank_rows, found = ranking(predictions)
    calibrated, known = (calibrated_sweeps(cases, known=known) for known in (False, True))
    tables = {
        "reached": reached(predictions, side, hf_rows(cases)),
        "ranking": rank_rows,
        "picks": worst_picks(predictions),
        "bands": bands(predictions, side),
        "left_out": left_out(cases),
        "calibrated": by_source(calibrated),
        "calibrated_known": by_source(known),
        "calibrated_sweeps": by_sweep(calibrated, known),
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
        "regret_fitting": regret_fitting(cases),
        **contradicting(rows, models, predictions),
    }
    for name, shown in tables.items():
        print(f"\n{name}\n{table(HEADERS['en'][name], shown)}")
    print("\nhf-ultrascale median regret", percent(float(np.median(hf))) if hf else "-", facts)
    if args.write:
        write(tables, facts)


if __name__ == "__main__":
    main()
