"""``meshplan serve``: the local web app."""

from __future__ import annotations

from typing import Annotated

import typer

from meshplan.app.cli.commands import Session
from meshplan.errors import UserError
from meshplan.text import t

__all__ = ["run"]

_MOST_PORT = 65535


def run(
    ctx: typer.Context,
    port: Annotated[str, typer.Option("--port", metavar="N", help="cli.option.port")] = "8765",
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="cli.option.host")
    ] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="cli.option.no_browser")] = False,
) -> int:
    """Serve the web app until interrupted."""
    session = ctx.find_object(Session)
    assert session
    if not port.isdigit() or int(port) > _MOST_PORT:
        raise UserError.of("web_bad_port", where="--port", value=port)
    from meshplan.app.web.run import serve

    def announce(url: str) -> None:
        print(t("web.serving", session.lang, url=url), flush=True)

    try:
        serve(host=host, port=int(port), browser=not no_browser, announce=announce)
    except OSError:
        raise UserError.of("web_bad_host", where="--host", value=host) from None
    return 0
