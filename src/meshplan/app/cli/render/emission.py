"""The answer of ``emit`` where it is not written to a folder: the files one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import Block, View, heading

__all__ = ["render_emit"]

Json = Mapping[str, Any]


def render_emit(result: Json, view: View) -> Iterator[Block]:
    """Show each file under its name."""
    for file in result["files"]:
        yield heading(file["name"])
        yield Text(file["text"].rstrip("\n"))
