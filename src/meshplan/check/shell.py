"""Bash scripts read without running them: commands, assignments, branches, quoted commands.

Words come from ``shell_scanner``; tests over known variables are decided (``branches``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from meshplan.check.branches import Branches
from meshplan.check.records import Source
from meshplan.check.shell_scanner import ASSIGN, Scanner
from meshplan.check.shell_words import UNKNOWN, Raw, State, Text, Word, line_breaks
from meshplan.check.slurm import slurm_variables

__all__ = ["UNKNOWN", "Word", "commands", "cut_off", "option_words", "state_of"]

_DEEPEST = 3
_OPTION = re.compile(r"(?<![\w-])--[\w.-]+")
_PREFIXES = ("export", "declare", "local", "readonly", "typeset", "-x", "-a", "-r", "-i", "-gx")
_SHELL = re.compile(r"(?:/\S*/)?(?:ba|da|z)?sh")
_COMMAND = re.compile(r"-[a-z]*c")


def state_of(source: Source, variables: Mapping[str, str] | None = None) -> State:
    """What a script knows before its first command.

    Args:
        source: the script.
        variables: what it is started with.
    """
    return State(source=source, variables={**(variables or {}), **slurm_variables(source.text)})


def commands(source: Source, state: State | None = None) -> Iterator[list[Word]]:
    """Expand a script and give its commands in order, assignments left out.

    Args:
        source: the script.
        state: what it starts with, and what it has set and written at the end.

    Raises:
        UserError: for a quote that is not closed, with its line, and for expansions without end.
    """
    yield from _commands(source, state or state_of(source), line=1, depth=0)


def _commands(source: Source, state: State, *, line: int, depth: int) -> Iterator[list[Word]]:
    branches = Branches(state, _assign)
    for words, end in Scanner(source, state, line=line).commands():
        for rest in branches.feed(words, end):
            yield rest if depth == 0 else _placed(rest, state.source.text)
            inner = _quoted_command(rest) if depth < _DEEPEST else None
            if inner is not None:
                quoted = Source(name=source.name, text=inner.text)
                yield from _commands(quoted, state, line=inner.line, depth=depth + 1)
        state.live = branches.live


def _placed(words: list[Word], script: str) -> list[Word]:
    """Options of a quoted command with the lines on which the script first has them."""
    lines: dict[str, int] = {}
    for number, text in enumerate(script.split("\n"), 1):
        for match in _OPTION.finditer(text):
            lines.setdefault(match[0], number)
    return [replace(w, line=lines.get(w.text.partition("=")[0], w.line)) for w in words]


def _quoted_command(words: list[Word]) -> Word | None:
    """What ``bash -c "..."`` or ``eval "..."`` would run."""
    if words[0].text == "eval" and len(words) == 2:
        return words[1]
    for shell, option, inner in zip(words, words[1:], words[2:], strict=False):
        if _SHELL.fullmatch(shell.text) and _COMMAND.fullmatch(option.text):
            return inner
    return None


def option_words(found: Iterable[list[Word]]) -> list[Word]:
    """The words of the command with the most options: the training command.

    A list of options without a command may have them on as many lines as it likes.
    """
    best: list[Word] = []
    plain, others = _parted(found)
    if not any(_num_options(words) for words in others):
        others = [[word for words in plain for word in words]]
    for words in others:
        if _num_options(words) > _num_options(best):
            best = words
    return best


def cut_off(found: Iterable[list[Word]]) -> list[list[Word]]:
    """Options that bash would run as commands: the line before them does not go on."""
    plain, others = _parted(found)
    return plain if any(_num_options(words) for words in others) else []


def _parted(found: Iterable[list[Word]]) -> tuple[list[list[Word]], list[list[Word]]]:
    """Lines that begin with an option, and commands."""
    plain: list[list[Word]] = []
    others: list[list[Word]] = []
    for words in found:
        (plain if words[0].text.startswith("--") else others).append(words)
    return plain, others


def _num_options(words: list[Word]) -> int:
    return sum(word.text.startswith("--") for word in words)


def _assign(words: list[Raw], state: State) -> list[Word]:
    """Carry out the assignments in front of a command and return what is left of it."""
    rest = list(words)
    if rest and rest[0].text == "export":
        state.exported |= {word.text.partition("=")[0] for word in rest[1:]}
    while rest and rest[0].text in _PREFIXES:
        rest.pop(0)
    while rest and (match := ASSIGN.match(rest[0].text)):
        word = rest.pop(0)
        name, plus = match[1], bool(match[2])
        value = word.text[match.end() :]
        if word.items is not None:
            old = state.arrays.get(name, []) if plus else []
            state.arrays[name] = [*old, *word.items]
            state.variables.pop(name, None)
        else:
            old_text = state.variables.get(name, "") if plus else ""
            line = word.line - line_breaks(old_text)
            state.variables[name] = Text(old_text + value, line, word.soft)
            state.arrays.pop(name, None)
        state.spend(1 + len(value) // 100, word.line)
    return [Word(text=word.text, line=word.line, soft=word.soft) for word in rest]
