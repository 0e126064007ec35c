"""Files to one reading, whatever they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshplan.check.bridge import read_bridge
from meshplan.check.documents import Values, json_values, toml_values, yaml_values
from meshplan.check.foreign import foreign_options, knows_any, unset_variables
from meshplan.check.gather import gathered, kind_of_options
from meshplan.check.hugging_face import read_accelerate, read_arguments, read_deepspeed
from meshplan.check.maxtext import maxtext_words, read_maxtext, read_overrides
from meshplan.check.megatron import read_megatron
from meshplan.check.nanotron import read_nanotron
from meshplan.check.options import Option, options_of
from meshplan.check.records import ForeignKey, Reading, Setting, Source, joined
from meshplan.check.shell import Word, commands, cut_off, option_words, state_of
from meshplan.check.shell_words import UNKNOWN
from meshplan.check.source import kind_of
from meshplan.check.torchtitan import PACKAGES, read_schedule, read_torchtitan
from meshplan.check.torchtitan_module import read_torchtitan_module
from meshplan.check.unpack import plain_name
from meshplan.errors import ProblemList, UserError

__all__ = ["read_files", "read_text"]

_PRINTERS = ("echo", "printf", "cat")
# Options that name a config file; ``deepspeed`` is a mere flag elsewhere.
_FILES = ("deepspeed", "deepspeed-config", "config-file", "job.config-file")


def read_files(paths: Sequence[str]) -> Reading:
    """Read all files of one run.

    Raises:
        UserError: with everything that is wrong in them, each with its line.
    """
    problems = ProblemList()
    jobs, sources = gathered(paths, problems)
    variables = {name: value for job in jobs for name, value in job.variables.items()}
    readings = []
    wanted: str | None = None
    # modules last, since a command says which of their functions counts
    for source in sorted(sources, key=lambda s: plain_name(s.name).endswith(".py")):
        try:
            found = read_text(source, problems=problems, wanted=wanted, variables=variables)
        except UserError as error:
            problems.extend(error)
        else:
            readings.append(found)
            wanted = found.function or wanted
    problems.raise_if_any()
    reading = joined(readings, around=[job.settings for job in jobs])
    read = {_base(name) for s in sources for name in (s.name, s.called)}
    return replace(
        reading, named=tuple(n for n in reading.named if _base(str(n.value)) not in read)
    )


def _base(path: str) -> str:
    return plain_name(path.replace("\\", "/").rsplit("/", 1)[-1])


def read_text(
    source: Source,
    *,
    problems: ProblemList,
    wanted: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Reading:
    """Read one file.

    Args:
        source: the file.
        problems: takes what is wrong in it.
        wanted: the function of a Python module that counts, where a command names one.
        variables: what a script is started with.

    Raises:
        UserError: when it is no config that we know.
    """
    match kind_of(source):
        case "deepspeed":
            return read_deepspeed(_of_its_kind(json_values(source, problems), "deepspeed"))
        case "accelerate":
            return read_accelerate(yaml_values(source, problems))
        case "nanotron":
            return read_nanotron(yaml_values(source, problems))
        case "maxtext":
            return read_maxtext(yaml_values(source, problems))
        case "torchtitan_toml":
            values = _of_its_kind(toml_values(source, problems), "torchtitan")
            return read_torchtitan(values, [], file=source.name, problems=problems)
        case "job":
            raise UserError.of("check_unknown_kind", where=source.name, value=source.name)
        case "torchtitan_module":
            return read_torchtitan_module(source, problems=problems, wanted=wanted)
        case "torchtitan_schedule":
            return read_schedule(source)
        case "shell":
            return _read_shell(source, problems, variables)


def _of_its_kind(values: Values, kind: str) -> Values:
    """A file of a format that many programs share.

    Raises:
        UserError: when not one of its keys is that framework's.
    """
    if values.data and not knows_any(values, kind):
        name = values.source.name
        raise UserError.of("check_unknown_kind", where=name, value=name)
    return values


def _read_shell(
    source: Source, problems: ProblemList, variables: Mapping[str, str] | None
) -> Reading:
    state = state_of(source, variables)
    found = list(commands(source, state))
    if (training := maxtext_words(found)) is not None:
        return read_overrides(training, file=source.name, problems=problems)
    words = option_words(found)
    options = list(options_of(words))
    reading = _read_options(options, source, problems)
    for rest in cut_off(found):
        where = f"{source.name}:{rest[0].line}"
        problems.add("check_cut_off", where=where, value=rest[0].text.replace(UNKNOWN, "?"))
    return replace(
        reading,
        foreign=(
            *reading.foreign,
            *_misspelt(words, options, source.name),
            *unset_variables(state),
        ),
        named=tuple(_named_files(options, source.name)),
        function=_function(options),
        unknown=(*reading.unknown, *_rivals([words, *found], source.name)),
    )


_LAUNCHERS = re.compile(r"(?:.*/)?(?:torchrun|accelerate|deepspeed|python[\d.]*|.*\.py)")
# Commands whose options are those of one parser, and whose scripts may add others.
_PARSED = ("megatron", "hugging_face")


def _misspelt(words: list[Word], options: list[Option], file: str) -> tuple[ForeignKey, ...]:
    """Options that look like misspelt ones; those before a launcher are a scheduler's."""
    kind = kind_of_options(options)
    if kind not in _PARSED:
        return ()
    plain = bool(words) and words[0].text.startswith("--")
    starts = (i for i, word in enumerate(words) if plain or _LAUNCHERS.fullmatch(word.text))
    at = next(starts, None)
    return () if at is None else foreign_options(list(options_of(words[at:])), kind, file=file)


def _rivals(runs: list[list[Word]], file: str) -> list[Setting]:
    """Training commands, where a script has several: only a run would show which one it takes."""
    found: dict[int, str] = {}
    for words in runs:
        if not words or words[0].text in _PRINTERS:
            continue
        if kind_of_options(list(options_of(words))) is not None:
            named = [word.text for word in words if word.text.endswith(".py")]
            found.setdefault(words[0].line, named[0] if named else words[0].text)
    if len(found) < 2:
        return []
    return [
        Setting(value="command", where=f"{file}:{line}", spelled=name)
        for line, name in found.items()
    ]


def _named_files(options: list[Option], file: str) -> Iterator[Setting]:
    """Config files that a command names."""
    for option in options:
        if option.name in _FILES and option.value and UNKNOWN not in option.value:
            spelled = f"--{option.name}"
            yield Setting(value=option.value, where=f"{file}:{option.line}", spelled=spelled)
        elif option.name == "module" and option.value and option.value not in PACKAGES:
            place = f"{option.value.replace('.', '/')}.py"
            yield Setting(value=place, where=f"{file}:{option.line}", spelled="--module")


def _function(options: list[Option]) -> str | None:
    """The function of a module of torchtitan that makes its config."""
    given = {option.name: option.value for option in options}
    return given.get("config") if "module" in given else None


def _read_options(options: list[Option], source: Source, problems: ProblemList) -> Reading:
    match kind_of_options(options):
        case "megatron":
            return read_megatron(options, file=source.name, problems=problems)
        case "bridge":
            return read_bridge(options, file=source.name, problems=problems)
        case "torchtitan":
            return read_torchtitan(None, options, file=source.name, problems=problems)
        case "hugging_face":
            return read_arguments(options, file=source.name, problems=problems)
    raise UserError.of("check_unknown_kind", where=source.name, value=source.name)
