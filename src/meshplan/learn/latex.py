"""Formulas: LaTeX to MathML for browsers, to plain text for terminals.

Only the commands that the chapters use are known to the plain form; an unknown one is a mistake in
a chapter, so that no backslash ever reaches a reader.
"""

from __future__ import annotations

import re

__all__ = ["to_mathml", "to_plain"]

_SYMBOLS = {
    "times": "×",
    "cdot": "·",
    "approx": "≈",
    "le": "≤",
    "ge": "≥",
    "ne": "≠",
    "to": "→",
    "ldots": "…",
    "dots": "…",
    "max": "max",
    "min": "min",
    "sum": "Σ",
    "Psi": "Ψ",
    "alpha": "α",
    "beta": "β",
    "eta": "η",
    "lceil": "⌈",
    "rceil": "⌉",
    "left": "",
    "right": "",
    "quad": "; ",
    "qquad": "; ",
    "bmod": " mod ",
    ",": " ",
    ";": " ",
    "%": "%",
    "_": "_",
    "{": "{",
    "}": "}",
}
_SPACED = "×·≈≤≥≠→=+"
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}^_]|\s+|[^\\{}^_\s]+")


def to_mathml(latex: str, *, display: bool) -> str:
    """Turn a formula into a ``<math>`` element."""
    from latex2mathml.converter import convert

    return str(convert(latex, display="block" if display else "inline"))


def to_plain(latex: str) -> str:
    """Turn a formula into one line of text.

    Raises:
        KeyError: for a command that is not known.
    """
    tokens = _TOKEN.findall(latex)
    text, rest = _group(tokens, 0, closing=False)
    assert rest == len(tokens), f"unbalanced braces in {latex}"
    text = re.sub(rf"\s*([{_SPACED}])\s*", r" \1 ", text)
    return re.sub(r"\s+", " ", text).strip()


def _group(tokens: list[str], start: int, *, closing: bool) -> tuple[str, int]:
    """Read up to the end, or to the brace that closes."""
    parts: list[str] = []
    i = start
    while i < len(tokens):
        if tokens[i] == "}" and closing:
            return "".join(parts), i + 1
        text, i = _item(tokens, i)
        parts.append(text)
    return "".join(parts), i


def _item(tokens: list[str], i: int) -> tuple[str, int]:
    """Read one symbol, group or command with its arguments."""
    token = tokens[i]
    if token == "{":
        return _group(tokens, i + 1, closing=True)
    if token in ("^", "_"):
        inner, i = _argument(tokens, i + 1)
        wrapped = inner if inner.isalnum() else f"({inner})"
        return token + wrapped, i
    if token.startswith("\\"):
        name = token[1:]
        if name == "frac":
            top, i = _argument(tokens, i + 1)
            bottom, i = _argument(tokens, i)
            return f"{_operand(top)} / {_operand(bottom)}", i
        if name in ("text", "mathrm", "mathit", "operatorname"):
            return _argument(tokens, i + 1)
        return _SYMBOLS[name], i + 1
    return (" " if token.isspace() else token), i + 1


def _argument(tokens: list[str], i: int) -> tuple[str, int]:
    """Read a group, or the single character that stands for one."""
    while tokens[i].isspace():
        i += 1
    token = tokens[i]
    if token == "{":
        return _group(tokens, i + 1, closing=True)
    if token.startswith("\\") or len(token) == 1:
        return _item(tokens, i)
    tokens[i] = token[1:]
    return token[0], i


def _operand(text: str) -> str:
    return text if re.fullmatch(r"[\w.,%Σ_]+", text.strip()) else f"({text.strip()})"
