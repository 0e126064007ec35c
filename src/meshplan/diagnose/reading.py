"""Read a run from any mix of files: each is read, measured and let go before the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshplan.diagnose.columns import RankTrace
from meshplan.diagnose.layout import Layout
from meshplan.diagnose.names import rank_in_name
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.read.files import files_of, kind_of_file
from meshplan.diagnose.read.log import LogMeasures, read_log
from meshplan.diagnose.read.metrics import GpuMetrics, read_metrics
from meshplan.diagnose.read.nsight import read_nsight
from meshplan.diagnose.read.packed import is_pipe, plain_files
from meshplan.diagnose.records import Note, RankMeasures, RunMeasures
from meshplan.diagnose.run import measure_run
from meshplan.diagnose.trace import read_trace
from meshplan.diagnose.values import shown_name
from meshplan.errors import Problem, UserError
from meshplan.record import record

__all__ = ["Reading", "read_run"]


@record
class Reading:
    """How far the reading of a run has come.

    Attributes:
        file: name of the file, as it may be shown.
        number: its number, from 1.
        num_files: files in all.
        num_bytes: text of it that has been read [bytes].
        file_bytes: its size on disk, compressed if it is [bytes].
    """

    file: str
    number: int
    num_files: int
    num_bytes: int
    file_bytes: int


@dataclass(slots=True)
class _Found:
    """What has been read so far."""

    ranks: list[RankMeasures]
    logs: list[LogMeasures]
    metrics: list[GpuMetrics]
    notes: list[Note]
    problems: list[Problem]


def read_run(
    paths: Sequence[str | Path],
    *,
    layout: Layout | None = None,
    stage_times_s: Sequence[float] = (),
    progress: Callable[[Reading], None] | None = None,
) -> RunMeasures:
    """Read and measure all that a person has of a run.

    Args:
        paths: files, folders, archives and pipes (``-`` is the standard input): profiler traces,
            Nsight Systems exports, console logs, tables of GPU metrics. In a folder or an
            archive, what is none of these is named in a note.
        layout: process groups of the plan of the run, when it is known.
        stage_times_s: compute time of each pipeline stage, when it was typed by hand [s].
        progress: called while reading.

    Raises:
        UserError: when a path does not exist, or nothing of what was given could be read.
    """
    found = _read_files(paths, layout=layout, progress=progress)
    nothing = not (found.ranks or found.logs or found.metrics or stage_times_s)
    if nothing and (found.problems or found.notes):
        problems = found.problems or [
            Problem(code="trace.nothing_known", where=note.where) for note in found.notes
        ]
        raise UserError(*problems)
    return measure_run(
        _with_ranks(found.ranks),
        layout=layout,
        stage_times_s=stage_times_s,
        logs=found.logs,
        metrics=found.metrics,
        notes=[*found.notes, *map(_not_read, found.problems)],
    )


def _not_read(problem: Problem) -> Note:
    """Why a file was left out, where others could be read."""
    more = {name: str(value) for name, value in problem.numbers.items()}
    numbers = {**more, "error": problem.code, "value": str(problem.value or "")}
    return Note(code="file_not_read", where=problem.where, numbers=numbers)


def _read_files(
    paths: Sequence[str | Path],
    *,
    layout: Layout | None,
    progress: Callable[[Reading], None] | None,
) -> _Found:
    """Read one file after the other, and tell how far that has come."""
    files = files_of(paths)
    found = _Found(ranks=[], logs=[], metrics=[], notes=[], problems=[])
    for number, (path, is_named) in enumerate(files, start=1):
        size = 0 if is_pipe(path) else path.stat().st_size

        def tell(num_bytes: int, path: Path = path, number: int = number, size: int = size) -> None:
            if progress is not None:
                progress(
                    Reading(
                        file=shown_name(path),
                        number=number,
                        num_files=len(files),
                        num_bytes=num_bytes,
                        file_bytes=size,
                    )
                )

        tell(0)
        _read_all(path, found, layout=layout, progress=tell, is_named=is_named)
    return found


def _read_all(
    path: Path,
    found: _Found,
    *,
    layout: Layout | None,
    progress: Callable[[int], None],
    is_named: bool,
) -> None:
    """Read all files that a path stands for; one that cannot be read keeps no other one back."""
    is_empty = True  # an archive of nothing but links and hidden files
    try:
        for file, named in plain_files(path, is_named=is_named):
            is_empty = False
            try:
                _read(file, found, layout=layout, progress=progress, is_named=named)
            except UserError as error:
                found.problems.extend(error.problems)
    except UserError as error:
        found.problems.extend(error.problems)
        return
    if is_empty:
        found.problems.append(Problem(code="trace.empty_archive", where=shown_name(path)))


def _read(
    path: Path,
    found: _Found,
    *,
    layout: Layout | None,
    progress: Callable[[int], None],
    is_named: bool,
) -> None:
    """Read one file, measure it and let it go."""
    kind = kind_of_file(path)
    if kind == "trace":
        found.ranks.append(_measured(read_trace(path, progress=progress), layout=layout))
    elif kind == "nsight":
        for trace in read_nsight(path):
            found.ranks.append(_measured(trace, layout=layout))
    elif kind == "metrics":
        found.metrics.append(read_metrics(path))
        found.notes.extend(found.metrics[-1].notes)
    elif kind == "log":
        try:
            found.logs.append(read_log(path))
            found.notes.extend(found.logs[-1].notes)
        except UserError:
            if is_named:
                raise
            found.notes.append(Note(code="file_skipped", where=shown_name(path)))
    elif is_named and path.is_file() and not path.stat().st_size:
        raise UserError.of("trace.empty_file", where=shown_name(path))
    else:
        found.notes.append(Note(code="file_skipped", where=shown_name(path)))


def _measured(trace: RankTrace, *, layout: Layout | None) -> RankMeasures:
    """Measure a trace under the rank that it or its name states; -1 when neither does."""
    in_name = rank_in_name(trace.file)
    if trace.rank is not None:
        return measure_rank(trace, rank=trace.rank, rank_basis="metadata", layout=layout)
    if in_name is not None:
        return measure_rank(trace, rank=in_name, rank_basis="file_name", layout=layout)
    return measure_rank(trace, rank=-1, rank_basis="order", layout=layout)


def _with_ranks(ranks: Sequence[RankMeasures]) -> list[RankMeasures]:
    """Give every trace its rank.

    Where several files state one rank and their names state different ones, the names are right:
    a profile of a process without a process group calls itself rank 0. What states no rank gets
    the free numbers in order.
    """
    stated = Counter(rank.rank for rank in ranks if rank.rank_basis == "metadata")
    names = Counter(rank_in_name(rank.file) for rank in ranks)
    result: list[RankMeasures] = []
    for rank in ranks:
        in_name = rank_in_name(rank.file)
        doubtful = rank.rank_basis == "metadata" and stated[rank.rank] > 1
        if doubtful and in_name is not None and names[in_name] == 1:
            result.append(replace(rank, rank=in_name, rank_basis="file_name"))
        else:
            result.append(rank)
    taken = {rank.rank for rank in result}
    free = (number for number in range(len(ranks) + len(taken)) if number not in taken)
    return [replace(r, rank=next(free)) if r.rank < 0 else r for r in result]
