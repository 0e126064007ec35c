"""The HTTP server: requests of the page to answers of the service.

``POST /api/<verb>`` takes a request as JSON and returns the text that ``meshplan <verb> --json``
prints. A page that stops waiting closes the connection, and the search behind it is stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from meshplan import __version__
from meshplan.app.encode import to_json
from meshplan.app.web.answer import QUICK, VERBS, answer, problems_json
from meshplan.app.web.diagnosed import diagnosis, upload
from meshplan.app.web.exports import EXPORTS
from meshplan.app.web.pool import Pool, Results
from meshplan.app.web.security import MOST_BODY_BYTES, UPLOAD_PATH, Guard, check_request
from meshplan.app.web.stream import search_lines
from meshplan.app.web.uploads import Uploads
from meshplan.app.web.words import problem_words, words_of
from meshplan.errors import UserError
from meshplan.inputs.job import Precision
from meshplan.inputs.scenario import Objective
from meshplan.text import LANGUAGES, catalog

__all__ = ["STATIC", "build_app"]

STATIC = Path(__file__).parent / "static"
_JSON = "application/json"
_POLL_S = 0.1
_THREADS = 2
_FITS = '"verdict": "fits"'
T = TypeVar("T")
DEFAULT: Mapping[str, Any] = {
    "model": "llama-3.1-70b",
    "gpus": 64,
    "device": "H100",
    "seq_len": 8192,
    "global_batch": 1024,
    "precision": "bf16",
    "framework": "megatron",
    "variant": "",
    "profile": "",
    "objective": "fastest",
    "tokens": "",
    "deadline": "",
    "price": "",
}
"""What the page is filled in with."""
_SCENE_KEYS = ("paper", "mechanism", "mode", "what_if", "at")
_TEXTS = (
    *("web.", "scene.", "memory.", "part.", "axis.", "event.", "learn.level.", "formula."),
    *("compared.column.", "compared.part.", "diagnose.column.", "diagnose.of", "diagnose.and"),
    *("cli.memory.", "cli.group.", "cli.kind.", "cli.area.", "source.", "switch.name."),
)
SHOWN = 8  # plans that the page asks for
CLOSED = 499  # what nginx logs for a client that went away; nobody reads it


async def _read(request: Request) -> Any:
    """The body as JSON, within its limit even where no length was announced."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise HTTPException(413)
        parts.append(part)
    try:
        return json.loads(b"".join(parts) or b"{}")
    except (ValueError, RecursionError):
        raise UserError.of("web_bad_request", where="request") from None


def _language(request: Request) -> str:
    lang = request.query_params.get("lang", "en")
    return lang if lang in LANGUAGES else "en"


async def _refuse(request: Request, error: Exception) -> Response:
    """Problems of a person's making, with their sentences."""
    assert isinstance(error, UserError)
    problems = problems_json(error)
    return JSONResponse({"problems": problem_words(problems, _language(request))}, 422)


async def _fault(request: Request, error: Exception) -> Response:
    """Anything else: its kind, never its trace."""
    return JSONResponse({"fault": type(error).__name__}, 500)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"fault": f"http_{error.status_code}"}, error.status_code)


def _key(verb: str, request: Mapping[str, Any]) -> str:
    return verb + json.dumps(request, sort_keys=True)


async def _ask(request: Request, verb: str, asked: Mapping[str, Any]) -> Response | str:
    """The text of a result, or the answer that says why there is none."""
    results: Results = request.app.state.results
    key = _key(verb, asked)
    found = results.get(key)
    if found is not None:
        return found
    if verb in QUICK or (verb == "explain" and asked.get("plan")):
        quick = partial(_in_thread, request.app, answer, verb, asked)
        answered = await _once(request.app, key, quick)
    elif verb == "estimate":
        answered = await _once(request.app, key, partial(_estimate, request.app, asked))
    else:
        work = asyncio.create_task(request.app.state.pool.ask(verb, asked))
        while not work.done():
            await asyncio.wait({work}, timeout=_POLL_S)
            if not work.done() and await request.is_disconnected():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                return Response(status_code=CLOSED)
        answered = work.result()
    if "problems" in answered:
        words = problem_words(answered["problems"], _language(request))
        # a page that only tries something out wants no failed request in its log
        return JSONResponse({"problems": words}, 200 if "soft" in request.query_params else 422)
    if "fault" in answered:
        return JSONResponse({"fault": answered["fault"]}, 500)
    text: str = answered["result"]
    results.put(key, text)
    return text


