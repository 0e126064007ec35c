"""Bash scripts: safe quoting, comments, arrays."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

__all__ = ["array", "comment", "exports", "quote"]


def quote(text: str) -> str:
    """Quote one word so that the shell takes it as it is."""
    return shlex.quote(text)


def comment(lines: Iterable[str]) -> str:
    """Comment lines; a line break inside a line cannot leave the comment."""
    return "".join(f"# {' '.join(line.split())}\n" if line else "#\n" for line in lines)


def array(name: str, flags: Iterable[tuple[str, ...]]) -> str:
    """An array with one option and its values on each line."""
    rows = "".join(f"  {' '.join(quote(word) for word in flag)}\n" for flag in flags)
    return f"{name}=(\n{rows})\n"


def exports(variables: Mapping[str, str]) -> str:
    """Export variables, sorted by name."""
    return "".join(f"export {name}={quote(value)}\n" for name, value in sorted(variables.items()))
