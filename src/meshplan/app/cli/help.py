"""Help in the reader's language.

Help texts in the option declarations are codes of sentences; so are the panels they stand in.
Typer's own help would import rich, which costs more than everything else ``--help`` does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from meshplan.app.cli.layout import cell_len, colour_wanted, pad, style, terminal_width, wrap
from meshplan.record import record
from meshplan.text import has, t

__all__ = ["Entry", "Panel", "examples_of", "render_help"]

_WIDEST_NAME = 34


@record
class Entry:
    """One line of help: a name as it is typed, and a sentence."""

    name: str
    text: str


@record
class Panel:
    """Entries under one title."""

    title: str
    entries: Sequence[Entry]


def render_help(
    *, intro: str, usage: str, panels: Iterable[Panel], examples: Sequence[Entry], lang: str
) -> str:
    """Lay out the help of one command.

    Args:
        intro: what the command is for.
        usage: how it is called.
        panels: arguments, options and the like.
        examples: commands that can be pasted, with what they do.
        lang: language of the titles.
    """
    width, colour = terminal_width(), colour_wanted(sys.stdout)
    lines = [*wrap(intro, width), ""]
    title = t("cli.usage", lang)
    # a full-width colon brings its own blank
    lines.append(style(title, "1", on=colour) + ("" if title.endswith("：") else " ") + usage)
    panels = [panel for panel in panels if panel.entries]
    names = [entry.name for panel in panels for entry in panel.entries]
    column = min(_WIDEST_NAME, max((cell_len(name) for name in names), default=0)) + 2
    for panel in panels:
        lines += ["", style(panel.title, "1", on=colour)]
        for entry in panel.entries:
            lines += _entry_lines(entry, column=column, width=width, colour=colour)
    if examples:
        lines += ["", style(t("cli.examples", lang), "1", on=colour)]
        for example in examples:
            lines += [f"  {line}" for line in wrap(example.text, width - 2)]
            lines.append(f"    {style(example.name, '36', on=colour)}")
    return "\n".join(lines)


def _entry_lines(entry: Entry, *, column: int, width: int, colour: bool) -> list[str]:
    text = wrap(entry.text, max(24, width - column - 2)) or [""]
    name = style(entry.name, "36", on=colour)
    indent = " " * (column + 2)
    if cell_len(entry.name) > column - 2:
        return [f"  {name}", *(indent + line for line in text)]
    blanks = pad("", column - cell_len(entry.name))
    return [f"  {name}{blanks}{text[0]}", *(indent + line for line in text[1:])]


def examples_of(code: str, lang: str) -> list[Entry]:
    """Collect the examples ``<code>.1``, ``<code>.2``, ...: a sentence, ``=>``, a command."""
    found = []
    number = 1
    while has(f"{code}.{number}", lang):
        text, _, command = t(f"{code}.{number}", lang).partition(" => ")
        found.append(Entry(name=command, text=text))
        number += 1
    return found
