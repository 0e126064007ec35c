"""The guide: chapters in English and Chinese whose numbers are computed when they are read."""

from meshplan.learn.blocks import chapter_blocks
from meshplan.learn.content import ChapterInfo, chapters
from meshplan.learn.html import chapter_html

__all__ = ["ChapterInfo", "chapter_blocks", "chapter_html", "chapters"]
