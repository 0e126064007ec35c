"""Where chapters lie, and what stands at their head."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from meshplan.errors import UserError
from meshplan.record import record
from meshplan.text import LANGUAGES

__all__ = ["ChapterInfo", "chapter_source", "chapters"]

FOLDER = Path(__file__).parent / "content"
_HEAD = re.compile(r"\A---\n(?P<head>.*?)\n---\n(?P<body>.*)\Z", re.DOTALL)


@record
class ChapterInfo:
    """What is known of a chapter without reading it.

    Attributes:
        id: name of the file and of the chapter in links.
        title: in the language asked for.
        summary: one sentence.
        order: position in the guide, from 1.
        mechanism: mechanism that its pictures belong to; empty for chapters without one.
    """

    id: str
    title: str
    summary: str
    order: int
    mechanism: str = ""


@lru_cache(maxsize=len(LANGUAGES))
def _all(lang: str) -> dict[str, tuple[ChapterInfo, str]]:
    found = []
    for path in (FOLDER / lang).glob("*.md"):
        match = _HEAD.match(path.read_text(encoding="utf-8"))
        assert match, f"{path.name} has no head"
        head = dict(line.split(": ", 1) for line in match["head"].splitlines())
        order = int(head.pop("order"))
        found.append((ChapterInfo(id=path.stem, order=order, **head), match["body"]))
    found.sort(key=lambda chapter: chapter[0].order)
    return {info.id: (info, body) for info, body in found}


def chapters(lang: str) -> list[ChapterInfo]:
    """List the chapters in reading order.

    Args:
        lang: ``en`` or ``zh``.
    """
    return [info for info, _ in _all(lang).values()]


def chapter_source(chapter_id: str, lang: str) -> tuple[ChapterInfo, str]:
    """Find a chapter by its id, its number or the beginning of its id.

    Returns:
        What is known of it, and its Markdown.

    Raises:
        UserError: ``unknown_chapter`` with the ids that there are.
    """
    known = _all(lang)
    wanted = chapter_id.strip().lower()
    hits = [name for name in known if name == wanted or str(known[name][0].order) == wanted]
    hits = hits or [name for name in known if wanted and name.startswith(wanted)]
    if len(hits) != 1:
        raise UserError.of(
            "unknown_chapter", where="chapter", value=chapter_id, allowed=hits or list(known)
        )
    return known[hits[0]]
