"""Text in terminal cells: Chinese characters take two, and lines break between them."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import TextIO

__all__ = ["cell_len", "colour_wanted", "pad", "style", "terminal_width", "wrap"]

_NO_LINE_START = "，。、；：！？）】》”’,.;:!?)]}%"
_NO_LINE_END = "（【《“‘([{"
_WIDEST_HELP = 100
# a number stays with its unit: the blank between them is a character of its own while lines break
_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]i?B(?:/s)?|TFLOP/s|s|ms|us|min|h|d)(?![\w/]))")
_JOINED = "\ue000"


def cell_len(text: str) -> int:
    """Return how many terminal cells the text takes."""
    if text.isascii():
        return len(text)
    return sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, width: int) -> str:
    """Fill up with blanks to a width in cells."""
    return text + " " * max(0, width - cell_len(text))


def _pieces(text: str) -> Iterable[tuple[str, str]]:
    """Split into ``(blank before, unbreakable piece)``."""
    for word in text.split():
        start, blank = 0, " "
        for i in range(1, len(word)):
            wide = _char_cells(word[i]) == 2 or _char_cells(word[i - 1]) == 2
            if wide and word[i] not in _NO_LINE_START and word[i - 1] not in _NO_LINE_END:
                yield blank, word[start:i]
                start, blank = i, ""
        yield blank, word[start:]


def wrap(text: str, width: int) -> list[str]:
    """Break a paragraph into lines of at most ``width`` cells, between words and wide characters.

    A number keeps its unit. A piece that is wider than a line stands alone on its line and is not
    cut.
    """
    lines: list[str] = []
    line = ""
    for blank, piece in _pieces(_UNIT.sub(_JOINED, text)):
        joined = line + blank + piece if line else piece
        if line and cell_len(joined) > width:
            lines.append(line)
            line = piece
        else:
            line = joined
    return [done.replace(_JOINED, " ") for done in ([*lines, line] if line else lines)]


def terminal_width(*, widest: int = _WIDEST_HELP) -> int:
    """Width to lay plain text out for: the terminal's, within reason."""
    try:
        columns = int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        try:
            columns = os.get_terminal_size(sys.stdout.fileno()).columns or 80
        except (OSError, ValueError):
            columns = 80
    return max(40, min(columns, widest))


def colour_wanted(stream: TextIO) -> bool:
    """Whether to colour what goes to a stream: a terminal, unless the environment objects."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def style(text: str, code: str, *, on: bool) -> str:
    """Wrap text in an ANSI style such as ``1`` (bold) or ``36`` (cyan)."""
    return f"\x1b[{code}m{text}\x1b[0m" if on and text else text
