"""Chapters as Markdown tokens, with numbers worked out.

Beyond CommonMark and tables: ``$formula$``, ``## Title {#anchor}``, ``{{number}}``,
``:::widget`` for a live picture, and ``::::quiz`` with an ``:::answer`` inside.
"""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.container import container_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

from meshplan.learn.expressions import PLACEHOLDER, Link, parse_placeholder, show

__all__ = ["formula_text", "make_parser", "options_of", "parse"]

CONTAINERS = ("quiz", "answer", "widget")
_ANCHOR = re.compile(r"\s*\{#(?P<id>[a-z0-9-]+)\}\s*$")


def make_parser() -> MarkdownIt:
    """Make the parser; its HTML renderer is completed by :mod:`meshplan.learn.html`."""
    md = MarkdownIt("commonmark", {"html": False}).enable("table")
    md.use(dollarmath_plugin, allow_space=False, double_inline=False)
    for name in CONTAINERS:
        md.use(container_plugin, name)
    md.inline.ruler.before("link", "computed", _computed)
    md.core.ruler.push("anchors", _anchors)
    return md


def parse(md: MarkdownIt, body: str, lang: str) -> list[Token]:
    """Parse a chapter; words among its numbers are said in the language."""
    return md.parse(body, {"lang": lang})


def formula_text(latex: str) -> str:
    """A formula with the numbers in it worked out; ``%`` is escaped as LaTeX wants it."""

    def fill(match: re.Match[str]) -> str:
        shown = show(parse_placeholder(match["inner"]), "en")
        assert isinstance(shown, str), "a formula holds numbers"
        text = shown.replace("%", r"\%")
        return rf"\text{{{text}}}" if " " in text or "×" in text else text

    return PLACEHOLDER.sub(fill, latex)


def options_of(token: Token) -> dict[str, str]:
    """Options after the name of a container: ``mechanism=pipeline mode=output``."""
    words = shlex.split(token.info)[1:]
    return dict(word.split("=", 1) for word in words)


def _computed(state: StateInline, silent: bool) -> bool:
    """Inline rule: a placeholder becomes its number, or the link that it names."""
    match = PLACEHOLDER.match(state.src, state.pos)
    if not match:
        return False
    if not silent:
        placeholder = parse_placeholder(match["inner"])
        shown = show(placeholder, state.env["lang"])
        if isinstance(shown, Link):
            state.push("link_open", "a", 1).attrs = {"href": shown.url, "rel": "noreferrer"}
            state.push("text", "", 0).content = shown.title
            state.push("link_close", "a", -1)
        else:
            token = state.push("computed", "data", 0)
            token.content = shown
            token.meta = {"expression": placeholder.expression}
    state.pos = match.end()
    return True


def _anchors(state: StateCore) -> None:
    """Core rule: move ``{#anchor}`` from the end of a heading to its id."""
    for before, token in pairwise(state.tokens):
        if before.type == "heading_open" and token.children:
            last = token.children[-1]
            match = _ANCHOR.search(last.content) if last.type == "text" else None
            assert match, f"a heading without anchor: {token.content}"
            before.attrSet("id", match["id"])
            last.content = last.content[: match.start()]
