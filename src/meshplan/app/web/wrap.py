"""Lines of words on a picture, which no browser breaks by itself."""

from __future__ import annotations

import unicodedata

__all__ = ["SIZES", "text_width", "wrapped"]

SIZES = {"huge": 36.0, "strong": 15.0, "soft": 13.0}
"""Height of letters by tone; 14 where there is none."""

_CLOSING = "，。、；：）》”！？,.;:)%"


def text_width(words: str, tone: str) -> float:
    """Estimate how wide words come out, on the wide side: a Chinese character is a square."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in words)
    return SIZES.get(tone, 14.0) * (wide + 0.58 * (len(words) - wide))


def wrapped(words: str, *, room: float, tone: str) -> str:
    """Break words into lines that fit, at spaces or between Chinese characters."""
    lines: list[str] = []
    line = ""
    for piece in _pieces(words):
        if line and text_width(line + piece.rstrip(), tone) > room:
            lines.append(line.rstrip())
            line = piece.lstrip()
        else:
            line += piece
    return "\n".join([*lines, line.rstrip()])


def _pieces(words: str) -> list[str]:
    """What stays together: a word with the space after it, or one Chinese character."""
    pieces: list[str] = []
    for c in words:
        alone = unicodedata.east_asian_width(c) in "WF" and c not in _CLOSING
        if pieces and not alone and not _ends(pieces[-1], c):
            pieces[-1] += c
        else:
            pieces.append(c)
    return pieces


def _ends(piece: str, following: str) -> bool:
    """Tell whether a new piece begins with the next character."""
    last = piece[-1]
    if following.isspace() or following in _CLOSING:
        return False
    return last.isspace() or unicodedata.east_asian_width(last) in "WF"
