"""``meshplan inspect``: what is read from a model's config."""

from __future__ import annotations

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import deliver

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    model: o.Model,
    delivery: o.Delivery,
) -> int:
    """Inspect a model."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.model import render_inspect

    result = service.inspect({"model": model})
    deliver(result, render_inspect, lang=session.lang, delivery=delivery)
    return 0
