"""Which commands of a script run: ``if``, ``case``, loops, ``&&`` and ``||``, read and not run.

A test over known words is decided, and the branch that it excludes is left out. Where only a run
would show which branch is taken, each is gone through, and what they disagree on is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from meshplan.check.shell_words import UNKNOWN, Kept, Raw, State, Word

__all__ = ["Branches", "test_value"]

_LOOPS = ("for", "while", "until", "select")
_ORDER: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
_MOST_DEPTH = 200


@dataclass(slots=True, kw_only=True)
class _Frame:
    """One ``if``, ``case`` or loop that is open."""

    kind: str
    before: Kept
    outer: bool
    live: bool = True
    settled: bool = False
    heading: bool = True
    value: bool | None = None
    joint: str = ""
    subject: str = ""
    patterns: list[str] = field(default_factory=list)
    ways: list[Kept] = field(default_factory=list)


class Branches:
    """Follows the branches of a script command by command."""

    def __init__(self, state: State, assign: Callable[[list[Raw], State], list[Word]]) -> None:
        self.state, self.assign = state, assign
        self.frames: list[_Frame] = []
        self.last: bool | None = True
        self.joint = ""

    @property
    def live(self) -> bool:
        """Whether what comes next may run."""
        return not self.frames or self.frames[-1].live

    def feed(self, words: list[Raw], end: str) -> Iterator[list[Word]]:
        """Take one command and what ends it; gives the command where it may run."""
        words = self._keywords(words, end)
        top = self.frames[-1] if self.frames else None
        if top is not None and top.heading and top.kind == "case":
            self._pattern(top, words, end)
        elif top is not None and top.heading and top.kind == "if":
            self._condition(top, words, end)
        elif words:
            yield from self._command(words, end)
        if top is not None and top.kind == "case" and not top.heading and end == ";;":
            self._leave(top)
            top.heading, top.patterns = True, []

    def _keywords(self, words: list[Raw], end: str) -> list[Raw]:
        """Carry out the reserved words in front of a command."""
        rest = list(words)
        while rest:
            word, line = rest[0].text, rest[0].line
            top = self.frames[-1] if self.frames else None
            if word in ("if", "case", *_LOOPS) and len(self.frames) < _MOST_DEPTH:
                self._open(word, rest, line)
                if word in _LOOPS:
                    return []
                rest = rest[3:] if word == "case" else rest[1:]
            elif top is None:
                return rest
            elif word in ("then", "else") and top.kind == "if":
                if word == "else":
                    self._leave(top)
                    top.value = True
                self._enter(top, top.value)
                rest.pop(0)
            elif word == "elif" and top.kind == "if":
                self._leave(top)
                top.heading, top.joint = True, ""
                rest.pop(0)
            elif word == "do" and top.kind == "loop":
                self._enter(top, None)
                rest.pop(0)
            elif (word, top.kind) in (("fi", "if"), ("esac", "case"), ("done", "loop")):
                self._close(top)
                rest.pop(0)
            else:
                return rest
        return rest

    def _open(self, word: str, words: list[Raw], line: int) -> None:
        kind = "loop" if word in _LOOPS else word
        if word == "for" and len(words) > 1 and self.live:
            self.state.variables[words[1].text] = UNKNOWN
        frame = _Frame(kind=kind, before=self.state.kept(line), outer=self.live, live=self.live)
        if word == "case" and len(words) > 1:
            frame.subject = words[1].text
        self.frames.append(frame)
        self.last, self.joint = True, ""

    def _enter(self, frame: _Frame, value: bool | None) -> None:
        frame.heading = False
        frame.live = frame.outer and not frame.settled and value is not False
        if frame.live:
            self.state.restore(frame.before)
            frame.settled = value is True
        self.last, self.joint = True, ""

    def _leave(self, frame: _Frame) -> None:
        if frame.live and not frame.heading:
            frame.ways.append(self.state.kept(0))
        frame.live = False

    def _close(self, frame: _Frame) -> None:
        self._leave(frame)
        self.frames.pop()
        if frame.outer:
            ways = frame.ways if frame.settled else [frame.before, *frame.ways]
            self.state.join(ways)
        self.last, self.joint = True, ""

    def _condition(self, frame: _Frame, words: list[Raw], end: str) -> None:
        if words:
            value = test_value([w.text for w in words])
            frame.value = _joined(frame.value, value, frame.joint)
        if words or end in ("&&", "||"):
            frame.joint = end if end in ("&&", "||") else ""

    def _pattern(self, frame: _Frame, words: list[Raw], end: str) -> None:
        frame.patterns += [word.text for word in words]
        if end != ")" or not frame.patterns:
            return
        value: bool | None = any(fnmatchcase(frame.subject, p) for p in frame.patterns)
        if UNKNOWN in frame.subject and "*" not in frame.patterns:
            value = None
        self._enter(frame, value)

    def _command(self, words: list[Raw], end: str) -> Iterator[list[Word]]:
        """A command, where what stands before ``&&`` or ``||`` lets it run."""
        value = self.last if self.joint else True
        if self.joint == "||" and value is not None:
            value = not value
        self.joint = end if end in ("&&", "||") else ""
        if value is False or not self.live:
            if not self.joint:
                self.last = True
            return
        if _is_test(words):
            self.last = _joined(value, test_value([w.text for w in words]), "&&")
        else:
            before = self.state.kept(words[0].line) if value is None else None
            rest = self.assign(words, self.state)
            if before is not None:
                self.state.join([before, self.state.kept(words[0].line)])
            self.last = True
            if rest:
                yield rest
        if not self.joint:
            self.last = True


def _is_test(words: list[Raw]) -> bool:
    return words[0].text in ("[", "[[", "test") or words[-1].text == "]]"


def _joined(left: bool | None, right: bool | None, joint: str) -> bool | None:
    """Three-valued ``left joint right``; without a joint the right one counts."""
    if joint == "&&":
        if left is False or right is False:
            return False
        return None if left is None or right is None else True
    if joint == "||":
        if left is True or right is True:
            return True
        return None if left is None or right is None else False
    return right


def test_value(words: list[str]) -> bool | None:
    """Decide a ``[ ... ]`` or ``[[ ... ]]`` over known words.

    Args:
        words: the command; of ``[[ a && b ]]`` one side.

    Returns:
        What it says; None where only a run would show.
    """
    flip, glob = False, words[:1] == ["[["] or words[-1:] == ["]]"]
    inner = list(words)
    while inner and inner[0] == "!":
        flip, inner = not flip, inner[1:]
    if inner in (["true"], ["false"], [":"]):
        return (inner != ["false"]) is not flip
    if inner[:1] not in (["["], ["[["], ["test"]) and inner[-1:] != ["]]"]:
        return None
    inner = inner[1:] if inner[0] in ("[", "[[", "test") else inner
    inner = inner[:-1] if inner[-1:] in (["]"], ["]]"]) else inner
    while inner and inner[0] == "!":
        flip, inner = not flip, inner[1:]
    found = _plain_test(inner, glob=glob)
    return None if found is None else found is not flip


def _plain_test(words: list[str], *, glob: bool) -> bool | None:
    if any(UNKNOWN in word for word in words):
        return None
    match words:
        case []:
            return False
        case ["-z"] | ["-n"]:
            return True
        case [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==" | "!=" as sign, right]:
            same = fnmatchcase(left, right) if glob else left == right
            return same is (sign != "!=")
        case [left, sign, right] if sign in _ORDER:
            try:
                return _ORDER[sign](int(left), int(right))
            except ValueError:
                return None
    return None
