"""A chapter as plain blocks: what a terminal lays out, and what ``--json`` prints."""

from __future__ import annotations

from typing import Any

from markdown_it.token import Token

from meshplan.learn.content import chapter_source
from meshplan.learn.latex import to_plain
from meshplan.learn.markdown import formula_text, make_parser, options_of, parse

__all__ = ["Block", "chapter_blocks"]

Block = dict[str, Any]
_STYLES = {"strong_open": "strong", "em_open": "em"}


def chapter_blocks(chapter_id: str, lang: str) -> list[Block]:
    """Read a chapter.

    Returns:
        Blocks, each with a ``kind``: ``heading`` (``level``, ``id``, ``spans``), ``paragraph``
        (``spans``), ``list`` (``ordered``, ``items``), ``table`` (``head``, ``rows``), ``formula``
        (``text``, ``latex``), ``code`` (``text``), ``quiz`` (``id``, ``level``, ``question``,
        ``answer``) and ``widget`` (``mechanism``, ``mode``, ``options``). A span has ``text``,
        ``style`` and, for a link, ``href``.

    Raises:
        UserError: ``unknown_chapter``.
    """
    _, body = chapter_source(chapter_id, lang)
    return _Reader(parse(make_parser(), body, lang)).blocks(until=None)


class _Reader:
    """Walks the tokens once."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def blocks(self, *, until: str | None) -> list[Block]:
        found: list[Block] = []
        while self._at < len(self._tokens):
            token = self._next()
            if token.type == until:
                return found
            found += self._block(token)
        return found

    def _block(self, token: Token) -> list[Block]:
        match token.type:
            case "heading_open":
                spans = self._inline("heading_close")
                level = int(token.tag[1:])
                head = {"level": level, "id": token.attrGet("id"), "spans": spans}
                return [{"kind": "heading", **head}]
            case "paragraph_open":
                return [{"kind": "paragraph", "spans": self._inline("paragraph_close")}]
            case "bullet_list_open" | "ordered_list_open":
                ordered = token.type.startswith("ordered")
                items = self._items(token.type.replace("open", "close"))
                return [{"kind": "list", "ordered": ordered, "items": items}]
            case "math_block":
                latex = formula_text(token.content.strip())
                return [{"kind": "formula", "text": to_plain(latex), "latex": latex}]
            case "fence" | "code_block":
                return [{"kind": "code", "text": token.content.rstrip("\n")}]
            case "table_open":
                return [self._table()]
            case "container_quiz_open":
                return [self._quiz(token)]
            case "container_widget_open":
                self.blocks(until="container_widget_close")
                given = options_of(token)
                shown = {"mechanism": given.pop("mechanism"), "mode": given.pop("mode")}
                return [{"kind": "widget", **shown, "options": given}]
        raise ValueError(f"a chapter holds {token.type}, which nothing renders")

    def _items(self, until: str) -> list[list[Block]]:
        items = []
        while self._next().type != until:
            items.append(self.blocks(until="list_item_close"))
        return items

    def _quiz(self, token: Token) -> Block:
        given = options_of(token)
        question = self.blocks(until="container_answer_open")
        answer = self.blocks(until="container_answer_close")
        assert self._next().type == "container_quiz_close", "the answer ends a quiz"
        level = int(given.get("level", "1"))
        quiz = {"id": given["id"], "level": level, "question": question, "answer": answer}
        return {"kind": "quiz", **quiz}

    def _table(self) -> Block:
        rows: list[list[list[Block]]] = []
        while (token := self._next()).type != "table_close":
            if token.type == "tr_open":
                rows.append([])
            elif token.type in ("th_open", "td_open"):
                rows[-1].append(self._inline(token.type.replace("open", "close")))
        return {"kind": "table", "head": rows[0], "rows": rows[1:]}

    def _inline(self, until: str) -> list[Block]:
        spans: list[Block] = []
        while (token := self._next()).type != until:
            spans += _spans(token.children or [])
        return spans


def _spans(tokens: list[Token]) -> list[Block]:
    """Flatten inline tokens: the innermost style wins."""
    spans: list[Block] = []
    styles: list[str] = []
    href = ""
    for token in tokens:
        if token.type in _STYLES:
            styles.append(_STYLES[token.type])
        elif token.type in ("strong_close", "em_close"):
            styles.pop()
        elif token.type in ("link_open", "link_close"):
            href = str(token.attrGet("href") or "")
        else:
            text, style = _text(token)
            span = {"text": text, "style": style or (styles[-1] if styles else "")}
            spans.append({**span, "href": href} if href else span)
    return [span for span in spans if span["text"]]


def _text(token: Token) -> tuple[str, str]:
    match token.type:
        case "text":
            return token.content, ""
        case "softbreak" | "hardbreak":
            return " ", ""
        case "code_inline":
            return token.content, "code"
        case "computed":
            return token.content, ""
        case "math_inline":
            return to_plain(formula_text(token.content)), "math"
    raise ValueError(f"a chapter holds {token.type}, which nothing renders")