async def _in_thread(app: Starlette, work: Callable[..., T], *arguments: Any) -> T:
    """Work beside the loop, a few at once: more threads of Python take memory, not time."""
    return await to_thread.run_sync(work, *arguments, limiter=app.state.at_once)


async def _estimate(app: Starlette, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A plan that fits is judged at a glance; what would make another one fit is searched for."""
    glance = await _in_thread(app, answer, "glance", asked)
    if "result" not in glance or _FITS in glance["result"]:
        return glance
    searched: dict[str, Any] = await app.state.pool.ask("estimate", asked)
    return searched


async def _once(
    app: Starlette, key: str, work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]
) -> dict[str, Any]:
    """Answer once for all who ask the same at the same time."""
    pending: dict[str, asyncio.Task[dict[str, Any]]] = app.state.pending
    if key not in pending:
        pending[key] = asyncio.create_task(work())
        pending[key].add_done_callback(lambda _: pending.pop(key, None))
    return await asyncio.shield(pending[key])


async def _answer(request: Request) -> Response:
    """``POST /api/<verb>``."""
    verb = request.path_params["verb"]
    if verb not in VERBS:
        raise HTTPException(404)
    body = await _read(request)
    own = _SCENE_KEYS if verb == "scene" else ()
    check_request({k: v for k, v in _mapping(body).items() if k not in own})
    text = await _ask(request, verb, body)
    return text if isinstance(text, Response) else Response(text, media_type=_JSON)


def _mapping(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise UserError.of("web_bad_request", where="request")
    return body


async def _words(request: Request) -> Response:
    """``POST /api/words/<verb>``: the sentences of a result, in the language asked for."""
    verb = request.path_params["verb"]
    if verb not in ("plan", "estimate", "glance", "compare"):
        raise HTTPException(404)
    text = await _ask(request, verb, check_request(await _read(request)))
    if isinstance(text, Response):
        return text
    return JSONResponse(words_of(json.loads(text), _language(request)))


async def _search(request: Request) -> Response:
    """``POST /api/search``: what ``plan`` answers, line by line as it becomes known."""
    asked = check_request(await _read(request))
    state = request.app.state
    lines = search_lines(
        asked,
        lang=_language(request),
        key=_key("plan", asked),
        pool=state.pool,
        results=state.results,
        is_gone=request.is_disconnected,
    )
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _diagnose(request: Request) -> Response:
    """``POST /api/diagnose``: why a run is slow, from files that were uploaded."""
    asked = _mapping(await _read(request))
    return diagnosis(asked, lang=_language(request), request=request)


async def _export(request: Request) -> Response:
    """``POST /api/export/<kind>``: a plan as a file."""
    export = EXPORTS.get(request.path_params["kind"])
    if export is None:
        raise HTTPException(404)
    asked = _mapping(await _read(request))
    own = _SCENE_KEYS if request.path_params["kind"] == "svg" else ()
    check_request({k: v for k, v in asked.items() if k not in own})
    content = await _in_thread(request.app, export.make, dict(asked), _language(request))
    disposition = f'attachment; filename="{export.file_name}"'
    headers = {"content-disposition": disposition}
    return Response(content, media_type=export.media_type, headers=headers)


async def _texts(request: Request) -> Response:
    """``GET /api/texts``: all sentences that the page itself says."""
    lang = _language(request)
    return JSONResponse({k: v for k, v in catalog(lang).items() if k.startswith(_TEXTS)})


async def _choices(request: Request) -> Response:
    """``GET /api/choices``: names to choose from."""
    from meshplan.inputs.load.hf_config import model_names
    from meshplan.inputs.load.nodes import node_names
    from meshplan.inputs.load.presets import device_names
    from meshplan.inputs.load.profile import stacks_of
    from meshplan.inputs.vocabulary import FRAMEWORKS
    from meshplan.space.names import to_text
    from meshplan.space.plan import Schedule

    return JSONResponse(
        {
            "version": __version__,
            "default": DEFAULT,
            "models": list(model_names()),
            "devices": list(device_names()),
            "nodes": list(node_names()),
            "frameworks": list(FRAMEWORKS),
            "stacks": {name: list(stacks_of((name,))) for name in FRAMEWORKS},
            "objectives": list(get_args(Objective)),
            "precisions": list(get_args(Precision)),
            "schedules": [to_text(schedule) for schedule in Schedule],
        }
    )


async def _legal(request: Request) -> Response:
    """``POST /api/legal``: which values of each degree are legal, and which rule forbids others."""
    from meshplan.app.web.legal import legal_values

    asked = check_request(await _read(request))
    found = await _in_thread(request.app, legal_values, dict(asked), _language(request))
    return Response(to_json(found), media_type=_JSON)


async def _guide(request: Request) -> Response:
    """``GET /api/guide`` and ``GET /api/guide/<chapter>``."""
    from meshplan.app.web.guide import guide

    chapter = request.path_params.get("chapter", "")
    return JSONResponse(await _in_thread(request.app, guide, chapter, _language(request)))


def _default_request() -> dict[str, Any]:
    """What the page asks when it opens, key by key as it writes it."""
    return {
        "model": DEFAULT["model"],
        "cluster": f"{DEFAULT['gpus']}x{DEFAULT['device']}",
        "job": {key: DEFAULT[key] for key in ("seq_len", "global_batch", "precision")},
        "frameworks": [DEFAULT["framework"]],
        "objective": DEFAULT["objective"],
        "top": SHOWN,
    }


async def _warm(app: Starlette) -> None:
    """Answer the page's first question before it is asked."""
    asked = _default_request()
    answered = await app.state.pool.ask("plan", asked)
    if "result" in answered:
        app.state.results.put(_key("plan", asked), answered["result"])


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def build_app(
    *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), workers: int = 0
) -> Starlette:
    """Make the application.

    Args:
        hosts: host names that requests may use.
        workers: processes for searches; 0 takes one per core, two at most.
    """
    size = workers or min(2, os.cpu_count() or 1)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.pool = Pool(size)
        app.state.results = Results()
        app.state.pending = {}
        app.state.at_once = CapacityLimiter(_THREADS)
        app.state.uploads = Uploads()
        await app.state.pool.start()
        warming = asyncio.create_task(_warm(app))
        try:
            yield
        finally:
            warming.cancel()
            await asyncio.gather(warming, return_exceptions=True)
            await app.state.pool.close()
            app.state.uploads.close()

    routes = [
        Route("/", _page),
        Route("/api/texts", _texts),
        Route("/api/choices", _choices),
        Route("/api/guide", _guide),
        Route("/api/guide/{chapter}", _guide),
        Route("/api/legal", _legal, methods=["POST"]),
        Route("/api/search", _search, methods=["POST"]),
        Route(UPLOAD_PATH, upload, methods=["POST"]),
        Route("/api/diagnose", _diagnose, methods=["POST"]),
        Route("/api/words/{verb}", _words, methods=["POST"]),
        Route("/api/export/{kind}", _export, methods=["POST"]),
        Route("/api/{verb}", _answer, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: dict[Any, Any] = {UserError: _refuse, HTTPException: _http, Exception: _fault}
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard), trusted],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
