"""The guide in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from meshplan.app.cli.layout import wrap
from meshplan.app.cli.render.blocks import Block, View, heading, paragraph, table

__all__ = ["render_learn"]

Json = Mapping[str, Any]
Spans = Sequence[Json]

_STYLES = {"strong": "bold", "em": "italic", "code": "cyan", "math": "italic"}
_OPEN, _CLOSE = "\ue000", "\ue001"
"""Private characters around styled words while lines are broken."""


def render_learn(result: Json, view: View) -> Iterator[Block]:
    """List chapters, or lay one out."""
    if "chapters" in result:
        yield from _contents(result["chapters"], view)
        return
    chapter, blocks = result["chapter"], result["blocks"]
    yield Text(f"{chapter['order']}. {chapter['title']}", style="bold")
    yield paragraph(chapter["summary"], view, style="dim")
    quizzes = [block for block in blocks if block["kind"] == "quiz"]
    yield from _blocks(blocks, view, answers=bool(result["answers"]))
    if not blocks:
        yield paragraph(view.t("learn.no_quiz"), view)
    if quizzes and not result["answers"]:
        yield Text("")
        yield paragraph(view.t("learn.hidden", chapter=chapter["id"]), view, style="dim")


def _contents(chapters: Sequence[Json], view: View) -> Iterator[Block]:
    rows = [
        (str(c["order"]), Text(c["id"], style="cyan"), f"{c['title']}: {c['summary']}")
        if view.lang == "en"
        else (str(c["order"]), Text(c["id"], style="cyan"), f"{c['title']}：{c['summary']}")
        for c in chapters
    ]
    columns = [("", "right"), ("", "left"), ("", "left")]
    yield table(columns, rows, flexible=2, width=view.width)
    yield Text("")
    yield paragraph(view.t("learn.read_on"), view, style="dim")


def _blocks(
    blocks: Sequence[Json], view: View, *, answers: bool, indent: int = 0
) -> Iterator[Block]:
    for block in blocks:
        match block["kind"]:
            case "heading":
                yield heading(_plain(block["spans"]))
            case "paragraph":
                if not indent:
                    yield Text("")
                yield _paragraph(block["spans"], view, indent=indent)
            case "list":
                yield from _list(block, view, answers=answers, indent=indent)
            case "table":
                yield Text("")
                yield _table(block, view)
            case "formula":
                yield Text("\n" + " " * (indent + 4) + block["text"], style="italic")
            case "code":
                yield Text("\n".join(" " * (indent + 4) + x for x in block["text"].split("\n")))
            case "widget":
                shown = view.t(
                    "learn.widget",
                    mechanism=view.t(f"learn.mechanism.{block['mechanism']}"),
                    mode=view.t(f"learn.mode.{block['mode']}"),
                )
                yield Text("")
                yield paragraph("> " + shown, view, style="dim")
            case "quiz":
                yield from _quiz(block, view, answers=answers)


def _quiz(block: Json, view: View, *, answers: bool) -> Iterator[Block]:
    level = view.t(f"learn.level.{block['level']}")
    yield heading(f"{view.t('learn.question')} [{block['id']}, {level}]")
    yield from _blocks(block["question"], view, answers=answers, indent=2)
    if answers:
        yield Text(f"  {view.t('learn.answer')}", style="bold green")
        yield from _blocks(block["answer"], view, answers=answers, indent=4)


def _list(block: Json, view: View, *, answers: bool, indent: int) -> Iterator[Block]:
    for number, item in enumerate(block["items"], start=1):
        mark = f"{number}. " if block["ordered"] else "- "
        first, *others = item
        inner = indent + 2 + len(mark)
        text = _paragraph(first["spans"], view, indent=inner)
        marked = Text(" " * (indent + 2) + mark)
        marked.append_text(text[inner:])
        yield marked
        yield from _blocks(others, view, answers=answers, indent=inner)


def _table(block: Json, view: View) -> Text:
    head = [_plain(cell) for cell in block["head"]]
    rows = [[_plain(cell) for cell in row] for row in block["rows"]]
    widest = max(range(len(head)), key=lambda i: sum(len(row[i]) for row in rows), default=None)
    columns = [(title, "left") for title in head]
    return table(columns, rows, flexible=widest, width=view.width)


def _plain(spans: Spans) -> str:
    return "".join(span["text"] for span in spans)


def _paragraph(spans: Spans, view: View, *, indent: int) -> Text:
    """Break lines first, then style the words again where they ended up."""
    styles: list[str] = []
    marked = ""
    for span in spans:
        style = _STYLES.get(span["style"], "")
        text = span["text"]
        if "href" in span:
            text = f"{text} ({span['href']})" if text not in span["href"] else span["href"]
        if style:
            styles.append(style)
            text = "".join(f"{_OPEN}{text}{_CLOSE}")
        marked += text
    bare = marked.replace(_OPEN, "").replace(_CLOSE, "")
    blanks = " " * indent
    lines = wrap(bare, max(24, view.reading_width - indent))
    laid = Text("\n".join(blanks + line for line in lines))
    _style_again(laid, marked, styles)
    return laid


def _style_again(laid: Text, marked: str, styles: Sequence[str]) -> None:
    """Walk both texts side by side; only blanks and line ends differ."""
    at, start = 0, 0
    remaining = iter(styles)
    for char in marked:
        if char == _OPEN:
            start = at
        elif char == _CLOSE:
            laid.stylize(next(remaining), start, at)
        elif not char.isspace():
            while laid.plain[at].isspace():
                at += 1
            at += 1
