"""Work out the searches that the guide quotes: ``python tools/compute_guide.py``.

Chapters compute their numbers when they are read. Only what takes a search of its own is kept, in
``learn/numbers/computed.json``; a test checks that nothing is missing and that what is quick to
search anew still comes out the same.
"""

from __future__ import annotations

import json

from meshplan.learn import chapter_blocks, chapters
from meshplan.learn.numbers import searches


def main() -> None:
    """Read every chapter, and search anew for all that was asked."""
    for chapter in chapters("en"):
        chapter_blocks(chapter.id, "en")
    found = {key: search() for key, search in sorted(searches.asked().items())}
    text = json.dumps(found, indent=2, ensure_ascii=False)
    searches.STORE.write_text(text + "\n", encoding="utf-8")
    print(f"{len(found)} searches")


if __name__ == "__main__":
    main()
