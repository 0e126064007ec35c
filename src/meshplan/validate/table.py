"""Read tables of runs and of models as rows of text."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from meshplan.errors import UserError, os_reason
from meshplan.inputs.load.opening import opened

__all__ = [
    "Row",
    "Skip",
    "count",
    "flag",
    "is_table",
    "models_of",
    "number",
    "read_models",
    "read_table",
]

Row = Mapping[str, str]
csv.field_size_limit(1 << 20)
_DELIMITERS = (",", ";", "\t")
_GZIP = b"\x1f\x8b"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LONGEST_HEADER = 1 << 16
_FEWEST_KNOWN = 2
"""Known columns by which a table is told from a line of a log that has a comma."""
_OF_MODELS = ("model_key", "layers", "hidden", "heads")
_LEAST, _MOST = 1e-9, 1e12
_MOST_COUNT = 1_000_000_000
_BLANK = ("", "-", "--", "n/a", "na", "none", "null", "?")
"""How tables write that there is nothing in a cell."""


class Skip(Exception):  # noqa: N818 - not an error: the row is counted under its reason
    """A row that cannot be modelled, with the code of the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def is_table(path: Path, *, knows: Collection[str]) -> bool:
    """Whether a file begins as a table does: with names of columns, some of which are known."""
    try:
        with _opened_text(path, errors="replace") as file:
            header = _header(file)
    except (OSError, UnicodeError, EOFError, zlib.error):
        return False
    return len(_known_columns(header, _delimiter(header, knows), knows)) >= _FEWEST_KNOWN


def read_table(path: Path, *, needs: tuple[str, ...], where: str = "") -> list[dict[str, str]]:
    """Read a table with a header: CSV, or what spreadsheets write with semicolons or tabs.

    Args:
        path: the file, plain or gzipped.
        needs: columns that it must have.
        where: what it is called in messages; its path by default.

    Raises:
        UserError: ``table_unreadable`` or ``table_columns``.
    """
    where = where or str(path)
    try:
        with _opened_text(path) as file:
            header = _header(file)
            delimiter = _delimiter(header, needs)
            names = next(csv.reader([header], delimiter=delimiter), [])
            names = [name.strip() for name in names]
            missing = [name for name in needs if name not in names]
            if missing:
                raise UserError.of("table_columns", where=where, value=", ".join(missing))
            reader = csv.DictReader(file, names, delimiter=delimiter)
            return [{k: (v or "").strip() for k, v in row.items() if k} for row in reader]
    except (OSError, EOFError, zlib.error, UnicodeError, csv.Error) as error:
        raise UserError.of("table_unreadable", where=where, os_reason=os_reason(error)) from error


@contextmanager
def _opened_text(path: Path, *, errors: str = "strict") -> Iterator[io.TextIOWrapper]:
    """The text of a file, in UTF-8 or the UTF-16 of spreadsheets, gzipped or not."""
    with opened(path) as plain:
        stream = cast(io.BufferedReader, plain)
        if stream.peek(2)[:2] == _GZIP:
            stream = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=plain)))
        encoding = "utf-16" if stream.peek(2)[:2] in _UTF_16 else "utf-8-sig"
        with io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline="") as text:
            yield text


def _header(file: io.TextIOWrapper) -> str:
    """The first line that says something."""
    while line := file.readline(_LONGEST_HEADER):
        if line.strip():
            return line
    return ""


def _delimiter(header: str, knows: Collection[str]) -> str:
    """What stands between the cells of a table: what tells most known columns apart."""
    return max(_DELIMITERS, key=lambda mark: len(_known_columns(header, mark, knows)))


def _known_columns(header: str, delimiter: str, knows: Collection[str]) -> set[str]:
    try:
        names = next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:
        return set()
    return {name.strip() for name in names}.intersection(knows)


def models_of(
    rows: Iterable[Row], read: Callable[[tuple[str, ...]], list[dict[str, str]]] | None
) -> dict[str, Row]:
    """Read the table of models that rows name; rows that hold their own sizes need none.

    Args:
        rows: the rows.
        read: reads the table, given the columns that it must have; None where there is none.

    Raises:
        UserError: ``table_without_models`` when a row names a model and there is no table.
    """
    if read is not None:
        return _by_key(read(_OF_MODELS))
    if any(row.get("model_key") for row in rows):
        raise UserError.of("table_without_models", where="--models")
    return {}


def read_models(path: Path) -> dict[str, Row]:
    """Read a table of models, by ``model_key``."""
    return _by_key(read_table(path, needs=_OF_MODELS))


def _by_key(rows: Iterable[Row]) -> dict[str, Row]:
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
