"""What every answer is built from: headings, paragraphs, tables and bars.

A renderer takes a result and a :class:`View` and returns rich renderables; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from meshplan.app.cli.layout import cell_len, wrap
from meshplan.app.sentences import say
from meshplan.record import record
from meshplan.text import has, t

__all__ = [
    "Block",
    "Cell",
    "View",
    "bar",
    "bullets",
    "facts",
    "heading",
    "paragraph",
    "stacked_bar",
    "table",
]

Block = Text
Cell = str | Text

FULL, EMPTY, LIMIT = "█", "·", "|"
_GAP, _NARROWEST_TEXT, _LONGEST_LINE = 2, 16, 110
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


@record
class View:
    """How an answer is shown.

    Attributes:
        lang: language.
        width: terminal cells across.
    """

    lang: str
    width: int

    @property
    def reading_width(self) -> int:
        """Width of running text: lines that are too long are hard to follow."""
        return min(self.width, _LONGEST_LINE)

    def t(self, code: str, /, **values: object) -> str:
        """Return a sentence in the reader's language."""
        return t(code, self.lang, **values)

    def name(self, prefix: str, code: str) -> str:
        """Return the name of a code such as a memory term, or the code where it has none."""
        full = f"{prefix}.{code}"
        return self.t(full) if has(full, self.lang) else code.replace("_", " ")

    def say(self, prefix: str, code: str, numbers: Mapping[str, object]) -> str:
        """Return the sentence of a coded reason; codes among its numbers get their names."""
        return say(prefix, code, numbers, self.lang)


def heading(text: str) -> Text:
    """Return a title above a block, after a blank line."""
    return Text("\n" + text, style="bold")


def paragraph(text: str, view: View, *, indent: int = 0, style: str = "") -> Text:
    """Wrap a paragraph to the width."""
    blanks = " " * indent
    lines = wrap(text, max(24, view.reading_width - indent))
    return Text("\n".join(blanks + line for line in lines), style=style)


def bullets(
    sentences: Iterable[str], view: View, *, mark: str = "-", indent: int = 2
) -> list[Block]:
    """List sentences with a hanging indent."""
    made: list[Block] = []
    for sentence in sentences:
        inner = indent + cell_len(mark) + 1
        lines = wrap(sentence, max(24, view.reading_width - inner)) or [""]
        text = Text(" " * indent)
        text.append(mark + " ", style="dim")
        text.append(("\n" + " " * inner).join(lines))
        made.append(text)
    return made


def table(
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Cell]],
    *,
    indent: int = 2,
    flexible: int | None = None,
    width: int = 0,
) -> Text:
    """Lay out a table without lines; no number is ever cut.

    Args:
        columns: title and alignment (``left`` or ``right``) of each column.
        rows: cells.
        indent: blanks in front.
        flexible: column whose text breaks over lines when the table is wider than ``width``.
        width: terminal cells across.
    """
    header = [Text(title, style="dim") for title, _ in columns]
    grid = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    shown = [header, *grid] if any(title for title, _ in columns) else grid
    widths = [max((cell_len(row[i].plain) for row in shown), default=0) for i in range(len(header))]
    if flexible is not None:
        others = sum(widths) - widths[flexible] + _GAP * (len(widths) - 1) + indent
        widths[flexible] = min(widths[flexible], max(_NARROWEST_TEXT, width - others))
    lines: list[Text] = []
    for row in shown:
        lines += _row_lines(row, columns, widths, indent=indent, flexible=flexible)
    return Text("\n").join(lines)


def _row_lines(
    row: Sequence[Text],
    columns: Sequence[tuple[str, str]],
    widths: Sequence[int],
    *,
    indent: int,
    flexible: int | None,
) -> list[Text]:
    """One row: several lines when its flexible cell breaks."""
    broken = [[cell] for cell in row]
    if flexible is not None and cell_len(row[flexible].plain) > widths[flexible]:
        whole = row[flexible]
        lines_of_it = wrap(whole.plain, widths[flexible])
        broken[flexible] = [Text(line, style=whole.style) for line in lines_of_it]
    lines = []
    for number in range(max(len(pieces) for pieces in broken)):
        line = Text(" " * indent)
        for i, pieces in enumerate(broken):
            cell = pieces[number] if number < len(pieces) else Text()
            blanks = Text(" " * max(0, widths[i] - cell_len(cell.plain)))
            line.append_text(blanks + cell if columns[i][1] == "right" else cell + blanks)
            line.append(" " * _GAP)
        line.rstrip()
        lines.append(line)
    return lines


def facts(pairs: Iterable[tuple[str, str]], view: View, *, indent: int = 2) -> Text:
    """Lay out names and values in two columns."""
    rows = [(Text(name, style="dim"), value) for name, value in pairs]
    columns = [("", "left"), ("", "left")]
    return table(columns, rows, indent=indent, flexible=1, width=view.width)


def bar(fraction: float, *, width: int, style: str = "") -> Text:
    """Draw a bar that is filled to a fraction."""
    return stacked_bar([(fraction, FULL, style)], width=width)


def stacked_bar(
    segments: Iterable[tuple[float, str, str]], *, width: int, mark: float | None = None
) -> Text:
    """Draw a bar of several segments, the rest of it empty.

    Args:
        segments: fraction of the whole, glyph and style of each.
        width: cells of the whole bar. What would run over is cut.
        mark: fraction at which a line is drawn across, such as a limit.
    """
    text = Text()
    end, drawn = 0.0, 0
    last = ("", "")
    for fraction, glyph, style in segments:
        end = min(1.0, end + max(0.0, fraction))
        # rounding the running end keeps the total right whatever the segments
        until = round(end * width)
        text.append(glyph * (until - drawn), style=style)
        drawn, last = max(drawn, until), (glyph, style)
    part = int((end * width - drawn) * 8)
    if last[0] == FULL and part > 0 and drawn < width:
        text.append(_EIGHTHS[part], style=last[1])
        drawn += 1
    text.append(EMPTY * (width - drawn), style="dim")
    if mark is not None and 0 < mark < 1:
        at = min(width - 1, round(mark * width))
        text = text[:at] + Text(LIMIT, style="bold red") + text[at + 1 :]
    return text
