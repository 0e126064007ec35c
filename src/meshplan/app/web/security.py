"""What a request from a browser may say, and what every answer carries.

The server answers one person on one machine, but any page that this person has open can send it
requests. So it looks at the host that a request names, takes nothing that names a file or a
repository, and limits sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshplan.app.web.uploads import MOST_FILE_BYTES
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.model_presets import find_preset, preset_of_hub_id
from meshplan.inputs.load.profile import cluster_profile_names
from meshplan.inputs.load.profile_file import is_text

__all__ = ["MOST_BODY_BYTES", "UPLOAD_PATH", "Guard", "check_request"]

MOST_BODY_BYTES = 2 * 2**20
"""Largest request body; the largest ``config.json`` known to us has 200 kB."""

UPLOAD_PATH = "/api/upload"
"""Where traces come in, which are larger than any other request."""

_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_KEYS = frozenset(
    {
        *("model", "cluster", "job", "frameworks", "axes", "objective", "profile", "variant"),
        *("top", "plan", "plans", "kind", "to", "launcher", "lang"),
    }
)


class Guard:
    """Refuses foreign origins and large bodies, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        if origin and origin.partition("://")[2] != host:
            await PlainTextResponse("foreign origin", 403)(scope, receive, send_guarded)
            return
        length = headers.get(b"content-length", b"0")
        most = MOST_FILE_BYTES if scope["path"] == UPLOAD_PATH else MOST_BODY_BYTES
        if not length.isdigit() or int(length) > most:
            await PlainTextResponse("too large", 413)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def check_request(request: Any) -> Mapping[str, Any]:
    """Return a request that names no file, or say what in it cannot be used here.

    Raises:
        UserError: with all that is wrong.
    """
    problems = ProblemList()
    if not isinstance(request, Mapping):
        raise UserError.of("web_bad_request", where="request")
    for key in request:
        if key not in _KEYS:
            problems.add("web_unknown_key", where=str(key)[:80], allowed=sorted(_KEYS))
    model = request.get("model")
    if isinstance(model, str):
        known = find_preset(model.strip()) or preset_of_hub_id(model.strip())
        if known is None:
            problems.add("web_model_by_name", where="model", value=model[:80])
    if isinstance(model, Mapping):
        _check_model(model, problems)
    # the text of a profile is read as such and names no file
    if not isinstance(profile := request.get("profile"), Mapping) and not is_text(str(profile)):
        _check_name(request, "profile", cluster_profile_names(), problems)
    cluster = request.get("cluster")
    if isinstance(cluster, Mapping):
        _check_name(cluster, "profile", cluster_profile_names(), problems, prefix="cluster.")
        cluster = cluster.get("base")
    if isinstance(cluster, str) and _names_file(cluster):
        problems.add("web_cluster_by_name", where="cluster", value=cluster[:80])
    problems.raise_if_any()
    return request


def _check_model(model: Mapping[str, Any], problems: ProblemList) -> None:
    """A model's name is tried as a preset and as a file when a scenario is written down."""
    record = model.get("record")
    named = [("model.name", model.get("name"))]
    if isinstance(record, Mapping):
        named += [(f"model.record.{key}", record.get(key)) for key in ("name", "source")]
    for where, value in named:
        if isinstance(value, str) and _names_file(value) and preset_of_hub_id(value) is None:
            problems.add("web_model_by_name", where=where, value=value[:80])


def _check_name(
    values: Mapping[str, Any],
    key: str,
    names: tuple[str, ...],
    problems: ProblemList,
    *,
    prefix: str = "",
) -> None:
    value = values.get(key)
    if value and value not in names:
        problems.add("unknown_profile", where=prefix + key, value=str(value)[:80], allowed=names)


def _names_file(text: str) -> bool:
    return (
        len(text) > 200
        or any(mark in text for mark in ("/", "\\", "~", "\0", "\n"))
        or (text.strip().lower().endswith((".yaml", ".yml", ".json")))
    )
