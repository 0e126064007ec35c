"""``meshplan validate``: predicted against measured runs."""

from __future__ import annotations

from typing import Annotated

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    runs: Annotated[str, typer.Argument(metavar="RUNS.csv", help="cli.argument.runs")],
    *,
    models: Annotated[
        str | None, typer.Option("--models", metavar="MODELS.csv", help="cli.option.models")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="ID", help="cli.option.source")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="FILE", help="cli.option.profile_for_runs")
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="cli.option.details")] = False,
    delivery: o.Delivery,
) -> int:
    """Validate; the answer is a table, not yes or no."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.validation import render_validate

    request = {
        "runs": runs,
        "models": models,
        "sources": source or None,
        "details": details,
        "profile": profile,
    }
    with busy("cli.busy.validate", session.lang):
        result = service.validate(request)
    deliver(result, render_validate, lang=session.lang, delivery=delivery)
    return 0
