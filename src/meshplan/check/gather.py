"""All files of one run: those that are given, and what they carry, start and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshplan.check.bridge import is_bridge
from meshplan.check.jobs import Job, job_of, starts_other
from meshplan.check.maxtext import maxtext_words
from meshplan.check.options import Option, options_of
from meshplan.check.records import Source
from meshplan.check.shell import commands, option_words, state_of
from meshplan.check.shell_words import UNKNOWN
from meshplan.check.slurm import slurm_settings, slurm_variables
from meshplan.check.source import kind_of, read_source
from meshplan.errors import ProblemList, UserError

__all__ = ["gathered", "kind_of_options"]

_MEGATRON = (
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "micro-batch-size",
    "num-layers",
    "use-distributed-optimizer",
)
_HUGGING_FACE = ("per-device-train-batch-size", "deepspeed", "config-file", "num-processes")


def gathered(
    paths: Sequence[str], problems: ProblemList
) -> tuple[tuple[Job, ...], tuple[Source, ...]]:
    """Open files and tell what starts a run from what says how it trains.

    Args:
        paths: the files.
        problems: takes what is wrong with them.

    Returns:
        What stands around the run, and the files that describe it: those that another one carries
        or writes included.

    Raises:
        UserError: with everything that is wrong.
    """
    queue: list[Source] = []
    for path in paths:
        try:
            queue.append(read_source(path))
        except UserError as error:
            problems.extend(error)
    jobs: list[Job] = []
    rest: list[Source] = []
    while queue:
        source = queue.pop(0)
        try:
            job, trains = _looked_at(source, problems)
        except UserError as error:
            # a text that a script writes may be anything
            if not source.called or source.called.endswith(".sh"):
                problems.extend(error)
            continue
        jobs.append(job)
        queue += job.sources
        if trains:
            rest.append(source)
    if not rest and not problems:
        named = [setting for job in jobs for setting in job.named]
        problems.add(
            "check_starts_other",
            where=named[0].where if named else str(paths[0]),
            value=", ".join(str(setting.value) for setting in named) or "-",
        )
    problems.raise_if_any()
    return tuple(jobs), tuple(rest)


def _looked_at(source: Source, problems: ProblemList) -> tuple[Job, bool]:
    """What a file adds to others, and whether it says itself how the run trains."""
    kind = kind_of(source)
    if kind == "job":
        return job_of(source, problems), False
    if kind != "shell":
        return Job(), True
    state = state_of(source)
    found = list(commands(source, state))
    trains = kind_of_options(list(options_of(option_words(found)))) is not None
    if trains or maxtext_words(found) is not None:
        return Job(settings=slurm_settings(source), sources=tuple(state.written)), True
    known = {n: v for n, v in state.variables.items() if n in state.exported and UNKNOWN not in v}
    passed = {**slurm_variables(source.text), **{name: str(value) for name, value in known.items()}}
    job = starts_other(source, found, passed)
    if not job.named:
        raise UserError.of("check_unknown_kind", where=source.name, value=source.name)
    return replace(job, sources=tuple(state.written)), False


def kind_of_options(options: list[Option]) -> str | None:
    """Whose options a command has; None where it trains nothing that we know."""
    names = {option.name for option in options}
    if names & set(_MEGATRON):
        return "megatron"
    if is_bridge(options):
        return "bridge"
    if {"module", "config"} <= names or any(_is_torchtitan(option) for option in options):
        return "torchtitan"
    return "hugging_face" if names & set(_HUGGING_FACE) else None


def _is_torchtitan(option: Option) -> bool:
    return option.name.startswith(("parallelism.", "training.", "activation-checkpoint"))
