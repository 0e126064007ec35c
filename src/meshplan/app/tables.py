"""Files that a person calls measured runs: told apart by what they hold, packed or piped or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from meshplan.diagnose.read.packed import STDIN, plain_files
from meshplan.diagnose.values import shown_name, shown_text
from meshplan.errors import UserError
from meshplan.inputs.load.opening import is_nameless, is_there
from meshplan.validate.run import NEEDED
from meshplan.validate.table import Row, is_table, models_of, read_table

__all__ = ["Measured", "measured_files", "models_for", "name_of", "read_runs", "shown"]

Measured = tuple[Path, bool]
"""A plain file, and whether it is a table of runs."""


def measured_files(path: str) -> Iterator[Measured]:
    """The plain files that a path stands for, each to be read before the next is asked for.

    Args:
        path: a table or a console log, an archive of such, or a pipe.

    Raises:
        UserError: when it cannot be opened or holds nothing.
    """
    if not is_nameless(path) and not is_there(path):
        raise UserError.of("file_missing", where=shown(path), value=shown(path))
    empty = True
    for file, _ in plain_files(Path(path), is_named=True):
        if file.is_dir():
            raise UserError.of("file_is_folder", where=shown(path), value=shown(path))
        if file.is_file() and not file.stat().st_size:
            raise UserError.of("measured_empty", where=shown(path))
        empty = False
        yield file, is_table(file, knows=NEEDED)
    if empty:
        raise UserError.of("trace.empty_archive", where=shown(path))


def shown(path: str) -> str:
    """What a path is called in messages."""
    return "stdin" if path == str(STDIN) else shown_text(path)


def name_of(path: str) -> str:
    """What a path is called in a file that lasts: its last part."""
    return "stdin" if is_nameless(path) else shown_name(Path(path))


def read_runs(path: str) -> list[dict[str, str]]:
    """Read a table of runs.

    Raises:
        UserError: when it cannot be read, lacks columns or has no rows.
    """
    return _read(path, needs=NEEDED)


def models_for(rows: Sequence[Row], path: str | None) -> dict[str, Row]:
    """Read the table of models that rows name; rows that hold their own sizes need none.

    Raises:
        UserError: when a row names a model and there is no table, or the table cannot be read.
    """
    return models_of(rows, None if path is None else lambda needs: _read(path, needs=needs))


def _read(path: str, *, needs: tuple[str, ...]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for file, _ in measured_files(path):
        rows += read_table(file, needs=needs, where=shown(path))
    if not rows:
        raise UserError.of("table_empty", where=shown(path))
    return rows
