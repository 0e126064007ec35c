"""Answer ``learn``: the list of chapters, or one chapter as blocks of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from meshplan.app.document import document
from meshplan.learn import chapter_blocks, chapters
from meshplan.learn.content import chapter_source

__all__ = ["learn"]

Json = dict[str, Any]


def learn(request: Mapping[str, Any]) -> Json:
    """List the chapters of the guide, or read one.

    Args:
        request: ``lang``; ``chapter`` to read (an id, the beginning of one, or a number); ``quiz``
            to get its questions alone.

    Returns:
        ``chapters``, or ``chapter`` and its ``blocks`` (see
        :func:`meshplan.learn.chapter_blocks`), as plain JSON.

    Raises:
        UserError: ``unknown_chapter``.
    """
    lang = str(request.get("lang", "en"))
    head = document("learn")
    wanted = request.get("chapter")
    if not wanted:
        return {**head, "chapters": [asdict(info) for info in chapters(lang)]}
    info, _ = chapter_source(str(wanted), lang)
    blocks = chapter_blocks(info.id, lang)
    if request.get("quiz"):
        blocks = [block for block in blocks if block["kind"] == "quiz"]
    return {**head, "chapter": asdict(info), "blocks": blocks}
