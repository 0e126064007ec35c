"""Find a port, say where the app is, and serve until interrupted."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from meshplan.app.web.api import build_app

__all__ = ["listen", "serve"]

_TRIES = 10


def listen(host: str, port: int) -> socket.socket:
    """Bind a port: the one given, one of the next few, or any that is free.

    Raises:
        OSError: when the host is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [*range(port, min(port + _TRIES, 65536)), 0] if port else [0]:
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError, OverflowError):
            bound.bind((host, candidate))
            # a port that another process listens on can be bound but not listened on
            bound.listen(128)
            return bound
        bound.close()
    raise OSError(host)


def serve(*, host: str, port: int, browser: bool, announce: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args:
        host: address to bind.
        port: port to try first.
        browser: open the page when standard output is a terminal.
        announce: told the address.
    """
    bound = listen(host, port)
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    shown = f"[{name}]" if ":" in name else name
    url = f"http://{shown}:{bound.getsockname()[1]}/"
    # who asks for all interfaces wants to be reached under names that we do not know
    hosts = ("*",) if host in ("0.0.0.0", "::") else ("127.0.0.1", "localhost", host)
    config = uvicorn.Config(
        build_app(hosts=hosts),
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    announce(url)
    if browser and sys.stdout.isatty():
        threading.Timer(0.8, webbrowser.open, (url,)).start()
    uvicorn.Server(config).run(sockets=[bound])
