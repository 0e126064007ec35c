"""The guide for the page: its chapters, and one of them as HTML."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshplan.learn import chapter_html, chapters
from meshplan.learn.content import chapter_source

__all__ = ["guide"]

Json = dict[str, Any]


def guide(chapter: str, lang: str) -> Json:
    """List the chapters, or read one.

    Args:
        chapter: its id; empty for the list.
        lang: language.

    Raises:
        UserError: ``unknown_chapter``.
    """
    if not chapter:
        return {"chapters": [asdict(info) for info in chapters(lang)]}
    info, _ = chapter_source(chapter, lang)
    return {"chapter": asdict(info), "html": chapter_html(info.id, lang)}
