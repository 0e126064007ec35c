"""Bash scripts: safe quoting, comments, arrays."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from meshplan.emit.records import Flag

__all__ = ["array", "comment", "exports", "quote", "visible"]


def quote(text: str) -> str:
    """Quote one word so that the shell takes it as it is."""
    return shlex.quote(text)


def visible(text: str) -> str:
    """One line of what can be read; no YAML takes control characters, and terminals act on them."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(shown.split())


def comment(lines: Iterable[str]) -> str:
    """Comment lines; a line break inside a line cannot leave the comment."""
    rows = (visible(line) for line in lines)
    return "".join(f"# {row}\n" if row else "#\n" for row in rows)


def array(name: str, flags: Iterable[Flag], *, indent: str = "") -> str:
    """An array with one option and its values on each line."""
    rows = "".join(f"{indent}  {' '.join(quote(word) for word in flag)}\n" for flag in flags)
    return f"{indent}{name}=(\n{rows}{indent})\n"


def exports(variables: Mapping[str, str]) -> str:
    """Export variables, sorted by name."""
    return "".join(f"export {name}={quote(value)}\n" for name, value in sorted(variables.items()))
