"""Characters of a bash script to words: quotes, expansions, arrays, texts in the script.

Known are ``"${NAME[@]}"``, defaults (``:-``, ``:=``, ``:+``) and whole-number arithmetic over known
variables. Command substitutions, positional parameters and variables that the script does not set
are unknown: the word that holds one is marked and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshplan.check.arithmetic import whole_number
from meshplan.check.records import Source
from meshplan.check.shell_words import CONTINUED, UNKNOWN, Raw, State, Text, Word, line_breaks
from meshplan.errors import UserError

__all__ = ["ASSIGN", "Scanner"]

_LONGEST_WORD = 100_000
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ASSIGN = re.compile(rf"({_NAME})(\+?)=")
"""An assignment at the start of a word."""
_BRACED = re.compile(rf"\$\{{({_NAME}|\d+)(?:(:?)([-=?+])([^{{}}]*))?\}}")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_TARGET = re.compile(r"(?<![0-9>&])>{1,2}\s*([^\s<>|;&]+)")


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


class Scanner:
    """Goes through the characters of a script once."""

    def __init__(self, source: Source, state: State, *, line: int) -> None:
        self.source, self.state = source, state
        self.text, self.at, self.line = source.text, 0, line
        self.soft = False

    def peek(self, length: int = 1) -> str:
        """The next characters."""
        return self.text[self.at : self.at + length]

    def take(self) -> str:
        """Go past one character."""
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
        """Go to the end of the line."""
        while self.at < len(self.text) and self.peek() != "\n":
            self.take()

    def skip_heredoc(self) -> None:
        """Go past a text that stands in the script; where it is written to a file it is kept."""
        match = _HEREDOC.match(self.text, self.at)
        if not match:
            self.take()
            self.take()
            return
        end = re.compile(rf"^\s*{re.escape(match[2])}\s*$", re.MULTILINE)
        begin = self.text.rfind("\n", 0, self.at) + 1
        self.skip_line()
        head, start, first = self.text[begin : self.at], self.at + 1, self.line + 1
        found = end.search(self.text, self.at)
        stop = found.end() if found else len(self.text)
        target = _TARGET.search(head.replace(match[0], " "))
        if target is not None and found is not None and self.state.live:
            body = self.text[start : max(start, found.start())]
            name = self.expanded(target[1].strip("\"'"), first)
            body = body if match[1] else self.expanded(body, first)
            text = "\n" * (first - 1) + body
            kept = Source(name=self.state.source.name, text=text, called=name)
            self.state.written.append(kept)
        self.line += self.text.count("\n", self.at, stop)
        self.at = stop

    def expanded(self, text: str, line: int) -> str:
        """A text with its variables filled in, as inside double quotes."""
        quoted = Source(name=self.source.name, text='"' + text.replace('"', '\\"') + '"')
        words = Scanner(quoted, self.state, line=line).word()
        return "".join(word.text for word in words)

    def word(self) -> list[Raw]:
        """One word as written, which may expand to several or to none."""
        line, parts, quoted, self.soft = self.line, [""], False, False
        array: list[Word] | None = None
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t\n\v;|&<>)":
                break
            elif char == "(":
                if not ASSIGN.fullmatch(parts[-1]):
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
        """A word with the line that its text knows."""
        known = getattr(text, "line", line)
        return Raw(text=str(text), line=known, soft=getattr(text, "soft", self.soft))

    def escaped(self) -> str:
        """What a backslash stands before."""
        self.take()
        char = self.take() if self.at < len(self.text) else ""
        return "" if char == "\n" else char

    def unquoted(self, parts: list[str]) -> None:
        """An expansion outside quotes, which splits at blanks unless it is assigned."""
        text = self.expansion()
        split = [text] if ASSIGN.match(parts[0]) else _split(text)
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
        """A part in single quotes."""
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
        """The items of ``${NAME[@]}``; None where something else stands there."""
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
        if name not in self.state.variables:
            self.state.unset.setdefault(name, self.line)
        text = self.state.variables.get(name, UNKNOWN)
        self.soft |= getattr(text, "soft", False)
        self.state.spend(1 + len(text) // 100, self.line)
        return text

    def braced(self) -> str:
        """The value of ``${NAME}``, with a default where one is written."""
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
        if not known and not sign:
            self.state.unset.setdefault(name, self.line)
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
        """The value of ``$((...))``."""
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
