"""``meshplan list``: what meshplan knows by name."""

from __future__ import annotations

from typing import Annotated

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import deliver

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="cli.argument.kind")],
    delivery: o.Delivery,
) -> int:
    """List things of one kind."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.lists import render_list

    result = service.list_things({"kind": kind})
    deliver(result, render_list, lang=session.lang, delivery=delivery)
    return 0
