"""The two tables that tools of accuracy read: measured runs, and the models that they name."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshplan.validate.rows import Case
from meshplan.validate.run import read_cases
from meshplan.validate.table import read_models, read_table


def tables_parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments that all such tools take: ``RUNS.csv MODELS.csv [--write]``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--write", action="store_true")
    return parser


def cases_of(args: argparse.Namespace) -> list[Case]:
    """Runs of the table that can be modelled."""
    return read_cases(read_table(args.runs, needs=()), read_models(args.models))[0]


def timed(cases: list[Case]) -> list[Case]:
    """Those whose time was measured."""
    return [case for case in cases if case.measured is not None]
