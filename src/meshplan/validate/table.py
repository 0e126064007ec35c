"""Read tables of runs and of models as rows of text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshplan.errors import UserError, os_reason
from meshplan.inputs.load.opening import opened

__all__ = ["Row", "Skip", "count", "flag", "models_of", "number", "read_models", "read_table"]

Row = Mapping[str, str]
csv.field_size_limit(1 << 20)
_LEAST, _MOST = 1e-9, 1e12
_MOST_COUNT = 1_000_000_000
_BLANK = ("", "-", "--", "n/a", "na", "none", "null", "?")
"""How tables write that there is nothing in a cell."""


class Skip(Exception):  # noqa: N818 - not an error: the row is counted under its reason
    """A row that cannot be modelled, with the code of the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def read_table(path: Path, *, needs: tuple[str, ...]) -> list[dict[str, str]]:
    """Read a CSV file with a header.

    Args:
        path: the file.
        needs: columns that it must have.

    Raises:
        UserError: ``table_unreadable`` or ``table_columns``.
    """
    try:
        with io.TextIOWrapper(opened(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needs if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError.of("table_columns", where=str(path), value=", ".join(missing))
            return [{k: (v or "").strip() for k, v in row.items() if k} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError.of(
            "table_unreadable", where=str(path), os_reason=os_reason(error)
        ) from error


def models_of(rows: Iterable[Row], path: Path | None) -> dict[str, dict[str, str]]:
    """Read the table of models that rows name; rows that hold their own sizes need none.

    Raises:
        UserError: when a row names a model and there is no table, or the table cannot be read.
    """
    if path is not None:
        return read_models(path)
    if any(row.get("model_key") for row in rows):
        raise UserError.of("missing_key", where="models")
    return {}


def read_models(path: Path) -> dict[str, dict[str, str]]:
    """Read a table of models, by ``model_key``."""
    rows = read_table(path, needs=("model_key", "layers", "hidden", "heads"))
    return {row["model_key"]: row for row in rows}


def number(row: Row, name: str) -> float | None:
    """Read a number; None when there is nothing in the cell.

    Raises:
        Skip: ``not_a_number`` when something else stands there (``1,024``, ``8-16``), which no
            guess should replace; ``senseless_number`` when it is negative, not finite, or
            neither 0 nor of a size that anything in a table has.
    """
    text = row.get(name, "")
    if text.lower() in _BLANK:
        return None
    try:
        value = float(text)
    except ValueError:
        raise Skip("not_a_number") from None
    if value == 0.0 or _LEAST <= value <= _MOST:
        return value
    raise Skip("senseless_number")


def count(row: Row, name: str) -> int | None:
    """Read a whole number; None when there is nothing in the cell.

    Raises:
        Skip: as :func:`number`, when it is not whole, and when it is more than anything that is
            counted.
    """
    value = number(row, name)
    if value is None:
        return None
    if value != int(value):
        raise Skip("not_a_number")
    if value > _MOST_COUNT:
        raise Skip("senseless_number")
    return int(value)


def flag(row: Row, name: str) -> bool | None:
    """Read a truth value; None when the cell is empty."""
    text = row.get(name, "").lower()
    if text in ("true", "yes", "1"):
        return True
    return False if text in ("false", "no", "0") else None
