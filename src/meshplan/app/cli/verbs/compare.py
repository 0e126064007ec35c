"""``meshplan compare``: two to four plans side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver
from meshplan.app.cli.request import build_request, plan_fields

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    model: o.Model,
    plans: Annotated[list[str], typer.Argument(metavar="PLAN", help="cli.argument.plans")],
    *,
    job: o.Job,
    profile: o.Profile = None,
    settings: o.Set = None,
    framework: o.Framework = None,
    delivery: o.Delivery,
) -> int:
    """Compare plans; 1 when none of them fits."""
    session = ctx.find_object(Session)
    assert session
    request = build_request(model, job, profile=profile, settings=settings, frameworks=framework)
    request["plans"] = [plan_fields(text) for text in plans]
    from meshplan.app import service
    from meshplan.app.cli.render.comparison import render_compare

    with busy("cli.busy.compare", session.lang):
        result = service.compare(request)
    deliver(result, render_compare, lang=session.lang, delivery=delivery)
    return 0 if any(p["memory"]["verdict"] != "oom" for p in result["plans"]) else 1
