"""Where a result goes: terminal, pipe or file; text or JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from meshplan.app.cli.layout import colour_wanted
from meshplan.app.encode import to_json
from meshplan.errors import UserError, os_reason
from meshplan.text import t

if TYPE_CHECKING:
    from rich.console import Console

    from meshplan.app.cli.options import Delivery
    from meshplan.app.cli.render.blocks import Block, View

__all__ = [
    "Json",
    "busy",
    "deliver",
    "deliver_json",
    "distinct_files",
    "in_time",
    "make_console",
    "save_scenario",
    "write_file",
    "write_files",
]

Json = Mapping[str, Any]
Renderer = Callable[[Any, "View"], "Iterable[Block]"]

_PIPED_WIDTH = 100
_NARROWEST = 60


def make_console(stream: TextIO, *, width: int | None = None) -> Console:
    """Make the console that lays out a result; a pipe gets a fixed width and no colour."""
    from rich.console import Console

    class OurConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which here means "the answer is no"

    colour = colour_wanted(stream)
    if width is None and not stream.isatty() and not os.environ.get("COLUMNS"):
        width = _PIPED_WIDTH
    console = OurConsole(
        file=stream,
        width=width,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=False,
    )
    console.width = max(console.width, _NARROWEST)
    return console


def in_time(entry: Json) -> bool:
    """Whether a plan meets the deadline, if there is one."""
    return not entry["run"] or entry["run"]["meets_deadline"] is not False


def distinct_files(*paths: str | None) -> None:
    """Refuse one file for two outputs, of which the second would replace the first.

    Raises:
        UserError: ``usage_same_file``.
    """
    named = [path for path in paths if path is not None]
    places = [os.path.realpath(path) for path in named]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise UserError.of("usage_same_file", value=named[index])


def deliver(
    result: Json,
    render: Renderer,
    *,
    lang: str,
    delivery: Delivery | None = None,
    paged: bool = False,
) -> None:
    """Print a result or write it to a file.

    Args:
        result: what the service returned.
        render: turns it into blocks of text.
        lang: language of the text.
        delivery: file to write, none for standard output; the result itself is printed or
            written where that is asked for or the name of the file ends in ``.json``.
        paged: show what is printed page by page.
    """
    output = delivery.output if delivery else None
    if delivery and (delivery.as_json or (output or "").endswith(".json")):
        deliver_json(result, lang=lang, output=output)
        return
    if output is None:
        console = make_console(sys.stdout)
        if not paged:
            _print(result, render, console, lang)
            return
        # what fits on one screen is printed as it is, and colours are kept
        os.environ.setdefault("LESS", "-FRX")
        with console.pager(styles=colour_wanted(sys.stdout)):
            _print(result, render, console, lang)
        return
    import io

    buffer = io.StringIO()
    _print(result, render, make_console(buffer, width=_PIPED_WIDTH), lang)
    write_file(output, buffer.getvalue(), lang=lang)


def deliver_json(result: Json, *, lang: str, output: str | None) -> None:
    """Print a result as JSON or write it to a file."""
    text = to_json(result) + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        write_file(output, text, lang=lang)


def _print(result: Json, render: Renderer, console: Console, lang: str) -> None:
    from meshplan.app.cli.render.blocks import View

    for block in render(result, View(lang=lang, width=console.width)):
        console.print(block, no_wrap=True, overflow="ignore", crop=False)


def write_file(path: str, text: str, *, lang: str) -> None:
    """Write a file and say so on standard error."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError.of("usage_cannot_write", value=path, os_reason=os_reason(error)) from None
    print(t("cli.wrote", lang, path=path), file=sys.stderr)


def write_files(folder: str, files: list[Json], *, lang: str) -> None:
    """Write files into a folder, which is made where it is missing.

    A file that stands there already is replaced, a link is not followed.
    """
    from pathlib import Path

    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for file in files:
            path = place / file["name"]
            if path.is_symlink():
                path.unlink()
            path.write_text(file["text"], encoding="utf-8")
            path.chmod(0o755 if file["executable"] else 0o644)
    except OSError as error:
        raise UserError.of("usage_cannot_write", value=folder, os_reason=os_reason(error)) from None
    for file in files:
        print(t("cli.wrote", lang, path=str(place / file["name"])), file=sys.stderr)


@contextmanager
def busy(code: str, lang: str, **values: object) -> Iterator[None]:
    """Show that something is going on, on standard error and only on a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(t(code, lang, **values)):
        yield


def save_scenario(result: Json, path: str | None, *, lang: str) -> None:
    """Write the complete scenario of a result as YAML, if a file was named."""
    if path is None:
        return
    from meshplan.inputs.load.scenario import dump_scenario

    write_file(path, dump_scenario(result["scenario"]), lang=lang)
