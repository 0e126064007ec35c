"""Options of a command line: ``--name value``, ``--name=value``, ``--name value value``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from meshplan.check.records import Setting
from meshplan.check.shell_words import UNKNOWN, Word
from meshplan.errors import ProblemList
from meshplan.record import record

__all__ = ["Option", "options_of", "whole"]


@record
class Option:
    """An option with its values, dashes in its name made alike.

    Attributes:
        name: without dashes in front, ``_`` turned to ``-``.
        values: the words after it.
        line: where it stands.
        lines: where each of its values does.
        soft: whether a value is a default of the script, which a run may override.
        undecided: whether only a run would show if it is given at all.
        written: how the file has it, where that is no dashed option.
    """

    name: str
    values: tuple[str, ...]
    line: int
    lines: tuple[int, ...] = ()
    soft: bool = False
    undecided: bool = False
    written: str = ""

    @property
    def spelled(self) -> str:
        """How a person would find it in the file."""
        return self.written or f"--{self.name}"

    @property
    def value(self) -> str:
        """The first value; empty for a flag."""
        return self.values[0] if self.values else ""


def options_of(words: Iterable[Word]) -> Iterator[Option]:
    """Group words to options; a word that starts with a digit after a dash is a value."""
    found: list[Word] = []
    for word in words:
        if word.text.startswith("--") and len(word.text) > 2:
            if found:
                yield _option(found)
            found = [word]
        elif found:
            found.append(word)
    if found:
        yield _option(found)


def _option(words: list[Word]) -> Option:
    head, equals, tail = words[0].text[2:].partition("=")
    values = ([tail] if equals else []) + [word.text for word in words[1:]]
    return Option(
        name=head.replace("_", "-"),
        values=tuple(values),
        line=words[0].line,
        lines=(*([words[0].line] if equals else []), *(word.line for word in words[1:])),
        soft=any(word.soft for word in words),
        undecided=bool(equals) and tail == UNKNOWN,
    )


def whole(
    option: Option,
    *,
    file: str,
    table: Mapping[str, str],
    settings: dict[str, Setting],
    unknown: list[Setting],
    problems: ProblemList,
) -> bool:
    """Read an option whose value is a whole number.

    Args:
        option: the option.
        file: where it stands.
        table: option name to the name of our setting.
        settings: where the value goes.
        unknown: where it goes when only a run would show it.
        problems: what is wrong.

    Returns:
        Whether the option is in the table.
    """
    ours = table.get(option.name)
    if ours is None:
        return False
    where, spelled = f"{file}:{option.line}", option.spelled
    if UNKNOWN in option.value:
        unknown.append(Setting(value=ours, where=where, spelled=spelled))
    elif not option.value.isdecimal() or len(option.value) > 15 or int(option.value) < 1:
        problems.add("check_not_a_count", where=where, value=option.value[:40], option=spelled)
    else:
        value = int(option.value)
        known = settings.get(ours)
        # the last one counts, as it does for the framework's own parser
        if known is None or known.spelled == spelled:
            settings[ours] = Setting(value=value, where=where, spelled=spelled, soft=option.soft)
        elif known.value != value:
            problems.add(
                "check_contradiction",
                where=where,
                value=value,
                option=spelled,
                other=known.place,
                other_value=known.value,
            )
    return True
