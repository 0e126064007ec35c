"""``meshplan schema``: the JSON Schema of what goes in and what comes out."""

from __future__ import annotations

from typing import Annotated

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import deliver_json

__all__ = ["run"]


def run(
    ctx: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="cli.argument.schema")],
    output: o.Output = None,
) -> int:
    """Print a schema; it is JSON with and without ``--json``."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service

    deliver_json(service.schema({"kind": kind}), lang=session.lang, output=output)
    return 0
