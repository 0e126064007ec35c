"""Words, variables and arrays of a script that is read without being run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meshplan.check.records import Source
from meshplan.errors import UserError
from meshplan.record import record

__all__ = ["CONTINUED", "UNKNOWN", "Kept", "Raw", "State", "Text", "Word", "line_breaks"]

UNKNOWN = "\ufffd"
"""Stands in a word for what only a run would show."""

CONTINUED = "\v"
"""Stands in a text for a continued line: a blank that counts lines."""

_MOST_WORDS = 50_000


def line_breaks(text: str, end: int | None = None) -> int:
    """Lines that a text, or the part of it before ``end``, goes on for."""
    stop = len(text) if end is None else end
    return text.count("\n", 0, stop) + text.count(CONTINUED, 0, stop)


@record
class Word:
    """One word of a command after expansion.

    Attributes:
        text: the word.
        line: where it stands.
        soft: whether it holds a default such as ``${NNODES:-1}``, which a run may override.
    """

    text: str
    line: int
    soft: bool = False


class Text(str):
    """A word that knows the line on which it was written, and whether it is a default."""

    line: int
    soft: bool

    def __new__(cls, text: str, line: int, soft: bool = False) -> Text:
        """Make one."""
        made = super().__new__(cls, text)
        made.line, made.soft = line, soft
        return made


@record
class Raw:
    """A word before assignment: its text, or the items of an array."""

    text: str
    line: int
    soft: bool = False
    items: list[Word] | None = None


@dataclass(slots=True, kw_only=True)
class State:
    """Variables that the script has set so far, and whether what is read now may run.

    Attributes:
        source: the script.
        variables: their values.
        arrays: items of arrays.
        left: words that may still be made.
        live: whether what is read now may run.
        exported: names that programs which the script starts see.
        written: files that the script writes from its own text.
        unset: variables that it reads and has not set, with the line of the first time.
    """

    source: Source
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    left: int = _MOST_WORDS
    live: bool = True
    exported: set[str] = field(default_factory=set)
    written: list[Source] = field(default_factory=list)
    unset: dict[str, int] = field(default_factory=dict)

    def spend(self, number: int, line: int) -> None:
        """Refuse scripts that grow without end."""
        self.left -= number
        if self.left < 0:
            where = f"{self.source.name}:{line}"
            raise UserError.of("check_too_many_words", where=where, value=_MOST_WORDS)

    def kept(self, line: int) -> Kept:
        """The variables as they are now."""
        self.spend(1 + (len(self.variables) + len(self.arrays)) // 10, line)
        return Kept(variables=dict(self.variables), arrays=dict(self.arrays))

    def restore(self, kept: Kept) -> None:
        """Go back to what was kept."""
        self.variables, self.arrays = dict(kept.variables), dict(kept.arrays)

    def join(self, ways: list[Kept]) -> None:
        """Go on from where several ways through the script meet, of which a run takes one.

        What all ways agree on stays. A value that only one way knows is a default. Options that
        only some ways add are left as options of unknown value. All else is unknown.
        """
        self.restore(ways[0])
        for name in dict.fromkeys(name for way in ways for name in way.variables):
            texts = [way.variables.get(name) for way in ways]
            if any(text != texts[0] for text in texts):
                self.variables[name] = _joined_text(texts)
        for name in dict.fromkeys(name for way in ways for name in way.arrays):
            arrays = [way.arrays.get(name, []) for way in ways]
            known = [items for items in arrays if not _only_unknown(items)]
            arrays = known or arrays
            same = all(items == arrays[0] for items in arrays)
            self.arrays[name] = arrays[0] if same else _joined_items(arrays)


@record
class Kept:
    """Variables as they were at some point."""

    variables: Mapping[str, str]
    arrays: Mapping[str, list[Word]]


def _joined_text(texts: list[str | None]) -> str:
    texts = [text for text in texts if text != UNKNOWN] or texts
    if any("--" in (text or "") for text in texts):
        full = sorted((text or "" for text in texts), key=len)
        base = full[0]
        if not all(text.startswith(base) for text in full):
            base = ""
        words = (word for text in full for word in text[len(base) :].split())
        joined = " ".join([base, *_undecided(words)])
        line = next((text.line for text in texts if isinstance(text, Text)), 0)
        return Text(joined, line) if line else joined
    known = {text for text in texts if text is not None and UNKNOWN not in text}
    if len(known) != 1:
        return UNKNOWN
    found = known.pop()
    return Text(found, getattr(found, "line", 0), soft=True)


def _only_unknown(items: list[Word]) -> bool:
    return bool(items) and all(word.text == UNKNOWN for word in items)


def _joined_items(arrays: list[list[Word]]) -> list[Word]:
    base = min(arrays, key=len)
    if not all(items[: len(base)] == base for items in arrays):
        base = []
    rest = [word for items in arrays for word in items[len(base) :]]
    lines = {word.text.partition("=")[0]: word.line for word in rest}
    names = _undecided(word.text for word in rest)
    return [*base, *(Word(text=n, line=lines[n.partition("=")[0]]) for n in names)]


def _undecided(words: Iterable[str]) -> list[str]:
    """Options among words, each once, with a value that is unknown."""
    names = (word.partition("=")[0] for word in words if word.startswith("--"))
    return [f"{name}={UNKNOWN}" for name in dict.fromkeys(names)]
