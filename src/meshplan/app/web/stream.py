"""A search as a stream of lines: how far it is, the first answer, and the whole one.

``POST /api/search`` answers with one JSON object per line: ``{"share": done}``, ``{"result": ...,
"words": ...}`` each time that more is known, and at the end ``{"done": true}``,
``{"problems": ...}`` or ``{"fault": kind}``. Who stops reading stops the search.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from meshplan.app.web.pool import Pool, Results
from meshplan.app.web.words import problem_words, words_of

__all__ = ["search_lines"]

Json = dict[str, Any]
_POLL_S = 0.1


async def search_lines(
    asked: Mapping[str, Any],
    *,
    lang: str,
    key: str,
    pool: Pool,
    results: Results,
    is_gone: Callable[[], Awaitable[bool]],
) -> AsyncIterator[str]:
    """Search, line by line.

    Args:
        asked: the request of ``plan``.
        lang: language of the words.
        key: name of the answer among the results.
        pool: who searches.
        results: where whole answers are kept.
        is_gone: whether nobody reads any more.
    """
    known = results.get(key)
    if known is not None:
        yield _shown(known, lang)
        yield _line({"done": True})
        return
    told: asyncio.Queue[Json] = asyncio.Queue()
    work = asyncio.create_task(pool.ask("plan", asked, tell=told.put_nowait))
    try:
        while not work.done() or not told.empty():
            try:
                said = await asyncio.wait_for(told.get(), _POLL_S)
            except TimeoutError:
                if await is_gone():
                    return
                continue
            yield _shown(said["part"], lang) if "part" in said else _line(said)
        answered = work.result()
        if "result" in answered:
            results.put(key, answered["result"])
            yield _line({"done": True})
        elif "problems" in answered:
            yield _line({"problems": problem_words(answered["problems"], lang)})
        else:
            yield _line(answered)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _shown(text: str, lang: str) -> str:
    result = json.loads(text)
    return _line({"result": result, "words": words_of(result, lang)})


def _line(said: Mapping[str, Any]) -> str:
    return json.dumps(said, ensure_ascii=False) + "\n"
