"""A chapter as HTML with MathML: no script, no style, nothing to load."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from meshplan.learn.content import chapter_source
from meshplan.learn.latex import to_mathml
from meshplan.learn.markdown import formula_text, make_parser, options_of, parse
from meshplan.text import t

__all__ = ["chapter_html"]

Tokens = Sequence[Token]
Env = MutableMapping[str, Any]


def chapter_html(chapter_id: str, lang: str) -> str:
    """Render a chapter.

    What a page may rely on:

    - headings are ``h2`` and ``h3`` with an ``id`` that is the same in every language;
    - a live picture is an empty ``<div class="widget" data-mechanism data-mode>``; its other
      ``data-`` options are ``model``, ``cluster``, ``seq-len``, ``global-batch`` and
      ``framework`` of a scenario, the rest are fields of a legal plan;
    - a quiz is ``<section class="quiz" id data-level>`` with ``.question`` and a ``<details>``
      that hides the answer;
    - a number that our code worked out is ``<data class="computed" title="expression">``.

    Args:
        chapter_id: id of the chapter, see :func:`meshplan.learn.chapters`.
        lang: ``en`` or ``zh``.

    Returns:
        A fragment of HTML.

    Raises:
        UserError: ``unknown_chapter``.
    """
    info, _ = chapter_source(chapter_id, lang)
    return _rendered(info.id, lang)


@lru_cache(maxsize=64)
def _rendered(chapter_id: str, lang: str) -> str:
    _, body = chapter_source(chapter_id, lang)
    md = make_parser()
    for name, rule in _RULES.items():
        md.add_render_rule(name, rule)
    return str(md.renderer.render(parse(md, body, lang), md.options, {"lang": lang}))


def _math_inline(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    return to_mathml(formula_text(tokens[idx].content), display=False)


def _math_block(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    math = to_mathml(formula_text(tokens[idx].content.strip()), display=True)
    return f'<div class="formula">{math}</div>\n'


def _computed(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    token = tokens[idx]
    title = escape(token.meta["expression"], quote=True)
    value = escape(token.content, quote=True)
    shown = escape(_together(token.content))
    return f'<data class="computed" value="{value}" title="{title}">{shown}</data>'


def _together(shown: str) -> str:
    """A number and its unit, which no line break parts; terminals may lack the letter of micro."""
    number, _, unit = shown.partition(" ")
    unit = "µs" if unit == "us" else unit
    kept = number[:1].isdigit() and unit and " " not in unit
    return f"{number}\N{NO-BREAK SPACE}{unit}" if kept else shown


def _quiz_open(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    given = options_of(tokens[idx])
    level = f' data-level="{escape(given["level"])}"' if "level" in given else ""
    return f'<section class="quiz" id="{escape(given["id"])}"{level}>\n<div class="question">\n'


def _quiz_close(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    return "</section>\n"


def _answer_open(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    summary = escape(t("learn.answer", env["lang"]))
    return f"</div>\n<details><summary>{summary}</summary>\n"


def _answer_close(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    return "</details>\n"


def _widget_open(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    data = "".join(
        f' data-{escape(name.replace("_", "-"))}="{escape(value, quote=True)}"'
        for name, value in options_of(tokens[idx]).items()
    )
    return f'<div class="widget"{data}>'


def _widget_close(self: MarkdownIt, tokens: Tokens, idx: int, options: Any, env: Env) -> str:
    return "</div>\n"


_RULES = {
    "math_inline": _math_inline,
    "math_block": _math_block,
    "computed": _computed,
    "container_quiz_open": _quiz_open,
    "container_quiz_close": _quiz_close,
    "container_answer_open": _answer_open,
    "container_answer_close": _answer_close,
    "container_widget_open": _widget_open,
    "container_widget_close": _widget_close,
}
