"""Bash scripts read without running them: quotes, variables, arrays, continued lines.

Known are assignments, ``NAME+=``, arrays, ``"${NAME[@]}"``, defaults (``:-``, ``:=``, ``:+``),
whole-number arithmetic and tests over known variables (``branches``). Command substitutions,
positional parameters and variables that the script does not set are unknown: the word that holds
one is marked and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshplan.check.arithmetic import whole_number
from meshplan.check.branches import Branches
from meshplan.check.records import Source
from meshplan.check.shell_words import CONTINUED, UNKNOWN, Raw, State, Text, Word, line_breaks
from meshplan.check.slurm import slurm_variables
from meshplan.errors import UserError

__all__ = ["UNKNOWN", "Word", "commands", "option_words"]

_LONGEST_WORD = 100_000
_DEEPEST = 3
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGN = re.compile(rf"({_NAME})(\+?)=")
_BRACED = re.compile(rf"\$\{{({_NAME}|\d+)(?:(:?)([-=?+])([^{{}}]*))?\}}")
_OPTION = re.compile(r"(?<![\w-])--[\w.-]+")
_PREFIXES = ("export", "declare", "local", "readonly", "typeset", "-x", "-a", "-r", "-i", "-gx")
_SHELL = re.compile(r"(?:/\S*/)?(?:ba|da|z)?sh")
_COMMAND = re.compile(r"-[a-z]*c")


def commands(source: Source) -> Iterator[list[Word]]:
    """Expand a script and give its commands in order, assignments left out.

    Raises:
        UserError: for a quote that is not closed, with its line, and for expansions without end.
    """
    state = State(source=source, variables=slurm_variables(source.text))
    yield from _commands(source, state, line=1, depth=0)


def _commands(source: Source, state: State, *, line: int, depth: int) -> Iterator[list[Word]]:
    branches = Branches(state, _assign)
    for words, end in _Scanner(source, state, line=line).commands():
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
    """The words of the command with the most options: the training command."""
    best: list[Word] = []
    for words in found:
        if _num_options(words) > _num_options(best):
            best = words
    return best


def _num_options(words: list[Word]) -> int:
    return sum(word.text.startswith("--") for word in words)


def _assign(words: list[Raw], state: State) -> list[Word]:
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
            line = word.line - line_breaks(old_text)
            state.variables[name] = Text(old_text + value, line, word.soft)
            state.arrays.pop(name, None)
        state.spend(1 + len(value) // 100, word.line)
    return [Word(text=word.text, line=word.line, soft=word.soft) for word in rest]


def _glued(before: str, text: str) -> str:
    """Put text behind a word that may be empty, keeping the line where it is."""
    return before + text if before or not isinstance(text, Text) else text


def _split(text: str) -> list[str]:
    """Split at blanks as an expansion without quotes does, each word with its line."""
    start: int | None = getattr(text, "line", None)
    if start is None:
        return text.split()
    return [
        Text(match[0], start + line_breaks(text, match.start()), getattr(text, "soft", False))
        for match in re.finditer(r"\S+", text)
    ]


class _Scanner:
    """Goes through the characters of a script once."""

    def __init__(self, source: Source, state: State, *, line: int) -> None:
        self.source, self.state = source, state
        self.text, self.at, self.line = source.text, 0, line
        self.soft = False

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def take(self) -> str:
        char = self.text[self.at]
        self.at += 1
        if char in "\n\v":
            self.line += 1
        return char

    def commands(self) -> Iterator[tuple[list[Raw], str]]:
        """Commands as raw words, each with what ends it."""
        words: list[Raw] = []
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t\v":
                self.take()
            elif self.peek(2) == "\\\n":
                self.take()
                self.take()
            elif char == "#":
                self.skip_line()
            elif self.peek(2) == "<<" and self.peek(3) != "<<<":
                self.skip_heredoc()
            elif char in "\n;|&(){}":
                end = self.peek(2) if self.peek(2) in ("&&", "||", ";;") else char
                for _ in end:
                    self.take()
                yield words, end
                words = []
            elif char in "<>":
                self.take()
            else:
                words += self.word()
                self.state.spend(1, self.line)
        if words:
            yield words, ""

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

    def word(self) -> list[Raw]:
        """One word as written, which may expand to several or to none."""
        line, parts, quoted, self.soft = self.line, [""], False, False
        array: list[Word] | None = None
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t\n\v;|&<>)":
                break
            elif char == "(":
                if not _ASSIGN.fullmatch(parts[-1]):
                    break
                array = self.array()
            elif char == "\\":
                parts[-1] += self.escaped()
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
        if array is not None:
            return [Raw(text=parts[0], line=line, items=array)]
        return [self.raw(text, line) for text in parts]

    def raw(self, text: str, line: int) -> Raw:
        known = getattr(text, "line", line)
        return Raw(text=str(text), line=known, soft=getattr(text, "soft", self.soft))

    def escaped(self) -> str:
        self.take()
        char = self.take() if self.at < len(self.text) else ""
        return "" if char == "\n" else char

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
                items += [Word(text=w.text, line=w.line, soft=w.soft) for w in self.word()]
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
                continued = CONTINUED if beside else ""
                parts[-1] += continued if self.peek() == "\n" else self.peek()
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
            items: list[str] = [Text(w.text, w.line, w.soft) for w in self.state.arrays[match[1]]]
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
            if items is None:
                return self.braced()
            self.soft |= any(getattr(item, "soft", False) for item in items)
            return " ".join(items)
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
        self.soft |= getattr(text, "soft", False)
        self.state.spend(1 + len(text) // 100, self.line)
        return text

    def braced(self) -> str:
        match = _BRACED.match(self.text, self.at)
        if match is None:
            self.skip_nested("{", "}")
            return UNKNOWN
        self.line += match[0].count("\n")
        self.at = match.end()
        name, colon, sign, plain = match[1], match[2], match[3], (match[4] or "").strip("\"'")
        known = name in self.state.variables or name in self.state.arrays
        value = self.value(name) if known else UNKNOWN
        instead = UNKNOWN if "$" in plain or "`" in plain else plain
        emptied = bool(colon) and value == ""
        if sign == "+":
            filled = "" if emptied else instead
            return UNKNOWN if UNKNOWN in value else filled
        if known and not emptied:
            return value
        if sign in ("-", "="):
            self.soft |= not emptied
            if sign == "=" and self.state.live:
                self.state.variables[name] = Text(instead, self.line, not emptied)
            return instead
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
        filled = re.sub(rf"\$?\{{?({_NAME})\}}?", lambda m: self.value(m[1]), inner)
        number = whole_number(filled.replace("/", "//"))
        return UNKNOWN if number is None else str(number)
