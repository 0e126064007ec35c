"""Bash scripts read without running them: quotes, variables, arrays, continued lines.

Known are assignments, ``NAME+=``, arrays, ``${NAME:-default}``, ``"${NAME[@]}"`` and whole-number
arithmetic over known variables. Command substitutions, positional parameters and variables that the
script does not set are unknown: the word that holds one is marked and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshplan.check.arithmetic import whole_number
from meshplan.check.records import Source
from meshplan.check.slurm import slurm_variables
from meshplan.errors import UserError

__all__ = ["UNKNOWN", "Word", "commands", "option_words"]

UNKNOWN = "\ufffd"
"""Stands in a word for what only a run would show."""

_MOST_WORDS = 50_000
_LONGEST_WORD = 100_000
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGN = re.compile(rf"({_NAME})(\+?)=")
_PREFIXES = ("export", "declare", "local", "readonly", "typeset", "-x", "-a", "-r", "-i", "-gx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command after expansion, with the line it stands on."""

    text: str
    line: int


class _Text(str):
    """A word that knows the line on which it was written."""

    line: int

    def __new__(cls, text: str, line: int) -> _Text:
        made = super().__new__(cls, text)
        made.line = line
        return made


@dataclass(slots=True, kw_only=True)
class _State:
    """Variables that the script has set so far."""

    source: Source
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    left: int = _MOST_WORDS

    def spend(self, number: int, line: int) -> None:
        """Refuse scripts that grow without end."""
        self.left -= number
        if self.left < 0:
            where = f"{self.source.name}:{line}"
            raise UserError.of("check_too_many_words", where=where, value=_MOST_WORDS)


def commands(source: Source) -> Iterator[list[Word]]:
    """Expand a script and give its commands in order, assignments left out.

    Raises:
        UserError: for a quote that is not closed, with its line, and for expansions without end.
    """
    state = _State(source=source, variables=slurm_variables(source.text))
    scanner = _Scanner(source, state)
    for words in scanner.commands():
        rest = _assign(words, state)
        if rest:
            yield rest


def option_words(source: Source) -> list[Word]:
    """The words of the command with the most options: the training command."""
    best: list[Word] = []
    for words in commands(source):
        if _num_options(words) > _num_options(best):
            best = words
    return best


