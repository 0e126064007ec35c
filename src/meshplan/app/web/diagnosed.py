"""A diagnosis of files that were dropped on the page, as a stream of lines like a search.

``POST /api/upload?name=...`` takes one file as it is and answers with its ``key``.
``POST /api/diagnose`` takes ``{"files": [key, ...]}``, with a scenario and ``plan`` when the run is
known to have trained one, and answers with one JSON object per line: ``{"share": done}``, then
``{"result": ..., "words": {language: ...}}``, ``{"problems": ...}`` or ``{"fault": kind}``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from meshplan.app.diagnosis_words import diagnosis_words
from meshplan.app.web.pool import Pool
from meshplan.app.web.security import check_request
from meshplan.app.web.uploads import Uploads
from meshplan.app.web.words import problem_words
from meshplan.errors import UserError
from meshplan.text import LANGUAGES

__all__ = ["diagnosis", "upload"]

Json = dict[str, Any]
_POLL_S = 0.1
_OWN_KEYS = ("files", "stage_times", "utilization")


async def upload(request: Request) -> Response:
    """``POST /api/upload``."""
    uploads: Uploads = request.app.state.uploads
    found = await uploads.receive(request.query_params.get("name", ""), request.stream())
    shown = {"key": found.key, "name": found.path.name, "bytes": found.num_bytes}
    return JSONResponse(shown)


def diagnosis(asked: Mapping[str, Any], *, lang: str, request: Request) -> Response:
    """``POST /api/diagnose``.

    Args:
        asked: the body.
        lang: language of problems.
        request: where it came from.

    Raises:
        UserError: when it names what is not there.
    """
    state = request.app.state
    check_request({key: value for key, value in asked.items() if key not in _OWN_KEYS})
    files = asked.get("files", [])
    if not isinstance(files, list) or not all(isinstance(key, str) for key in files):
        raise UserError.of("web_bad_request", where="files")
    paths = [str(path) for path in state.uploads.paths(files)]
    wanted = {key: value for key, value in asked.items() if key != "files"}
    lines = _lines({**wanted, "paths": paths}, lang=lang, pool=state.pool, request=request)
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _lines(asked: Json, *, lang: str, pool: Pool, request: Request) -> AsyncIterator[str]:
    told: asyncio.Queue[Json] = asyncio.Queue()
    work = asyncio.create_task(pool.ask("diagnose", asked, tell=told.put_nowait))
    try:
        while not work.done() or not told.empty():
            try:
                yield _line(await asyncio.wait_for(told.get(), _POLL_S))
            except TimeoutError:
                if await request.is_disconnected():
                    return
        answered = work.result()
        if "result" in answered:
            result = json.loads(answered["result"])
            words = {name: diagnosis_words(result, name) for name in LANGUAGES}
            yield _line({"result": result, "words": words})
        elif "problems" in answered:
            yield _line({"problems": problem_words(answered["problems"], lang)})
        else:
            yield _line(answered)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _line(said: Mapping[str, Any]) -> str:
    return json.dumps(said, ensure_ascii=False) + "\n"