def _num_options(words: list[Word]) -> int:
    return sum(word.text.startswith("--") for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    """A word before assignment: its text, or the items of an array."""

    text: str
    line: int
    items: list[Word] | None = None


def _assign(words: list[_Raw], state: _State) -> list[Word]:
    """Carry out the assignments in front of a command and return what is left of it."""
    rest = list(words)
    while rest and rest[0].text in _PREFIXES:
        rest.pop(0)
    while rest and (match := _ASSIGN.match(rest[0].text)):
        word = rest.pop(0)
        name, plus = match[1], bool(match[2])
        value = word.text[match.end() :]
        if word.items is not None:
            old = state.arrays.get(name, []) if plus else []
            state.arrays[name] = [*old, *word.items]
            state.variables.pop(name, None)
        else:
            old_text = state.variables.get(name, "") if plus else ""
            state.variables[name] = _Text(old_text + value, word.line - old_text.count("\n"))
            state.arrays.pop(name, None)
        state.spend(1 + len(value) // 100, word.line)
    return [Word(text=word.text, line=word.line) for word in rest]


def _glued(before: str, text: str) -> str:
    """Put text behind a word that may be empty, keeping the line where it is."""
    return before + text if before or not isinstance(text, _Text) else text


def _split(text: str) -> list[str]:
    """Split at blanks as an expansion without quotes does, each word with its line."""
    start: int | None = getattr(text, "line", None)
    if start is None:
        return text.split()
    return [
        _Text(match[0], start + text.count("\n", 0, match.start()))
        for match in re.finditer(r"\S+", text)
    ]


class _Scanner:
    """Goes through the characters of a script once."""

    def __init__(self, source: Source, state: _State) -> None:
        self.source, self.state = source, state
        self.text, self.at, self.line = source.text, 0, 1

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def take(self) -> str:
        char = self.text[self.at]
        self.at += 1
        if char == "\n":
            self.line += 1
        return char

    def commands(self) -> Iterator[list[_Raw]]:
        """Commands as raw words."""
        words: list[_Raw] = []
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t":
                self.take()
            elif self.peek(2) == "\\\n":
                self.take()
                self.take()
            elif char == "#":
                self.skip_line()
            elif self.peek(2) == "<<" and self.peek(3) != "<<<":
                self.skip_heredoc()
            elif char in "\n;|&(){}":
                self.take()
                if words:
                    yield words
                words = []
            elif char in "<>":
                self.take()
            else:
                words += self.word()
                self.state.spend(1, self.line)
        if words:
            yield words

    def skip_line(self) -> None:
        while self.at < len(self.text) and self.peek() != "\n":
            self.take()

    def skip_heredoc(self) -> None:
        match = re.compile(r"<<-?\s*(['\"]?)(\w+)\1").match(self.text, self.at)
        if not match:
            self.take()
            self.take()
            return
        end = re.compile(rf"^\s*{re.escape(match[2])}\s*$", re.MULTILINE)
        self.skip_line()
        found = end.search(self.text, self.at)
        stop = found.end() if found else len(self.text)
        self.line += self.text.count("\n", self.at, stop)
        self.at = stop

    def word(self) -> list[_Raw]:
        """One word as written, which may expand to several or to none."""
        line, parts, quoted = self.line, [""], False
        array: list[Word] | None = None
        while self.at < len(self.text):
            char = self.peek()
            if self.peek(2) == "\\\n":
                self.take()
                self.take()
            elif char in " \t\n;|&<>)":
                break
            elif char == "(":
                if not _ASSIGN.fullmatch(parts[-1]):
                    break
                array = self.array()
            elif char == "\\":
                self.take()
                parts[-1] += self.take() if self.at < len(self.text) else ""
            elif char == "'":
                parts[-1] += self.single()
                quoted = True
            elif char == '"':
                parts = self.double(parts)
                quoted = True
            elif char in "$`":
                self.unquoted(parts)
            else:
                parts[-1] += self.take()
            if len(parts[-1]) > _LONGEST_WORD:
                where = f"{self.source.name}:{line}"
                raise UserError.of("check_too_many_words", where=where, value=_LONGEST_WORD)
        if parts == [""] and not quoted and array is None:
            return []
        self.state.spend(len(parts), line)
        made = [_Raw(text=str(text), line=getattr(text, "line", line)) for text in parts]
        return made if array is None else [_Raw(text=parts[0], line=line, items=array)]

    def unquoted(self, parts: list[str]) -> None:
        """An expansion outside quotes, which splits at blanks unless it is assigned."""
        text = self.expansion()
        split = [text] if _ASSIGN.match(parts[0]) else _split(text)
        if split:
            parts[-1] = _glued(parts[-1], split[0])
            parts += split[1:]

    def array(self) -> list[Word]:
        """The items of ``NAME=( ... )``."""
        start = self.line
        self.take()
        items: list[Word] = []
        while self.at < len(self.text):
            char = self.peek()
            if char == ")":
                self.take()
                return items
            if char == "#":
                self.skip_line()
            elif char in " \t\n;|&<>(":
                self.take()
            elif self.peek(2) == "\\\n":
                self.take()
                self.take()
            else:
                items += [Word(text=raw.text, line=raw.line) for raw in self.word()]
        raise UserError.of("check_not_closed", where=f"{self.source.name}:{start}", value="(")

    def single(self) -> str:
        start = self.line
        self.take()
        end = self.text.find("'", self.at)
        if end < 0:
            raise UserError.of("check_not_closed", where=f"{self.source.name}:{start}", value="'")
        text = self.text[self.at : end]
        self.line += text.count("\n")
        self.at = end + 1
        return text

    def double(self, parts: list[str]) -> list[str]:
        """A double-quoted part; ``"${NAME[@]}"`` makes one word of each item."""
        start = self.line
        self.take()
        while self.at < len(self.text):
            char = self.peek()
            if char == '"':
                self.take()
                return parts
            if char == "\\" and self.at + 1 < len(self.text):
                self.take()
                # beside a blank the line break is kept: it splits nothing and counts lines
                beside = parts[-1][-1:].isspace() or self.peek(2)[1:].isspace()
                parts[-1] += "" if self.peek() == "\n" and not beside else self.peek()
                self.take()
            elif char in "$`":
                items = self.array_items()
                if items is None:
                    parts[-1] += self.expansion()
                elif items:
                    parts[-1] = _glued(parts[-1], items[0])
                    parts += items[1:]
            else:
                parts[-1] += self.take()
        raise UserError.of("check_not_closed", where=f"{self.source.name}:{start}", value='"')

    def array_items(self) -> list[str] | None:
        match = re.compile(rf"\$\{{({_NAME})\[[@*]\]\}}").match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        if match[1] in self.state.arrays:
            items: list[str] = [_Text(word.text, word.line) for word in self.state.arrays[match[1]]]
        else:
            items = [self.state.variables.get(match[1], UNKNOWN)]
        self.state.spend(len(items), self.line)
        return items

    def expansion(self) -> str:
        """The value of ``$...``, ``$(...)``, ``$((...))`` or backquotes."""
        if self.peek() == "`":
            self.take()
            while self.at < len(self.text) and self.take() != "`":
                pass
            return UNKNOWN
        if self.peek(3) == "$((":
            return self.arithmetic()
        if self.peek(2) == "$(":
            self.skip_nested("(", ")")
            return UNKNOWN
        if self.peek(2) == "${":
            items = self.array_items()
            return " ".join(items) if items is not None else self.braced()
        match = re.compile(rf"\$({_NAME})").match(self.text, self.at)
        if match is None:
            self.take()
            if self.at < len(self.text) and self.peek() in "@*#?$!0123456789-":
                self.take()
                return UNKNOWN
            return "$"
        self.at = match.end()
        return self.value(match[1])

    def value(self, name: str) -> str:
        """A variable's value; an array's name alone means its first item."""
        if name in self.state.arrays:
            items = self.state.arrays[name]
            return items[0].text if items else ""
        text = self.state.variables.get(name, UNKNOWN)
        self.state.spend(1 + len(text) // 100, self.line)
        return text

    def braced(self) -> str:
        match = re.compile(rf"\$\{{({_NAME})(?::?([-=?+])([^{{}}]*))?\}}").match(self.text, self.at)
        if match is None:
            self.skip_nested("{", "}")
            return UNKNOWN
        self.line += match[0].count("\n")
        self.at = match.end()
        name, sign, default = match[1], match[2], match[3] or ""
        if name in self.state.variables or name in self.state.arrays:
            return self.value(name)
        if sign in ("-", "="):
            plain = default.strip("\"'")
            return UNKNOWN if "$" in plain or "`" in plain else plain
        return UNKNOWN

    def skip_nested(self, opening: str, closing: str) -> None:
        """Go past ``$( ... )``; what is inside stays unread."""
        start, depth = self.line, 0
        while self.at < len(self.text):
            char = self.take()
            if char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    return
        where = f"{self.source.name}:{start}"
        raise UserError.of("check_not_closed", where=where, value=f"${opening}")

    def arithmetic(self) -> str:
        end = self.text.find("))", self.at)
        if end < 0:
            where = f"{self.source.name}:{self.line}"
            raise UserError.of("check_not_closed", where=where, value="$((")
        inner = self.text[self.at + 3 : end]
        self.line += inner.count("\n")
        self.at = end + 2
        filled = re.sub(
            rf"\$?\{{?({_NAME})\}}?", lambda m: self.state.variables.get(m[1], UNKNOWN), inner
        )
        number = whole_number(filled.replace("/", "//"))
        return UNKNOWN if number is None else str(number)
